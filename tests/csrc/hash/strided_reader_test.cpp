#include "hash/strided_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "hash/blake3_vectors.h"
#include "hash/gather.h"
#include "support/error.h"

namespace staging {
namespace {

using testing::blake3_pattern;
using testing::gather;

std::vector<unsigned char> read_all(StridedReader& reader, std::size_t capacity) {
  std::vector<unsigned char> bytes;
  std::vector<std::byte> block(capacity);
  while (const std::size_t nbytes = reader.read(block.data(), capacity)) {
    EXPECT_LE(nbytes, capacity);
    const auto* begin = reinterpret_cast<const unsigned char*>(block.data());
    bytes.insert(bytes.end(), begin, begin + nbytes);
  }
  return bytes;
}

TEST(StridedReader, ReadsAnyStridesInLogicalOrder) {
  const std::vector<unsigned char> input = blake3_pattern(1 << 20);
  for (unsigned seed = 0; seed < 1000; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](unsigned n) { return static_cast<std::int64_t>(random() % n); };
    const std::int64_t element = std::int64_t{1} << below(5);
    std::vector<std::int64_t> sizes, strides;
    for (std::int64_t d = below(6); d > 0; --d) {
      sizes.push_back(below(8) == 0 ? 0 : 1 + below(9));
      strides.push_back(element * below(40));
    }
    const StridedBytes tensor{input.data() + below(16), element, sizes, strides};
    StridedReader reader(tensor);
    const std::size_t capacity = static_cast<std::size_t>(32 * (1 + below(40)));
    EXPECT_EQ(read_all(reader, capacity), gather(tensor)) << "seed " << seed;
  }
}

TEST(StridedReader, ReadsTransposesOfEveryWidth) {
  const std::vector<unsigned char> input = blake3_pattern(1 << 20);
  for (const std::int64_t element : {1, 2, 4, 8, 16}) {
    for (const std::int64_t rows : {1, 3, 64, 65, 130}) {
      for (const std::int64_t columns : {2, 7, 64, 100}) {
        const std::vector<std::int64_t> sizes{2, rows, columns};
        const std::vector<std::int64_t> strides{element * rows * columns, element, element * rows};
        const StridedBytes tensor{input.data(), element, sizes, strides};
        for (const std::size_t capacity : {32UL, 4096UL, 1UL << 18}) {
          StridedReader reader(tensor);
          EXPECT_EQ(read_all(reader, capacity), gather(tensor))
              << rows << " x " << columns << " of " << element << " bytes, " << capacity;
        }
      }
    }
  }
}

TEST(StridedReader, ReadsPermutationsOfThreeDimensions) {
  const std::vector<unsigned char> input = blake3_pattern(1 << 20);
  for (const std::int64_t element : {1, 2, 4, 16}) {
    std::vector<std::int64_t> order{0, 1, 2};
    const std::vector<std::int64_t> shape{70, 5, 37};
    const std::vector<std::int64_t> dense{5 * 37 * element, 37 * element, element};
    do {
      std::vector<std::int64_t> sizes, strides;
      for (const std::int64_t d : order) {
        sizes.push_back(shape[d]);
        strides.push_back(dense[d]);
      }
      const StridedBytes tensor{input.data(), element, sizes, strides};
      for (const std::size_t capacity : {64UL, 1024UL, 5000UL / 32 * 32, 1UL << 19}) {
        StridedReader reader(tensor);
        EXPECT_EQ(read_all(reader, capacity), gather(tensor))
            << order[0] << order[1] << order[2] << ", " << element << " bytes, " << capacity;
      }
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST(StridedReader, FlipsTheSignsOfParts) {
  const std::vector<unsigned char> input = blake3_pattern(4096);
  const std::vector<std::int64_t> sizes{10, 7}, strides{8, 80};
  const StridedBytes tensor{input.data(), 8, sizes, strides};
  for (const bool even : {false, true}) {
    for (const bool odd : {false, true}) {
      StridedReader reader(tensor, {4, even, odd});
      std::vector<unsigned char> expected = gather(tensor);
      for (std::size_t i = 0; i < expected.size(); i += 8) {
        if (even) expected[i + 3] ^= 0x80;
        if (odd) expected[i + 7] ^= 0x80;
      }
      EXPECT_EQ(read_all(reader, 96), expected);
    }
  }
}

TEST(StridedReader, RefusesACapacityThatCutsElements) {
  const std::vector<std::int64_t> sizes{4}, strides{2};
  StridedReader reader({blake3_pattern(16).data(), 1, sizes, strides});
  std::byte out[64];
  EXPECT_THROW(reader.read(out, 33), InvalidArgument);
  EXPECT_THROW(reader.read(out, 0), InvalidArgument);
}

}  // namespace
}  // namespace staging
