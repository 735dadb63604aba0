// The latest events of a partial order: what comes next must come after all of them.
//
// Purpose: orders operations without a lock that is held across runtime calls. An operation
//   copies the frontier, enqueues itself behind it, and then replaces what it came after by
//   its own event. Two that overlap leave both their events; the next one waits for both.
// Owner: a value; the references keep the events out of their pool. Thread-safety: none of
//   its own, copy it under the owner's lock.
#pragma once

#include <algorithm>
#include <vector>

#include "stream/event.h"

namespace staging {

class EventFrontier {
 public:
  bool empty() const noexcept { return !first_ && more_.empty(); }

  // Makes `stream` wait for every event that was recorded elsewhere.
  void wait_on(StreamRef stream) const {
    for_each([&](const Event& event) {
      if (!(event.recorded_on() == stream)) event.wait_on(stream);
    });
  }
  void synchronize() const {
    for_each([](const Event& event) { event.synchronize(); });
  }
  bool query() const {
    bool complete = true;
    for_each([&](const Event& event) { complete = complete && event.query(); });
    return complete;
  }
  // `event` was enqueued behind all of `before`, a copy of an earlier state.
  void advance(const EventFrontier& before, Event event) {
    remove(before);
    add(std::move(event));
  }
  void add(Event event) {
    if (!first_) {
      first_ = std::move(event);
    } else {
      more_.push_back(std::move(event));
    }
  }
  void remove(const EventFrontier& done) {
    if (first_ && done.contains(first_)) first_ = {};
    if (more_.empty()) return;
    std::erase_if(more_, [&](const Event& event) { return done.contains(event); });
    if (!first_ && !more_.empty()) {
      first_ = std::move(more_.back());
      more_.pop_back();
    }
  }

 private:
  bool contains(const Event& event) const noexcept {
    return first_ == event || std::find(more_.begin(), more_.end(), event) != more_.end();
  }
  template <typename Visit>
  void for_each(Visit visit) const {
    if (first_) visit(first_);
    for (const Event& event : more_) visit(event);
  }

  Event first_;              // nearly always the only one
  std::vector<Event> more_;  // of operations that overlapped
};

}  // namespace staging
