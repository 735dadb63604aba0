#include "transfer/upload.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "support/error.h"
#include "support/scripted_runtime.h"

namespace staging {
namespace {

class UploadTest : public ::testing::Test {
 protected:
  testing::ScriptedRuntime runtime_{1};
  DeviceContext context_{runtime_, 0};
  StreamHandle stream_ = runtime_.create_stream(0);
  UploadRing& ring_ = context_.ring(stream_);
  char* device_ = static_cast<char*>(runtime_.allocate_device(0, 64));
  char host_[6] = "step0";

  Event upload() { return upload_snapshot(context_, ring_, device_, host_, sizeof host_); }
  void TearDown() override { runtime_.run_all(); }
};

TEST_F(UploadTest, TheDeviceGetsTheBytesOfTheCall) {
  upload();
  std::strcpy(host_, "step1");
  runtime_.run_all();
  EXPECT_STREQ(device_, "step0");
}

TEST_F(UploadTest, IsOneCopyAndOneRecordOnceWarm) {
  upload();
  runtime_.run_all();
  upload();
  runtime_.reset_calls();
  upload();
  EXPECT_EQ(runtime_.calls("copy_async"), 1u);
  EXPECT_EQ(runtime_.calls("record_event"), 1u);
  EXPECT_LE(runtime_.calls(), 3u);  // and at most one event created: none was idle
}

// Whatever fails, the error is reported, nothing is lost and the next copy works.
TEST_F(UploadTest, EveryFailureLeavesTheNextCopyWhole) {
  for (const std::string method : {"create_event", "copy_async", "record_event"}) {
    SCOPED_TRACE(method);
    runtime_.fail(method, testing::kErrorInvalidValue);
    std::vector<Event> hold;
    EXPECT_THROW(
        {
          for (int i = 0; i < 3; ++i) hold.push_back(upload());
        },
        DeviceError);
    runtime_.clear_failures();
    std::strcpy(host_, "after");
    const Event event = upload();
    runtime_.run_all();
    EXPECT_TRUE(event.query());
    EXPECT_STREQ(device_, "after");
    hold.clear();
    ring_.trim();
    EXPECT_EQ(ring_.stats().in_flight_slots, 0u);
  }
}

TEST_F(UploadTest, ACopyWhoseEventFailedIsWaitedFor) {
  upload();
  runtime_.run_all();
  runtime_.fail("record_event");
  runtime_.reset_calls();
  EXPECT_THROW(upload(), DeviceError);
  EXPECT_EQ(runtime_.calls("synchronize_stream"), 1u);
  EXPECT_EQ(ring_.stats().in_flight_nbytes, ring_.stats().in_flight_slots * 256);
}

}  // namespace
}  // namespace staging
