#include "transfer/strided_overlap.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "transfer/strided_block.h"

namespace staging {

namespace {

// stride * count, for each count in 0..most.
struct Term {
  std::int64_t stride;
  std::int64_t most;
};

// Sums of terms, one count for each.
class Sums {
 public:
  void add(std::int64_t stride, std::int64_t most) {
    if (stride > 0 && most > 0) terms_[count_++] = {stride, most};
  }

  // Whether one of them is `target`; true where that is not known.
  bool reach(std::int64_t target) {
    if (target < 0) return false;
    std::sort(terms_.begin(), terms_.begin() + count_,
              [](const Term& a, const Term& b) { return a.stride < b.stride; });
    merge();
    largest_[0] = divisor_[0] = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      largest_[i + 1] = largest_[i] + terms_[i].stride * terms_[i].most;
      divisor_[i + 1] = std::gcd(divisor_[i], terms_[i].stride);
    }
    steps_ = 0;
    return reach(target, count_);
  }

 private:
  // Terms whose sums are those of one term become that: equal strides, or one that is a multiple
  // of another whose counts reach it (the elements of a run, the rows of a dense block).
  void merge() {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      if (kept > 0) {
        Term& last = terms_[kept - 1];
        const std::int64_t multiple = terms_[i].stride / last.stride;
        if (terms_[i].stride % last.stride == 0 && last.most + 1 >= multiple) {
          last.most += multiple * terms_[i].most;
          continue;
        }
      }
      terms_[kept++] = terms_[i];
    }
    count_ = kept;
  }

  // With the first `count` terms.
  bool reach(std::int64_t target, std::size_t count) {
    if (target == 0) return true;
    if (target > largest_[count] || target % divisor_[count] != 0) return false;
    if (count == 1) return true;  // a multiple of its stride, and not too large
    const auto& [stride, most] = terms_[count - 1];
    const std::int64_t rest = largest_[count - 1];
    const std::int64_t first = target > rest ? (target - rest + stride - 1) / stride : 0;
    const std::int64_t last = std::min(most, target / stride);
    for (std::int64_t n = first; n <= last; ++n) {
      if (++steps_ > kMaxOverlapSteps || reach(target - n * stride, count - 1)) return true;
    }
    return false;
  }

  // Both blocks' dimensions, and the bytes of an element.
  std::array<Term, 2 * kMaxBlockDims + 1> terms_{};
  std::size_t count_ = 0;
  std::array<std::int64_t, 2 * kMaxBlockDims + 2> largest_{};  // sum of the first i terms
  std::array<std::int64_t, 2 * kMaxBlockDims + 2> divisor_{};  // of every sum of them
  int steps_ = 0;
};

}  // namespace

// a + sum(i * stride) + byte == b + sum(j * stride) + byte: with j counted from the end, and the
// distance of the bytes from -(nbytes - 1), all is added and nothing subtracted.
bool blocks_overlap(std::span<const std::int64_t> sizes, std::size_t element_nbytes,
                    const StridedPlace& a, const StridedPlace& b) {
  const auto last_byte = static_cast<std::int64_t>(element_nbytes) - 1;
  Sums sums;
  sums.add(1, 2 * last_byte);
  auto target = static_cast<std::int64_t>(b.begin - a.begin) + last_byte;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    sums.add(a.strides[d], sizes[d] - 1);
    sums.add(b.strides[d], sizes[d] - 1);
    target += b.strides[d] * (sizes[d] - 1);
  }
  return sums.reach(target);
}

// Two elements that differ do so first in some dimension, where the later one is 1..size - 1
// further; in those behind it each may be ahead.
bool elements_overlap(std::span<const std::int64_t> sizes, std::size_t element_nbytes,
                      std::span<const std::int64_t> strides) {
  const auto last_byte = static_cast<std::int64_t>(element_nbytes) - 1;
  std::array<std::size_t, kMaxBlockDims> order{};
  for (std::size_t d = 0; d < sizes.size(); ++d) {  // by stride, the smallest first
    order[d] = d;
    for (std::size_t i = d; i > 0 && strides[order[i]] < strides[order[i - 1]]; --i) {
      std::swap(order[i], order[i - 1]);
    }
  }
  std::int64_t within = last_byte;  // from an element's first byte to the last of the dimensions
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::size_t d = order[i];
    if (sizes[d] > 1 && strides[d] <= within) {
      Sums sums;
      sums.add(1, 2 * last_byte);
      sums.add(strides[d], sizes[d] - 2);
      std::int64_t target = last_byte - strides[d];
      for (std::size_t j = 0; j < i; ++j) {
        const std::int64_t most = sizes[order[j]] - 1;
        sums.add(strides[order[j]], 2 * most);
        target += strides[order[j]] * most;
      }
      if (sums.reach(target)) return true;
    }
    within += strides[d] * (sizes[d] - 1);
  }
  return false;
}

}  // namespace staging
