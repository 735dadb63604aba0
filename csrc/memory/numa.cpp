#include "memory/numa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <climits>
#include <fstream>
#include <string>

namespace staging {

namespace {

// <linux/mempolicy.h>; numaif.h belongs to libnuma.
constexpr int kMpolPreferred = 1;
constexpr unsigned long kMpolFlagNode = 1UL << 0;  // get_mempolicy: return a node …
constexpr unsigned long kMpolFlagAddr = 1UL << 1;  // … that of an address
constexpr int kMaxNodes = 1024;
constexpr int kBitsPerWord = sizeof(unsigned long) * CHAR_BIT;

}  // namespace

std::vector<int> parse_node_list(std::string_view text) {
  std::vector<int> nodes;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view{} : text.substr(comma + 1);

    int first = 0;
    auto [rest, error] = std::from_chars(part.data(), part.data() + part.size(), first);
    if (error != std::errc{}) continue;
    int last = first;
    if (rest != part.data() + part.size() && *rest == '-') {
      if (std::from_chars(rest + 1, part.data() + part.size(), last).ec != std::errc{}) continue;
    }
    for (int node = first; node <= last && node < kMaxNodes; ++node) nodes.push_back(node);
  }
  return nodes;
}

const std::vector<int>& online_nodes() {
  static const std::vector<int> nodes = [] {
    std::ifstream file("/sys/devices/system/node/online");
    std::string line;
    std::getline(file, line);
    std::vector<int> online = parse_node_list(line);
    if (online.empty()) online.push_back(0);
    return online;
  }();
  return nodes;
}

int node_of(const void* pointer) noexcept {
  int node = kAnyNode;
  const long result =
      syscall(SYS_get_mempolicy, &node, nullptr, 0UL, pointer, kMpolFlagNode | kMpolFlagAddr);
  return result == 0 ? node : kAnyNode;
}

bool prefer_node(void* begin, std::size_t nbytes, int node) noexcept {
  if (node < 0 || node >= kMaxNodes) return false;
  std::array<unsigned long, kMaxNodes / kBitsPerWord> mask{};
  mask[static_cast<std::size_t>(node / kBitsPerWord)] = 1UL << (node % kBitsPerWord);
  // The kernel reads one bit less than it is told.
  return syscall(SYS_mbind, begin, nbytes, kMpolPreferred, mask.data(),
                 static_cast<unsigned long>(kMaxNodes), 0UL) == 0;
}

}  // namespace staging
