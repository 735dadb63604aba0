#include "transfer/strided_block.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace staging
