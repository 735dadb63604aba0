#include "transfer/event_notifier.h"

#include <algorithm>
#include <utility>

#include "runtime/device_scope.h"

namespace staging {

EventNotifier::~EventNotifier() {
  // Tests only. A lane with a callback to come is leaked with its stream.
  for (std::unique_ptr<Lane>& lane : lanes_) {
    if (lane->pending.load(std::memory_order_acquire) != 0 || runtime_.context_lost()) {
      lane.release();  // NOLINT
    } else {
      runtime_.destroy_stream(device_, lane->stream);
    }
  }
}

EventNotifier::Lane& EventNotifier::lane_for(StreamRef source, std::uint64_t sequence) {
  const auto take = [&](Lane& lane) -> Lane& {
    lane.source = source;
    lane.sequence = sequence;
    lane.pending.fetch_add(1, std::memory_order_relaxed);
    return lane;
  };
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& lane : lanes_) {
      if (lane->source == source && lane->sequence <= sequence) return take(*lane);
    }
    for (const auto& lane : lanes_) {
      if (lane->pending.load(std::memory_order_acquire) == 0) return take(*lane);
    }
    if (lanes_.size() >= kMaxLanes) {
      return take(
          **std::min_element(lanes_.begin(), lanes_.end(), [](const auto& a, const auto& b) {
            return a->pending.load(std::memory_order_relaxed) <
                   b->pending.load(std::memory_order_relaxed);
          }));
    }
  }
  auto lane = std::make_unique<Lane>();
  lane->stream = runtime_.create_stream(device_);
  const std::lock_guard<std::mutex> lock(mutex_);
  lanes_.push_back(std::move(lane));
  return take(*lanes_.back());
}

void EventNotifier::notify(const Event& event, std::uint64_t sequence,
                           std::shared_ptr<CompletionQueue> queue, std::uint64_t token) {
  Runtime::check_not_forked();
  const DeviceScope scope(runtime_, device_);
  queue->expect();
  Lane& lane = lane_for(event.recorded_on(), sequence);
  auto call = std::make_unique<Call>(Call{std::move(queue), token, &lane});
  try {
    runtime_.stream_wait_event(device_, lane.stream, event.handle());
    runtime_.launch_host_function(device_, lane.stream, &run, call.get());
    call.release();  // NOLINT: run() deletes it
  } catch (...) {
    lane.pending.fetch_sub(1, std::memory_order_release);
    throw;
  }
}

void EventNotifier::run(void* argument) noexcept {
  const std::unique_ptr<Call> call(static_cast<Call*>(argument));
  // The last use of the lane; the queue outlives this by the reference.
  call->lane->pending.fetch_sub(1, std::memory_order_release);
  call->queue->push(call->token);
}

std::size_t EventNotifier::lanes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return lanes_.size();
}

}  // namespace staging
