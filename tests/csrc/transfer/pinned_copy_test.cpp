#include "transfer/pinned_copy.h"

#include <gtest/gtest.h>

#include <cstring>

#include "runtime/device_scope.h"
#include "support/error.h"
#include "support/scripted_runtime.h"

namespace staging {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

class PinnedCopyTest : public ::testing::Test {
 protected:
  PinnedCopyTest() : scope_(runtime_, 0), device_(runtime_.allocate_device(0, 2 * kMiB)) {}

  // Registered in parts of half a MiB.
  static PinnedPoolOptions parts() {
    PinnedPoolOptions options;
    options.max_registration_nbytes = kMiB;
    return options;
  }

  testing::ScriptedRuntime runtime_;
  DeviceScope scope_;
  void* device_;
  const StreamRef stream_{0, nullptr};
};

TEST_F(PinnedCopyTest, WithoutASeamItIsOneCopy) {
  PinnedPool pool(runtime_);
  const PinnedBlock block = pool.allocate(2 * kMiB);
  copy_pinned_async(pool, stream_, device_, block.data(), 2 * kMiB, CopyKind::kHostToDevice);
  EXPECT_EQ(runtime_.calls("copy_async"), 1U);
  runtime_.run_all();
}

TEST_F(PinnedCopyTest, NoPartCrossesASeamInEitherDirection) {
  PinnedPool pool(runtime_, parts());
  const PinnedBlock block = pool.allocate(2 * kMiB);
  for (std::size_t i = 0; i < 2 * kMiB; ++i) block.bytes()[i] = static_cast<std::byte>(i * 7);
  std::memset(device_, 0, 2 * kMiB);
  const std::size_t begin = kMiB / 2 - 100;
  copy_pinned_async(pool, stream_, device_, block.bytes() + begin, kMiB, CopyKind::kHostToDevice);
  EXPECT_EQ(runtime_.calls("copy_async"), 3U);
  runtime_.run_all();
  EXPECT_EQ(std::memcmp(device_, block.bytes() + begin, kMiB), 0);

  runtime_.reset_calls();
  const PinnedBlock back = pool.allocate(2 * kMiB);
  copy_pinned_async(pool, stream_, back.bytes() + 1, device_, kMiB, CopyKind::kDeviceToHost);
  EXPECT_EQ(runtime_.calls("copy_async"), 3U);
  runtime_.run_all();
  EXPECT_EQ(std::memcmp(device_, back.bytes() + 1, kMiB), 0);
}

TEST_F(PinnedCopyTest, AFailureOfALaterPartLeavesNothingInFlight) {
  PinnedPool pool(runtime_, parts());
  const PinnedBlock block = pool.allocate(2 * kMiB);
  runtime_.fail("copy_async", testing::kErrorInvalidValue, 2);
  EXPECT_THROW(
      copy_pinned_async(pool, stream_, device_, block.data(), kMiB, CopyKind::kHostToDevice),
      DeviceError);
  EXPECT_EQ(runtime_.pending(), 0U);
}

}  // namespace
}  // namespace staging
