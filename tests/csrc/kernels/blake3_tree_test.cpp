#include "kernels/blake3_tree.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "kernels/blake3_tree.cuh"
#include "support/scripted_runtime.h"

namespace staging::kernels {
namespace {

bool operator==(const Blake3Node& a, const Blake3Node& b) {
  return std::memcmp(a.words, b.words, sizeof(a.words)) == 0;
}

std::vector<Blake3Node> random_nodes(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Blake3Node> nodes(count);
  for (Blake3Node& node : nodes) {
    for (std::uint32_t& word : node.words) word = random();
  }
  return nodes;
}

// The tree as the specification defines it: the left side of a parent is the largest power of
// two that leaves something to the right.
Blake3Node subtree(const Blake3Node* nodes, std::size_t count, bool root) {
  if (count == 1) return nodes[0];
  std::size_t left = 1;
  while (2 * left < count) left *= 2;
  return blake3_parent(subtree(nodes, left, false), subtree(nodes + left, count - left, false),
                       root ? kBlake3Root : 0);
}

TEST(Blake3Tree, MatchesTheSpecificationsTree) {
  testing::ScriptedRuntime runtime;
  runtime.set_eager(true);
  for (const std::uint32_t count : {2U, 3U, 5U, 255U, 256U, 257U, 511U, 600U, 1023U, 1024U}) {
    const std::vector<Blake3Node> nodes = random_nodes(count, count);
    Blake3Node digest{};
    Blake3TreeParams params{nodes.data(), nullptr, &digest, 1, {{0, count, 0, 0}}};
    launch_blake3_tree(runtime, 0, nullptr, 1, params);
    EXPECT_TRUE(digest == subtree(nodes.data(), count, true)) << count;
  }
}

TEST(Blake3Tree, LeavesOneNodeABlockOfALongSegment) {
  testing::ScriptedRuntime runtime;
  runtime.set_eager(true);
  const std::vector<Blake3Node> nodes = random_nodes(3 + 2500 + 2, 1);
  std::vector<Blake3Node> parents(5), digests(2);
  Blake3TreeParams params{nodes.data(),
                          parents.data(),
                          digests.data(),
                          3,
                          {{0, 3, 0, 1}, {3, 2500, 1, 9}, {2503, 2, 4, 0}}};
  launch_blake3_tree(runtime, 0, nullptr, 5, params);
  EXPECT_TRUE(digests[1] == subtree(&nodes[0], 3, true));
  EXPECT_TRUE(digests[0] == subtree(&nodes[2503], 2, true));
  EXPECT_TRUE(parents[1] == subtree(&nodes[3], 1024, false));
  EXPECT_TRUE(parents[2] == subtree(&nodes[3 + 1024], 1024, false));
  EXPECT_TRUE(parents[3] == subtree(&nodes[3 + 2048], 452, false));
}

}  // namespace
}  // namespace staging::kernels
