#include "transfer/strided_overlap.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace staging {
namespace {

using Sizes = std::vector<std::int64_t>;

// The addresses of all bytes, one for each element that has it.
std::vector<std::uintptr_t> addresses(std::uintptr_t begin, const Sizes& sizes,
                                      const Sizes& strides, std::size_t nbytes) {
  std::vector<std::uintptr_t> elements = {begin};
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    std::vector<std::uintptr_t> more;
    for (const std::uintptr_t element : elements) {
      for (std::int64_t i = 0; i < sizes[d]; ++i) {
        more.push_back(element + static_cast<std::uintptr_t>(i * strides[d]));
      }
    }
    elements = std::move(more);
  }
  std::vector<std::uintptr_t> bytes;
  for (const std::uintptr_t element : elements) {
    for (std::size_t i = 0; i < nbytes; ++i) bytes.push_back(element + i);
  }
  return bytes;
}

TEST(StridedOverlapTest, InterleavedColumnsDoNotOverlapAndSharedOnesDo) {
  const Sizes sizes = {4096, 2};
  const Sizes strides = {64, 4};
  EXPECT_FALSE(blocks_overlap(sizes, 4, {1000, strides}, {1016, strides}));
  EXPECT_TRUE(blocks_overlap(sizes, 4, {1000, strides}, {1004, strides}));
  EXPECT_TRUE(blocks_overlap(sizes, 4, {1004, strides}, {1000, strides}));
  EXPECT_TRUE(blocks_overlap(sizes, 4, {1000, strides}, {1000 + 64 * 4095, strides}));
  EXPECT_FALSE(blocks_overlap(sizes, 4, {1000, strides}, {1000 + 64 * 4096, strides}));
  EXPECT_TRUE(blocks_overlap(sizes, 4, {1000, strides}, {1007, strides}));   // a byte
  EXPECT_FALSE(blocks_overlap(sizes, 4, {1000, strides}, {1008, strides}));  // neighbours
}

TEST(StridedOverlapTest, AScalarIsItsBytes) {
  EXPECT_TRUE(blocks_overlap({}, 8, {100, {}}, {107, {}}));
  EXPECT_FALSE(blocks_overlap({}, 8, {100, {}}, {108, {}}));
  EXPECT_FALSE(elements_overlap({}, 8, {}));
}

TEST(StridedOverlapTest, ElementsOfAnExpandedOrUnfoldedBlockShareMemory) {
  EXPECT_TRUE(elements_overlap(Sizes{3, 4}, 4, Sizes{0, 4}));
  EXPECT_TRUE(elements_overlap(Sizes{3, 4}, 4, Sizes{4, 4}));  // windows that slide by one
  EXPECT_FALSE(elements_overlap(Sizes{3, 4}, 4, Sizes{16, 4}));
  EXPECT_FALSE(elements_overlap(Sizes{4, 3}, 4, Sizes{4, 16}));  // transposed
  EXPECT_TRUE(elements_overlap(Sizes{4}, 4, Sizes{2}));
  // They do not nest, and meet nowhere: 3 * 8 and 2 * 12 are out of reach.
  EXPECT_FALSE(elements_overlap(Sizes{3, 2}, 4, Sizes{8, 12}));
  EXPECT_TRUE(elements_overlap(Sizes{4, 3}, 4, Sizes{8, 12}));
}

TEST(StridedOverlapTest, RandomBlocksAgreeWithSetsOfAddresses) {
  std::mt19937 random(7);
  const auto pick = [&](std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random);
  };
  int met = 0;
  int shared = 0;
  for (int round = 0; round < 20'000; ++round) {
    Sizes sizes, a, b;
    for (std::int64_t d = pick(0, 4); d > 0; --d) {
      sizes.push_back(pick(1, 4));
      a.push_back(pick(0, 40));
      b.push_back(pick(0, 40));
    }
    if (pick(0, 1) == 0) b = a;
    const auto nbytes = static_cast<std::size_t>(pick(1, 9));
    const auto begin = static_cast<std::uintptr_t>(1000 + pick(-60, 60));
    const auto of_a = addresses(1000, sizes, a, nbytes);
    const auto of_b = addresses(begin, sizes, b, nbytes);
    const std::set<std::uintptr_t> set_a(of_a.begin(), of_a.end());
    bool meet = false;
    for (const std::uintptr_t byte : of_b) meet |= set_a.count(byte) > 0;
    const bool share = set_a.size() < of_a.size();
    EXPECT_EQ(blocks_overlap(sizes, nbytes, {1000, a}, {begin, b}), meet) << round;
    EXPECT_EQ(elements_overlap(sizes, nbytes, a), share) << round;
    met += meet ? 1 : 0;
    shared += share ? 1 : 0;
  }
  EXPECT_GT(met, 2000);
  EXPECT_LT(met, 18'000);
  EXPECT_GT(shared, 2000);
  EXPECT_LT(shared, 18'000);
}

// Every other element along every dimension of a large tensor, beside those between them.
TEST(StridedOverlapTest, LargeViewsThatNestAreToldApart) {
  const Sizes sizes(8, 50);
  Sizes strides(8);
  std::int64_t stride = 4;
  for (std::size_t d = 8; d-- > 0; stride *= 101) strides[d] = 2 * stride;
  EXPECT_FALSE(blocks_overlap(sizes, 4, {1 << 20, strides}, {(1 << 20) + 4, strides}));
  EXPECT_TRUE(blocks_overlap(sizes, 4, {1 << 20, strides}, {(1 << 20) + 8, strides}));
  EXPECT_FALSE(elements_overlap(sizes, 4, strides));
}

// Strides that nest in no order: to be sure takes as long as the sizes are large.
TEST(StridedOverlapTest, WhatWouldTakeTooLongIsTakenForAnOverlap) {
  const Sizes a = {1'000'000'007, 1'100'000'009, 1'234'567'891, 987'654'323};
  const Sizes b = {1'011'121'313, 1'171'717'171, 1'013'131'313, 999'999'937};
  const std::uintptr_t begin = std::uintptr_t{1} << 40;
  for (const std::int64_t size : {2, 9}) {
    const Sizes sizes(4, size);
    const auto of_a = addresses(begin, sizes, a, 1);
    const std::set<std::uintptr_t> set_a(of_a.begin(), of_a.end());
    for (const std::uintptr_t byte : addresses(begin + 1'234'567, sizes, b, 1)) {
      ASSERT_EQ(set_a.count(byte), 0U);
    }
    EXPECT_EQ(blocks_overlap(sizes, 1, {begin, a}, {begin + 1'234'567, b}), size == 9);
  }
}

}  // namespace
}  // namespace staging
