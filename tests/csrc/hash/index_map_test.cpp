#include "hash/index_map.h"

#include <gtest/gtest.h>

#include "support/error.h"

namespace staging {
namespace {

TEST(IndexMap, JoinsWhatLiesTogether) {
  const std::vector<std::int64_t> sizes{2, 1, 3, 4}, strides{48, 7, 16, 4};
  const IndexMap map({reinterpret_cast<const void*>(0x1000), 4, sizes, strides});
  EXPECT_TRUE(map.contiguous());
  EXPECT_EQ(map.unit_log2, 4);
  EXPECT_EQ(map.nbytes, 96U);
}

TEST(IndexMap, ReadsRowsInTheLargestUnitThatFits) {
  const std::vector<std::int64_t> sizes{5, 12}, strides{64, 2};
  const IndexMap map({reinterpret_cast<const void*>(0x1008), 2, sizes, strides});
  ASSERT_EQ(map.dims.size(), 2U);
  EXPECT_EQ(map.unit_log2, 3);
  EXPECT_EQ(map.dims[0].size, 3);
  EXPECT_EQ(map.dims[0].stride_nbytes, 8);
  EXPECT_EQ(map.dims[1].size, 5);
}

TEST(IndexMap, OfARepeatedElementHasOneDimension) {
  const std::vector<std::int64_t> sizes{5, 12}, strides{0, 0};
  const IndexMap map({reinterpret_cast<const void*>(0x1000), 4, sizes, strides});
  ASSERT_EQ(map.dims.size(), 1U);
  EXPECT_EQ(map.dims[0].size, 60);
}

TEST(IndexMap, RefusesWhatIsNoTensor) {
  const std::vector<std::int64_t> sizes{2, 3}, negative{-2, 3}, strides{3, 1}, back{3, -1};
  EXPECT_THROW(IndexMap({nullptr, 1, negative, strides}), InvalidArgument);
  EXPECT_THROW(IndexMap({nullptr, 1, sizes, back}), InvalidArgument);
  EXPECT_THROW(IndexMap({nullptr, 1, sizes, std::span(strides).first(1)}), InvalidArgument);
  EXPECT_THROW(IndexMap({nullptr, 0, sizes, strides}), InvalidArgument);
}

}  // namespace
}  // namespace staging
