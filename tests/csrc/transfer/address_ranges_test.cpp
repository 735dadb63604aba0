#include "transfer/address_ranges.h"

#include <gtest/gtest.h>

#include <bitset>
#include <random>

namespace staging {
namespace {

const std::byte memory[256]{};

TEST(AddressRanges, NothingOverlapsAnEmptySet) {
  EXPECT_FALSE(AddressRanges().overlaps(memory, 256));
}

TEST(AddressRanges, TouchingIsNotOverlapping) {
  AddressRanges ranges;
  ranges.add(memory + 10, 10);
  EXPECT_FALSE(ranges.overlaps(memory, 10));
  EXPECT_FALSE(ranges.overlaps(memory + 20, 5));
  EXPECT_TRUE(ranges.overlaps(memory, 11));
  EXPECT_TRUE(ranges.overlaps(memory + 19, 1));
  EXPECT_TRUE(ranges.overlaps(memory + 12, 2));
  EXPECT_TRUE(ranges.overlaps(memory, 256));
}

TEST(AddressRanges, NoBytesOverlapNothing) {
  AddressRanges ranges;
  ranges.add(memory + 10, 10);
  ranges.add(memory + 40, 0);
  EXPECT_FALSE(ranges.overlaps(memory + 15, 0));
  EXPECT_FALSE(ranges.overlaps(memory + 10, 0));
  EXPECT_EQ(ranges.count(), 1U);
}

TEST(AddressRanges, RangesThatTouchBecomeOne) {
  AddressRanges ranges;
  ranges.add(memory + 0, 10);
  ranges.add(memory + 20, 10);
  EXPECT_EQ(ranges.count(), 2U);
  ranges.add(memory + 10, 10);
  EXPECT_EQ(ranges.count(), 1U);
  ranges.add(memory + 5, 3);
  EXPECT_EQ(ranges.count(), 1U);
}

TEST(AddressRanges, ItAgreesWithASetOfBytes) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    AddressRanges ranges;
    std::bitset<256> bytes;
    for (int step = 0; step < 60; ++step) {
      const std::size_t begin = random() % 250;
      const std::size_t nbytes = random() % std::min<std::size_t>(12, 256 - begin);
      bool expected = false;
      for (std::size_t i = begin; i < begin + nbytes; ++i) expected = expected || bytes[i];
      ASSERT_EQ(ranges.overlaps(memory + begin, nbytes), expected);
      std::bitset<256> gaps;
      ranges.for_each_gap(memory + begin, nbytes, [&](const std::byte* gap, std::size_t size) {
        ASSERT_GT(size, 0U);
        for (std::size_t i = 0; i < size; ++i) {
          const auto at = static_cast<std::size_t>(gap - memory) + i;
          ASSERT_FALSE(gaps[at]);
          gaps.set(at);
        }
      });
      for (std::size_t i = 0; i < 256; ++i) {
        ASSERT_EQ(gaps[i], i >= begin && i < begin + nbytes && !bytes[i]);
      }
      if (random() % 3 == 0) {
        ranges.add(memory + begin, nbytes);
        for (std::size_t i = begin; i < begin + nbytes; ++i) bytes.set(i);
      }
    }
  }
}

}  // namespace
}  // namespace staging
