// A small seeded generator (SplitMix64: Steele, Lea and Flood, 2014).
//
// Purpose: the same seed gives the same schedule with every standard library.
// Owner: a value. Thread-safety: none.
#pragma once

#include <cstddef>
#include <cstdint>

namespace staging::sim {

class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_(seed) {}

  std::uint64_t next() noexcept {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

  // In [0, bound); the bias for small bounds is far below what a schedule could show.
  std::size_t below(std::size_t bound) noexcept { return next() % bound; }

  // True in `per_1024` of 1024 cases.
  bool chance(unsigned per_1024) noexcept { return (next() & 1023) < per_1024; }

 private:
  std::uint64_t state_;
};

}  // namespace staging::sim
