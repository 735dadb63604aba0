// How long something takes: the median of several rounds.
//
// Owner: nothing. Thread-safety: one thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace staging::benchmarks {

// Of the rounds' means the median, in nanoseconds an operation.
template <typename Operation>
double nanoseconds(Operation operation, int operations = 20'000) {
  constexpr int kRounds = 21;
  std::vector<double> means;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < operations; ++i) operation();
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    means.push_back(took.count() / operations);
  }
  std::nth_element(means.begin(), means.begin() + kRounds / 2, means.end());
  return means[kRounds / 2];
}

}  // namespace staging::benchmarks
