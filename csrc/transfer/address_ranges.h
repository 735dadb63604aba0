// A set of bytes in memory, as ranges of addresses.
//
// Purpose: tells whether operations may be carried out in any order.
// Owner: a value. Thread-safety: none of its own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <map>

namespace staging {

class AddressRanges {
 public:
  bool overlaps(const void* pointer, std::size_t nbytes) const {
    const Address begin = static_cast<Address>(pointer);
    const auto next = ranges_.upper_bound(begin);
    if (next != ranges_.begin() && before_(begin, std::prev(next)->second)) return nbytes > 0;
    return next != ranges_.end() && before_(next->first, begin + nbytes);
  }

  // Ranges that touch become one.
  void add(const void* pointer, std::size_t nbytes) {
    if (nbytes == 0) return;
    Address begin = static_cast<Address>(pointer);
    Address end = begin + nbytes;
    auto it = ranges_.upper_bound(begin);
    if (it != ranges_.begin() && !before_(std::prev(it)->second, begin)) --it;
    while (it != ranges_.end() && !before_(end, it->first)) {
      begin = std::min(begin, it->first, before_);
      end = std::max(end, it->second, before_);
      it = ranges_.erase(it);
    }
    ranges_.emplace(begin, end);
  }

  // Calls visit(begin, nbytes) for each run of bytes of the range that is not in the set.
  template <typename Visit>
  void for_each_gap(const void* pointer, std::size_t nbytes, Visit visit) const {
    Address begin = static_cast<Address>(pointer);
    const Address end = begin + nbytes;
    auto it = ranges_.upper_bound(begin);
    if (it != ranges_.begin()) begin = std::max(begin, std::prev(it)->second, before_);
    for (; it != ranges_.end() && before_(it->first, end); ++it) {
      if (before_(begin, it->first)) visit(begin, static_cast<std::size_t>(it->first - begin));
      begin = it->second;
    }
    if (before_(begin, end)) visit(begin, static_cast<std::size_t>(end - begin));
  }

  void clear() noexcept { ranges_.clear(); }
  std::size_t count() const noexcept { return ranges_.size(); }

 private:
  using Address = const std::byte*;
  [[no_unique_address]] std::less<Address> before_;
  std::map<Address, Address, std::less<Address>> ranges_;  // begin -> end
};

}  // namespace staging
