#include "kernels/segmented_copy.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kernels/guarded_bytes.h"
#include "runtime/host_runtime.h"
#include "support/error.h"

namespace staging::kernels {
namespace {

using testing::GuardedBytes;

// Runs kernels on the host and keeps what it was asked.
class CountingRuntime : public HostRuntime {
 public:
  void launch(int device, const Kernel& kernel, Dim3 grid, Dim3 block, std::size_t shared_nbytes,
              void** args, StreamHandle stream) override {
    ++launches;
    name = kernel.name;
    last_grid = grid;
    last_block = block;
    HostRuntime::launch(device, kernel, grid, block, shared_nbytes, args, stream);
  }
  int launches = 0;
  std::string name;
  Dim3 last_grid;
  Dim3 last_block;
};

class SegmentedCopy : public ::testing::Test {
 protected:
  void copy(const std::vector<CopyItem>& items) {
    launch_segmented_copy(runtime_, -1, nullptr, items);
  }
  CountingRuntime runtime_;
};

TEST_F(SegmentedCopy, EveryAlignmentOfBothSidesAndEveryTailIsCopiedExactly) {
  for (std::size_t src_shift = 0; src_shift < 16; ++src_shift) {
    for (std::size_t dst_shift = 0; dst_shift < 16; ++dst_shift) {
      for (std::size_t nbytes = 1; nbytes <= 49; ++nbytes) {
        GuardedBytes src(nbytes, src_shift, 1);
        GuardedBytes dst(nbytes, dst_shift, 2);
        dst.expect(0, src.data(), nbytes);
        copy({{dst.data(), src.data(), nbytes}});
        ASSERT_TRUE(dst.as_expected()) << "from +" << src_shift << " to +" << dst_shift;
        ASSERT_TRUE(src.as_expected());
      }
    }
  }
}

TEST_F(SegmentedCopy, LongSegmentsOfEveryCommonWidthAreCopiedExactly) {
  // Several blocks, several rounds of the threads, and a tail.
  for (const std::size_t nbytes : {4096UL, 16384UL, 65536UL + 7, 1000003UL}) {
    for (const std::size_t shift : {0UL, 1UL, 2UL, 4UL, 8UL, 3UL, 12UL}) {
      GuardedBytes src(nbytes, 0, 3);
      GuardedBytes dst(nbytes, shift, 4);
      dst.expect(0, src.data(), nbytes);
      copy({{dst.data(), src.data(), nbytes}});
      ASSERT_TRUE(dst.as_expected()) << nbytes << " bytes to +" << shift;
    }
  }
}

class SegmentedCopyOfMany : public SegmentedCopy,
                            public ::testing::WithParamInterface<std::size_t> {};

TEST_P(SegmentedCopyOfMany, ManySegmentsAreOneLaunch) {
  const std::size_t count = GetParam();
  std::mt19937 random(7);
  std::vector<std::unique_ptr<GuardedBytes>> sources;
  std::vector<std::unique_ptr<GuardedBytes>> destinations;
  std::vector<CopyItem> items;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t nbytes = i % 50 == 0 ? 20'000 + random() % 9'000 : 1 + random() % 200;
    const auto seed = static_cast<std::uint32_t>(i);
    sources.push_back(std::make_unique<GuardedBytes>(nbytes, random() % 16, seed));
    destinations.push_back(std::make_unique<GuardedBytes>(nbytes, random() % 16, ~seed));
    destinations.back()->expect(0, sources.back()->data(), nbytes);
    items.push_back({destinations.back()->data(), sources.back()->data(), nbytes});
  }
  copy(items);
  EXPECT_EQ(runtime_.launches, 1);
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_TRUE(destinations[i]->as_expected()) << "segment " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, SegmentedCopyOfMany,
                         ::testing::Values(1, 2, 20, 21, 146, 147, 1168));

TEST_F(SegmentedCopy, TheParametersAreAsSmallAsTheSegmentsAllow) {
  GuardedBytes src(200, 0, 1);
  GuardedBytes dst(200, 0, 2);
  std::vector<CopyItem> items;
  const auto launch_of = [&](std::size_t count) {
    items.clear();
    for (std::size_t i = 0; i < count; ++i) {
      items.push_back({dst.data() + i % 200, src.data() + i % 200, 1});
    }
    copy(items);
    return runtime_.name;
  };
  EXPECT_EQ(launch_of(20), "segmented_copy_small_kernel");
  EXPECT_EQ(launch_of(21), "segmented_copy_medium_kernel");
  EXPECT_EQ(launch_of(147), "segmented_copy_large_kernel");
}

TEST_F(SegmentedCopy, SmallSegmentsGetSmallBlocks) {
  GuardedBytes src(100'000, 0, 1);
  GuardedBytes dst(100'000, 0, 2);
  copy({{dst.data(), src.data(), 64}});
  EXPECT_EQ(runtime_.last_block.x, 32U);
  copy({{dst.data(), src.data(), 1024}});
  EXPECT_EQ(runtime_.last_block.x, 64U);
  EXPECT_EQ(runtime_.last_grid.x, 1U);
  copy({{dst.data(), src.data(), 65'536}});
  EXPECT_EQ(runtime_.last_block.x, 256U);
  EXPECT_EQ(runtime_.last_grid.x, 4U);
}

TEST_F(SegmentedCopy, NothingToCopyIsNoLaunch) {
  copy({});
  EXPECT_EQ(runtime_.launches, 0);
}

TEST_F(SegmentedCopy, MoreThanOneLaunchTakesIsRefused) {
  GuardedBytes bytes(16, 0, 1);
  const std::vector<CopyItem> items(segmented_copy_capacity() + 1,
                                    CopyItem{bytes.data(), bytes.data() + 8, 1});
  EXPECT_THROW(copy(items), InvalidArgument);
  EXPECT_EQ(runtime_.launches, 0);
}

}  // namespace
}  // namespace staging::kernels
