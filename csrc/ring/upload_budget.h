// What the upload rings of one device may have in flight together.
//
// Purpose: bounds pinned memory for each device, however many streams copy to it, while a stalled
//   stream holds up nobody else.
// Owner: the device's context; it outlives the rings. Thread-safety: all of it, from any thread.
//
// Invariants:
//   * A copy of n bytes goes in flight where all rings then have at most max(limit, 2n), or its
//     own ring has at most max(kShareNbytes, n).
//   * So a ring that is refused has something of its own in flight. It waits for that, and never
//     for another stream.
//   * All rings together have at most the limit, and a share for each stream with copies in
//     flight.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <utility>

namespace staging {

class UploadRing;

class UploadBudget {
 public:
  // What each stream may have in flight, whatever the others have.
  static constexpr std::size_t kShareNbytes = std::size_t{64} << 10;
  static constexpr std::size_t kDefaultLimitNbytes = std::size_t{64} << 20;
  static constexpr std::size_t kMinLimitNbytes = std::size_t{256} << 10;

  // `settle_others(ring)` takes note of what the other rings' streams have completed. It may ask
  // the runtime, and is called without a lock.
  explicit UploadBudget(std::size_t limit_nbytes = kDefaultLimitNbytes,
                        std::function<void(const UploadRing&)> settle_others = {})
      : limit_nbytes_(limit_nbytes), settle_others_(std::move(settle_others)) {}
  UploadBudget(const UploadBudget&) = delete;  // rings point to it
  UploadBudget& operator=(const UploadBudget&) = delete;

  std::size_t limit() const noexcept { return limit_nbytes_.load(std::memory_order_relaxed); }
  void set_limit(std::size_t nbytes) noexcept {
    limit_nbytes_.store(std::max(nbytes, kMinLimitNbytes), std::memory_order_relaxed);
  }

  // Takes `nbytes` more for a ring that has `own` in flight; false, and nothing is taken, where
  // that is too much.
  bool take(std::size_t own, std::size_t nbytes) noexcept {
    const std::size_t total = in_flight_.fetch_add(nbytes, std::memory_order_relaxed) + nbytes;
    if (total <= shared_limit(nbytes) || own + nbytes <= share(nbytes)) return true;
    give_back(nbytes);
    return false;
  }
  // The same without asking: it is in flight already.
  void add(std::size_t nbytes) noexcept { in_flight_.fetch_add(nbytes, std::memory_order_relaxed); }
  void give_back(std::size_t nbytes) noexcept {
    in_flight_.fetch_sub(nbytes, std::memory_order_relaxed);
  }

  // How much more a ring may take that has `own` in flight and holds `kept` (at least `own`) for
  // it, the copy at hand being of `nbytes`.
  std::size_t room(std::size_t own, std::size_t kept, std::size_t nbytes) const noexcept {
    const auto left = [](std::size_t limit, std::size_t used) {
      return limit > used ? limit - used : 0;
    };
    return std::max(left(shared_limit(nbytes), others(own) + kept), left(share(nbytes), kept));
  }
  // Whether the other rings' copies are why a ring that has `own` cannot have `nbytes` more.
  bool held_by_others(std::size_t own, std::size_t nbytes) const noexcept {
    const std::size_t others_nbytes = others(own);
    return others_nbytes > 0 && others_nbytes + own + nbytes > shared_limit(nbytes);
  }
  void settle_others(const UploadRing& ring) const {
    if (settle_others_) settle_others_(ring);
  }

 private:
  std::size_t shared_limit(std::size_t nbytes) const noexcept {
    return std::max(limit(), 2 * nbytes);
  }
  static std::size_t share(std::size_t nbytes) noexcept { return std::max(kShareNbytes, nbytes); }
  std::size_t others(std::size_t own) const noexcept {
    const std::size_t total = in_flight_.load(std::memory_order_relaxed);
    return total > own ? total - own : 0;
  }

  std::atomic<std::size_t> limit_nbytes_;
  std::atomic<std::size_t> in_flight_{0};
  const std::function<void(const UploadRing&)> settle_others_;
};

}  // namespace staging
