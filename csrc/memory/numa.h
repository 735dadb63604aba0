// NUMA nodes: what the system says, and where a mapping's pages come from.
//
// Owner: nobody; functions. Thread-safety: any thread.
// Source: Linux' mbind(2), called directly so that libnuma is not needed, and
//   /sys/devices/system/node.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace staging {

inline constexpr int kAnyNode = -1;

// The nodes of a list such as "0-3,8" (the format of cpulist_parse in the kernel). What is
// malformed is skipped.
std::vector<int> parse_node_list(std::string_view text);

// The nodes that are online; {0} where the system does not say.
const std::vector<int>& online_nodes();

// The node of the page that `pointer` is in, or kAnyNode where the system does not say (no
// NUMA, or the page has not been touched).
int node_of(const void* pointer) noexcept;

// Asks for the pages of a mapping, none of which may have been touched, to come from `node`,
// and from another only when it is full. False where the system refuses (a sandbox, an
// unknown node): the mapping is as good as before, only its place is the kernel's choice.
bool prefer_node(void* begin, std::size_t nbytes, int node) noexcept;

}  // namespace staging
