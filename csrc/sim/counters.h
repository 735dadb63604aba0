// How often each entry point was called.
//
// Owner: the process. Thread-safety: atomic counts; a sum over all of them is not a
//   snapshot.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "sim/calls.h"

namespace staging::sim {

class Counters {
 public:
  static void add(CallId id) noexcept {
    counts_[static_cast<std::size_t>(id)].fetch_add(1, std::memory_order_relaxed);
  }
  static std::uint64_t get(CallId id) noexcept {
    return counts_[static_cast<std::size_t>(id)].load(std::memory_order_relaxed);
  }
  static std::uint64_t total() noexcept {
    std::uint64_t sum = 0;
    for (const auto& count : counts_) sum += count.load(std::memory_order_relaxed);
    return sum;
  }

 private:
  static inline constinit std::atomic<std::uint64_t> counts_[kCallCount] = {};
};

}  // namespace staging::sim
