#include "kernels/blake3_chunks.h"

#include <gtest/gtest.h>

#include <set>

#include "kernels/blake3_chunks.cuh"
#include "kernels/registry.h"

namespace staging::kernels {
namespace {

// Eight threads that access 16 bytes each make one pass over the 32 banks if no two of them
// are at the same 16 bytes modulo 128.
template <typename Place>
bool free_of_conflicts(Place place) {
  for (unsigned first = 0; first < 32; first += 8) {
    std::set<unsigned> banks;
    for (unsigned lane = first; lane < first + 8; ++lane) banks.insert(place(lane) % 8);
    if (banks.size() != 8) return false;
  }
  return true;
}

TEST(Blake3Chunks, StagesEachQuadAtAPlaceOfItsOwn) {
  std::set<unsigned> places;
  for (unsigned row = 0; row < 32; ++row) {
    for (unsigned quad = 0; quad < 4; ++quad) places.insert(detail::staged_quad(row, quad));
  }
  EXPECT_EQ(places.size(), 128U);
  EXPECT_EQ(*places.rbegin(), 127U);
}

TEST(Blake3Chunks, SharedMemoryIsAccessedWithoutBankConflicts) {
  for (unsigned i = 0; i < 4; ++i) {
    EXPECT_TRUE(free_of_conflicts(
        [&](unsigned lane) { return detail::staged_quad(lane / 4 + 8 * i, lane % 4); }));
    EXPECT_TRUE(free_of_conflicts([&](unsigned lane) { return detail::staged_quad(lane, i); }));
  }
}

TEST(Blake3Chunks, IsFoundByName) {
  EXPECT_EQ(find_kernel("blake3_chunks_kernel"), &blake3_chunks());
}

}  // namespace
}  // namespace staging::kernels
