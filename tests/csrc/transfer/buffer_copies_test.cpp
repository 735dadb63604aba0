#include "transfer/buffer_copies.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "support/error.h"
#include "support/scripted_runtime.h"

namespace staging {
namespace {

class BufferCopiesTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kNbytes = 64;

  testing::ScriptedRuntime runtime_{2};
  DeviceContext context_{runtime_, 0};
  StreamHandle a_ = runtime_.create_stream(0);
  StreamHandle b_ = runtime_.create_stream(0);
  char* device_ = static_cast<char*>(runtime_.allocate_device(0, kNbytes));
  char* host_ = static_cast<char*>(runtime_.allocate_pinned(0, kNbytes));
  BufferCopies copies_{context_, host_, device_, /*host_is_pinned=*/true};

  void SetUp() override {
    std::memset(host_, 0, kNbytes);
    runtime_.progress_after_queries(4);  // a wait gets there in the end
  }
  void TearDown() override {
    runtime_.run_all();
    EXPECT_TRUE(runtime_.violations().empty());
    runtime_.free_pinned(host_);
  }
};

TEST_F(BufferCopiesTest, AnUploadIsNotChangedByALaterWrite) {
  std::strcpy(host_, "old");
  copies_.upload({0, a_}, kNbytes);
  std::strcpy(host_, "new");
  runtime_.run_all();
  EXPECT_STREQ(device_, "old");
}

TEST_F(BufferCopiesTest, CopiesOnTwoStreamsKeepTheirOrder) {
  std::strcpy(host_, "one");
  copies_.upload({0, a_}, kNbytes);
  std::strcpy(host_, "two");
  copies_.upload({0, b_}, kNbytes);
  EXPECT_FALSE(runtime_.step(0, b_));  // it waits for the other stream
  runtime_.run(0, a_);
  runtime_.run(0, b_);
  EXPECT_STREQ(device_, "two");
}

TEST_F(BufferCopiesTest, OneStreamNeedsNoWait) {
  copies_.upload({0, a_}, kNbytes);
  runtime_.reset_calls();
  copies_.upload({0, a_}, kNbytes);
  EXPECT_EQ(runtime_.calls("stream_wait_event"), 0u);
  EXPECT_EQ(runtime_.calls("capture_status"), 1u);
  EXPECT_EQ(runtime_.calls("current_device"), 1u);
}

TEST_F(BufferCopiesTest, ADownloadGuardsTheHostArrayUntilItIsDone) {
  std::strcpy(device_, "device");
  copies_.download({0, a_}, kNbytes);
  EXPECT_TRUE(copies_.host_in_flight());
  copies_.wait_host();
  EXPECT_STREQ(host_, "device");
  EXPECT_FALSE(copies_.host_in_flight());
}

TEST_F(BufferCopiesTest, AnUploadBehindADownloadSendsTheDevicesOwnBytes) {
  std::strcpy(device_, "device");
  std::strcpy(host_, "stale");
  copies_.download({0, a_}, kNbytes);
  copies_.upload({0, b_}, kNbytes);
  EXPECT_EQ(std::string(host_), "stale");
  runtime_.run_all();
  EXPECT_STREQ(device_, "device");
}

TEST_F(BufferCopiesTest, WaitsForBothADownloadAndTheUploadBehindIt) {
  copies_.download({0, a_}, kNbytes);
  copies_.upload({0, a_}, kNbytes);
  runtime_.step(0, a_);  // the download's copy
  runtime_.step(0, a_);  // its event
  EXPECT_TRUE(copies_.host_in_flight());
  copies_.wait_host();
  EXPECT_EQ(runtime_.pending(0, a_), 0u);
}

TEST_F(BufferCopiesTest, AFailedDownloadLeavesNoGuardBehind) {
  for (const char* method : {"copy_async", "record_event"}) {
    runtime_.fail(method);
    EXPECT_THROW(copies_.download({0, a_}, kNbytes), DeviceError);
    runtime_.clear_failures();
    runtime_.run_all();
    EXPECT_FALSE(copies_.host_in_flight());
  }
}

TEST_F(BufferCopiesTest, NothingIsCalledForNoBytes) {
  runtime_.reset_calls();
  copies_.upload({0, a_}, 0);
  copies_.download({0, a_}, 0);
  EXPECT_EQ(runtime_.calls(), 0u);
}

TEST_F(BufferCopiesTest, TheCurrentDeviceIsUnchanged) {
  runtime_.set_device(1);
  copies_.upload({0, a_}, kNbytes);
  copies_.download({0, a_}, kNbytes);
  EXPECT_EQ(runtime_.current_device(), 1);
}

}  // namespace
}  // namespace staging
