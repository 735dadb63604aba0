#include "memory/numa.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <vector>

#include "memory/pinned_buffer.h"

namespace staging {
namespace {

using Nodes = std::vector<int>;

TEST(Numa, NodeListsAreReadAsTheKernelWritesThem) {
  EXPECT_EQ(parse_node_list("0"), Nodes({0}));
  EXPECT_EQ(parse_node_list("0-3"), Nodes({0, 1, 2, 3}));
  EXPECT_EQ(parse_node_list("0,2,8-9\n"), Nodes({0, 2, 8, 9}));
}

TEST(Numa, WhatIsMalformedIsSkipped) {
  EXPECT_EQ(parse_node_list(""), Nodes());
  EXPECT_EQ(parse_node_list("x,1,-,2-"), Nodes({1}));
  EXPECT_LT(parse_node_list("0-99999999").size(), 5000U);
}

TEST(Numa, ThereIsAtLeastOneNode) {
  EXPECT_FALSE(online_nodes().empty());
}

TEST(Numa, AnUnknownNodeIsRefusedAndNothingElseHappens) {
  void* page =
      mmap(nullptr, page_nbytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  EXPECT_FALSE(prefer_node(page, page_nbytes(), -1));
  EXPECT_FALSE(prefer_node(page, page_nbytes(), 1 << 20));
  *static_cast<char*>(page) = 1;
  munmap(page, page_nbytes());
}

TEST(Numa, PagesComeFromThePreferredNodeWhereTheSystemGrantsIt) {
  const int node = online_nodes().back();
  void* page =
      mmap(nullptr, page_nbytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  const bool granted = prefer_node(page, page_nbytes(), node);
  *static_cast<char*>(page) = 1;
  const int actual = node_of(page);
  munmap(page, page_nbytes());
  if (!granted || actual == kAnyNode) GTEST_SKIP() << "this system refuses memory policies";
  EXPECT_EQ(actual, node);
}

}  // namespace
}  // namespace staging
