#include "memory/pinned_buffer.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "support/error.h"
#include "support/scripted_runtime.h"

namespace staging {
namespace {

using testing::ScriptedRuntime;

constexpr std::size_t kMiB = std::size_t{1} << 20;

class PinnedBufferTest : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(runtime_.pinned_regions(), 0U);
    EXPECT_TRUE(runtime_.violations().empty());
  }

  ScriptedRuntime runtime_;
};

bool is_mapped(const void* pointer) {
  unsigned char resident = 0;
  return mincore(const_cast<void*>(pointer), 1, &resident) == 0;
}

TEST_F(PinnedBufferTest, IsExactToThePage) {
  const std::size_t asked = 129 * kMiB + kMiB / 2 + 1;
  const PinnedBuffer buffer(runtime_, 0, asked);
  EXPECT_EQ(buffer.nbytes(), asked);
  EXPECT_GE(buffer.mapped_nbytes(), asked);
  EXPECT_LE(buffer.mapped_nbytes(), asked + page_nbytes());
  EXPECT_EQ(runtime_.pinned_nbytes(), buffer.mapped_nbytes());
}

TEST_F(PinnedBufferTest, OneRegionIsOneRegistration) {
  const PinnedBuffer buffer(runtime_, 1, 70 * kMiB);
  EXPECT_EQ(runtime_.calls("register_pinned"), 1U);
  EXPECT_EQ(runtime_.calls("allocate_pinned"), 0U);
  EXPECT_EQ(buffer.registered_from(buffer.bytes() + kMiB), 69 * kMiB);
}

TEST_F(PinnedBufferTest, IsWritableToItsEndAndZeroAtFirst) {
  const PinnedBuffer buffer(runtime_, 0, 3 * page_nbytes() - 5);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % page_nbytes(), 0U);
  for (std::size_t i = 0; i < buffer.nbytes(); ++i) EXPECT_EQ(buffer.bytes()[i], std::byte{0});
  std::memset(buffer.data(), 0xa5, buffer.mapped_nbytes());
}

TEST_F(PinnedBufferTest, ItsPagesArePresentWhenItIsRegistered) {
  const PinnedBuffer buffer(runtime_, 0, 65 * kMiB + 3);  // several threads touch it
  std::vector<unsigned char> resident(buffer.mapped_nbytes() / page_nbytes());
  ASSERT_EQ(mincore(buffer.data(), buffer.mapped_nbytes(), resident.data()), 0);
  for (const unsigned char page : resident) ASSERT_EQ(page & 1, 1);
}

TEST_F(PinnedBufferTest, BeyondTheLimitIsRegisteredInPartsWithKnownSeams) {
  const std::size_t page = page_nbytes();
  PinnedBufferOptions options;
  options.max_registration_nbytes = 4 * page;
  const PinnedBuffer buffer(runtime_, 0, 5 * page, options);
  EXPECT_EQ(runtime_.calls("register_pinned"), 3U);
  EXPECT_EQ(buffer.registered_from(buffer.data()), 2 * page);
  EXPECT_EQ(buffer.registered_from(buffer.bytes() + 2 * page - 1), 1U);
  EXPECT_EQ(buffer.registered_from(buffer.bytes() + 2 * page), 2 * page);
  EXPECT_EQ(buffer.registered_from(buffer.bytes() + 4 * page + 7), page - 7);
}

TEST_F(PinnedBufferTest, AtTheLimitIsOneRegistration) {
  PinnedBufferOptions options;
  options.max_registration_nbytes = 4 * page_nbytes();
  const PinnedBuffer buffer(runtime_, 0, 4 * page_nbytes(), options);
  EXPECT_EQ(runtime_.calls("register_pinned"), 1U);
}

TEST_F(PinnedBufferTest, ZeroBytesMakeNoCall) {
  const PinnedBuffer buffer(runtime_, 0, 0);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.nbytes(), 0U);
  EXPECT_EQ(runtime_.calls(), 0U);
}

TEST_F(PinnedBufferTest, AFailedRegistrationLeavesNothingBehind) {
  const std::size_t page = page_nbytes();
  PinnedBufferOptions options;
  options.max_registration_nbytes = 2 * page;
  for (std::size_t nth = 1; nth <= 3; ++nth) {
    runtime_.fail("register_pinned", testing::kErrorMemoryAllocation, nth);
    EXPECT_THROW(PinnedBuffer(runtime_, 0, 3 * page, options), OutOfMemory);
    EXPECT_EQ(runtime_.pinned_regions(), 0U);
  }
  const PinnedBuffer buffer(runtime_, 0, 3 * page, options);  // the next one works
  EXPECT_EQ(runtime_.pinned_regions(), 3U);
}

TEST_F(PinnedBufferTest, ADeviceThatCannotRegisterGetsTheDriversAllocator) {
  runtime_.fail("register_pinned", testing::kErrorNotSupported);
  PinnedBuffer buffer(runtime_, 0, 3 * kMiB);
  EXPECT_EQ(runtime_.calls("allocate_pinned"), 1U);
  EXPECT_EQ(buffer.registered_from(buffer.bytes() + 1), 3 * kMiB - 1);
  buffer.reset();
  EXPECT_EQ(runtime_.calls("free_pinned"), 1U);
}

TEST_F(PinnedBufferTest, AnyOtherFailureIsReportedAndDoesNotFallBack) {
  runtime_.fail("register_pinned", testing::kErrorInvalidValue);
  EXPECT_THROW(PinnedBuffer(runtime_, 0, kMiB), DeviceError);
  EXPECT_EQ(runtime_.calls("allocate_pinned"), 0U);
}

TEST_F(PinnedBufferTest, AnImpossibleSizeIsOutOfMemory) {
  EXPECT_THROW(PinnedBuffer(runtime_, 0, SIZE_MAX), OutOfMemory);
  EXPECT_THROW(PinnedBuffer(runtime_, 0, SIZE_MAX / 4), OutOfMemory);
  EXPECT_EQ(runtime_.calls("register_pinned"), 0U);
}

TEST_F(PinnedBufferTest, MovingHandsOverTheOneOwnership) {
  PinnedBuffer first(runtime_, 0, kMiB);
  void* data = first.data();
  PinnedBuffer second(std::move(first));
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): that is the point
  PinnedBuffer third(runtime_, 0, kMiB);
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(runtime_.pinned_regions(), 1U);
}

TEST_F(PinnedBufferTest, DestructionUnregistersAndUnmaps) {
  const void* data = nullptr;
  {
    const PinnedBuffer buffer(runtime_, 0, kMiB);
    data = buffer.data();
    EXPECT_TRUE(is_mapped(data));
  }
  EXPECT_EQ(runtime_.calls("unregister_pinned"), 1U);
  EXPECT_FALSE(is_mapped(data));
}

TEST_F(PinnedBufferTest, HugePagesAreOnlyAdvice) {
  PinnedBufferOptions options;
  options.huge_pages = true;
  const PinnedBuffer buffer(runtime_, 0, 4 * kMiB + 1, options);
  EXPECT_LE(buffer.mapped_nbytes(), 4 * kMiB + page_nbytes());
  std::memset(buffer.data(), 1, buffer.mapped_nbytes());
}

TEST_F(PinnedBufferTest, AForkMovesNoPageOfTheParent) {
  const PinnedBuffer buffer(runtime_, 0, page_nbytes());
  buffer.bytes()[0] = std::byte{1};
  const pid_t child = fork();
  if (child == 0) {
    buffer.bytes()[0] = std::byte{2};  // a private page would be copied here
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(buffer.bytes()[0], std::byte{2});
}

TEST(PinnedBufferContext, MemoryIsLeakedOnceTheContextIsLost) {
  ScriptedRuntime runtime;
  const void* data = nullptr;
  {
    const PinnedBuffer buffer(runtime, 0, page_nbytes());
    data = buffer.data();
    runtime.fail("query_event", testing::kErrorIllegalAddress, 1, 1, /*sticky=*/true);
    EXPECT_THROW(runtime.query_event(0, nullptr), DeviceError);
  }
  EXPECT_EQ(runtime.calls("unregister_pinned"), 0U);
  EXPECT_TRUE(is_mapped(data));
  munmap(const_cast<void*>(data), page_nbytes());
}

}  // namespace
}  // namespace staging
