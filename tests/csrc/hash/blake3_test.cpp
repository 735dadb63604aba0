#include "hash/blake3.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "hash/blake3_vectors.h"

namespace staging {
namespace {

using testing::blake3_pattern;
using testing::blake3_vectors;
using testing::hex;

TEST(Blake3, MatchesTheOfficialVectors) {
  const auto vectors = blake3_vectors();
  ASSERT_EQ(vectors.size(), 35U);
  for (const auto& vector : vectors) {
    const std::vector<unsigned char> input = blake3_pattern(vector.input_nbytes);
    EXPECT_EQ(hex(blake3(input.data(), input.size())), vector.hash) << vector.input_nbytes;
  }
}

TEST(Blake3, DoesNotDependOnHowTheInputIsCut) {
  const std::vector<unsigned char> input = blake3_pattern(40'000);
  const Blake3Digest whole = blake3(input.data(), input.size());
  for (const unsigned seed : {1U, 2U, 3U, 4U}) {
    std::mt19937 random(seed);
    for (const std::size_t longest : {1UL, 3UL, 64UL, 1025UL, 5000UL}) {
      Blake3 hasher;
      for (std::size_t at = 0; at < input.size();) {
        const std::size_t part = std::min(
            input.size() - at, std::uniform_int_distribution<std::size_t>(0, longest)(random));
        hasher.update(input.data() + at, part);
        at += part;
      }
      EXPECT_EQ(hasher.digest(), whole) << "seed " << seed << ", parts up to " << longest;
    }
  }
}

TEST(Blake3, GoesOnAfterADigest) {
  const std::vector<unsigned char> input = blake3_pattern(5000);
  Blake3 hasher;
  hasher.update(input.data(), 2048);
  const Blake3 copy = hasher;
  EXPECT_EQ(hasher.digest(), blake3(input.data(), 2048));
  hasher.update(input.data() + 2048, input.size() - 2048);
  EXPECT_EQ(hasher.digest(), blake3(input.data(), input.size()));
  EXPECT_EQ(copy.digest(), blake3(input.data(), 2048));
}

}  // namespace
}  // namespace staging
