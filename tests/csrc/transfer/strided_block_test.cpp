#include "transfer/strided_block.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "support/error.h"

namespace staging {
namespace {

using Shape = std::vector<std::int64_t>;

TEST(StridedBlockTest, DenseBlocksAreOneRun) {
  const BlockPair pair = make_block_pair(Shape{2, 3, 4}, Shape{12, 4, 1}, Shape{12, 4, 1}, 8);
  EXPECT_TRUE(pair.contiguous());
  EXPECT_EQ(pair.nbytes(), 192u);
}

TEST(StridedBlockTest, AGapMakesRows) {
  const BlockPair pair = make_block_pair(Shape{5, 3}, Shape{10, 1}, Shape{3, 1}, 4);
  std::size_t width = 0, height = 0, src_pitch = 0, dst_pitch = 0;
  ASSERT_TRUE(pair.rows(&width, &height, &src_pitch, &dst_pitch));
  EXPECT_EQ(width, 12u);
  EXPECT_EQ(height, 5u);
  EXPECT_EQ(src_pitch, 40u);
  EXPECT_EQ(dst_pitch, 12u);
}

TEST(StridedBlockTest, ATransposeIsNeither) {
  const BlockPair pair = make_block_pair(Shape{3, 5}, Shape{1, 3}, Shape{5, 1}, 4);
  std::size_t unused = 0;
  EXPECT_FALSE(pair.contiguous());
  EXPECT_FALSE(pair.rows(&unused, &unused, &unused, &unused));
}

TEST(StridedBlockTest, SizeOneDimensionsDoNotCount) {
  const BlockPair pair = make_block_pair(Shape{1, 6, 1}, Shape{999, 1, 7}, Shape{6, 1, 1}, 2);
  EXPECT_TRUE(pair.contiguous());
}

TEST(StridedBlockTest, TooManyDimensionsAreRefused) {
  const Shape sizes(9, 2);
  Shape src, dst;
  for (int d = 0; d < 9; ++d) {
    src.push_back(1 << (2 * d));
    dst.push_back(1 << (2 * (8 - d)));
  }
  EXPECT_THROW(make_block_pair(sizes, src, dst, 1), InvalidArgument);
}

TEST(StridedBlockTest, HostCopiesMatchIndexArithmetic) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    const std::size_t element = std::size_t{1} << (random() % 5);
    const int ndim = static_cast<int>(random() % 4);
    Shape sizes, order(static_cast<std::size_t>(ndim));
    for (int d = 0; d < ndim; ++d) sizes.push_back(1 + random() % 4);
    const auto strides = [&] {
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      Shape result(static_cast<std::size_t>(ndim));
      std::int64_t stride = 1;
      for (const std::int64_t d : order) {
        result[static_cast<std::size_t>(d)] = stride;
        stride *= sizes[static_cast<std::size_t>(d)] + random() % 2;
      }
      return result;
    };
    const Shape src_strides = strides();
    const Shape dst_strides = strides();
    std::vector<unsigned char> src(16 * 5 * 5 * 5 * 5), dst(src.size(), 0xEE);
    for (auto& byte : src) byte = static_cast<unsigned char>(random());
    std::vector<unsigned char> expected = dst;
    const BlockPair pair = make_block_pair(sizes, src_strides, dst_strides, element);
    for (std::int64_t i = 0; i < pair.element_count; ++i) {
      std::int64_t rest = i, from = 0, to = 0;
      for (int d = ndim - 1; d >= 0; --d) {
        const auto at = static_cast<std::size_t>(d);
        from += rest % sizes[at] * src_strides[at];
        to += rest % sizes[at] * dst_strides[at];
        rest /= sizes[at];
      }
      std::memcpy(expected.data() + to * element, src.data() + from * element, element);
    }
    copy_on_host(pair, dst.data(), src.data());
    ASSERT_EQ(dst, expected);
  }
}

TEST(StridedBlockTest, TheRunsAreTheBlockInOrder) {
  const BlockPair pair = make_block_pair(Shape{2, 3, 4}, Shape{100, 10, 1}, Shape{12, 4, 1}, 2);
  EXPECT_EQ(pair.run_count(), 6);
  EXPECT_EQ(pair.run_nbytes(), 8U);
  std::vector<std::pair<std::int64_t, std::int64_t>> runs;
  pair.for_each_run([&](std::int64_t src, std::int64_t dst) { runs.emplace_back(src, dst); });
  const std::vector<std::pair<std::int64_t, std::int64_t>> expected{
      {0, 0}, {20, 8}, {40, 16}, {200, 24}, {220, 32}, {240, 40}};
  EXPECT_EQ(runs, expected);
}

TEST(StridedBlockTest, ADenseBlockIsOneRunAndATransposeOneAnElement) {
  EXPECT_EQ(make_block_pair(Shape{3, 4}, Shape{4, 1}, Shape{4, 1}, 8).run_count(), 1);
  EXPECT_EQ(make_block_pair(Shape{1}, Shape{1}, Shape{1}, 8).run_nbytes(), 8U);
  const BlockPair transpose = make_block_pair(Shape{3, 5}, Shape{1, 3}, Shape{5, 1}, 4);
  EXPECT_EQ(transpose.run_count(), 15);
  EXPECT_EQ(transpose.run_nbytes(), 4U);
}

TEST(StridedBlockTest, ElementsAreWidenedAsFarAsEverythingAllows) {
  alignas(16) static char memory[256];
  const BlockPair rows = make_block_pair(Shape{5, 8}, Shape{16, 1}, Shape{32, 1}, 4);
  EXPECT_EQ(widened(rows, memory, memory).element_nbytes, 16U);
  EXPECT_EQ(widened(rows, memory, memory).element_count, 10);
  EXPECT_EQ(widened(rows, memory, memory).nbytes(), rows.nbytes());
  EXPECT_EQ(widened(rows, memory + 8, memory).element_nbytes, 8U);
  EXPECT_EQ(widened(rows, memory, memory + 4).element_nbytes, 4U);
  // An odd number of elements in a row, and a pitch that is no multiple.
  EXPECT_EQ(widened(make_block_pair(Shape{5, 6}, Shape{16, 1}, Shape{32, 1}, 4), memory, memory)
                .element_nbytes,
            8U);
  EXPECT_EQ(widened(make_block_pair(Shape{5, 8}, Shape{13, 1}, Shape{32, 1}, 4), memory, memory)
                .element_nbytes,
            4U);
  // Elements with gaps between them.
  EXPECT_EQ(
      widened(make_block_pair(Shape{8}, Shape{2}, Shape{1}, 4), memory, memory).element_nbytes, 4U);
}

TEST(StridedBlockTest, AWidenedBlockIsTheSameBytes) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    const auto pick = [&](std::int64_t from, std::int64_t to) {
      return from + static_cast<std::int64_t>(random() % static_cast<unsigned>(to - from + 1));
    };
    const std::size_t element = std::size_t{1} << (random() % 4);
    const std::int64_t width = pick(1, 12);
    const std::int64_t height = pick(1, 5);
    const std::int64_t src_pitch = width + pick(0, 5);
    const std::int64_t dst_pitch = width + pick(0, 5);
    const BlockPair pair =
        make_block_pair(Shape{height, width}, Shape{src_pitch, 1}, Shape{dst_pitch, 1}, element);
    alignas(16) std::array<unsigned char, 1024> src;
    alignas(16) std::array<unsigned char, 1024> plain{};
    alignas(16) std::array<unsigned char, 1024> wide{};
    for (unsigned char& byte : src) byte = static_cast<unsigned char>(random());
    copy_on_host(pair, plain.data(), src.data());
    copy_on_host(widened(pair, wide.data(), src.data()), wide.data(), src.data());
    ASSERT_EQ(plain, wide);
  }
}

}  // namespace
}  // namespace staging
