#include "transfer/graph_slot.h"

#include <cstring>
#include <utility>

#include "support/error.h"
#include "transfer/pinned_copy.h"

namespace staging {

// A captured copy: the event that each replay records behind it. Released by
// DeviceContext::reap(), not by the graph's destructor, which may not call the runtime.
struct GraphSlot::Read {
  Read(Runtime& runtime, int device)
      : runtime(runtime), device(device), event(runtime.create_event(device, /*timing=*/false)) {}
  Read(const Read&) = delete;  // owns the event
  Read& operator=(const Read&) = delete;
  ~Read() {
    if (!Runtime::forked() && !runtime.context_lost()) runtime.destroy_event(device, event);
  }
  bool complete() const { return runtime.query_event(device, event); }

  Runtime& runtime;
  const int device;
  const EventHandle event;
};

GraphSlot::GraphSlot(DeviceContext& context, std::size_t nbytes)
    : context_(context), block_(context.pool().allocate(nbytes, context.device())) {}

void GraphSlot::capture(StreamRef stream, void* dst, std::size_t nbytes,
                        std::shared_ptr<void> keep) {
  Runtime& runtime = context_.runtime();
  struct Kept {
    std::shared_ptr<GraphSlot> slot;
    std::shared_ptr<Read> read;
    std::shared_ptr<void> device_array;
  };
  auto kept = std::make_shared<Kept>(
      Kept{shared_from_this(), std::make_shared<Read>(runtime, stream.device), std::move(keep)});
  // The graph holds everything before it has a node that uses it.
  context_.retain_in_graph(stream, kept);
  reads_.push_back(kept->read);
  copy_pinned_async(context_.pool(), stream, dst, block_.data(), nbytes, CopyKind::kHostToDevice);
  try {
    runtime.record_external_event(stream.device, kept->read->event, stream.handle);
  } catch (...) {
    poisoned_ = true;
    throw;
  }
}

std::vector<std::shared_ptr<GraphSlot::Read>> GraphSlot::reads() {
  std::vector<std::shared_ptr<Read>> alive;
  std::erase_if(reads_, [&](const std::weak_ptr<Read>& weak) {
    std::shared_ptr<Read> read = weak.lock();
    if (read == nullptr) return true;
    alive.push_back(std::move(read));
    return false;
  });
  return alive;
}

bool GraphSlot::wait() {
  bool waited = false;
  for (const std::shared_ptr<Read>& read : reads()) {
    if (read->complete()) continue;
    waited = true;
    poll_until([&] { return read->complete(); });
  }
  return waited;
}

void GraphSlot::wait_on(StreamRef stream) {
  for (const std::shared_ptr<Read>& read : reads()) {
    if (!read->complete()) {
      context_.runtime().stream_wait_event(stream.device, stream.handle, read->event);
    }
  }
}

void GraphSlot::write(const void* src, std::size_t nbytes) noexcept {
  std::memcpy(block_.data(), src, nbytes);
}

}  // namespace staging
