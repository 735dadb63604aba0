#include "transfer/buffer_copies.h"

#include "runtime/device_scope.h"
#include "support/error.h"
#include "transfer/upload.h"

namespace staging {

BufferCopies::State BufferCopies::state() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {last_, host_users_, ring_};
}

void BufferCopies::check_not_capturing(StreamRef stream) const {
  if (context_.runtime().capture_status(stream.device, stream.handle) != CaptureStatus::kNone) {
    throw StateError(
        "a CpuGpuBuffer cannot be copied on a stream that captures a CUDA graph: the copy would "
        "read the host array at replay. Copy before the capture, and capture readers of .gpu");
  }
}

void BufferCopies::upload(StreamRef stream, std::size_t nbytes) {
  if (nbytes == 0) return;
  Runtime::check_not_forked();
  const DeviceScope scope(context_.runtime(), stream.device);
  check_not_capturing(stream);
  State before = state();
  if (!before.host_users.empty() && !before.host_users.query()) {
    // A download is in flight: the array holds bytes from before it, and a snapshot would take
    // those. In stream order the copy reads what the download wrote.
    copy_host_array(stream, nbytes, CopyKind::kHostToDevice, before);
    return;
  }
  if (before.ring == nullptr || !(before.ring->stream() == stream)) {
    before.ring = &context_.ring(stream.handle);
  }
  before.last.wait_on(stream);
  Event event = upload_snapshot(context_, *before.ring, device_, host_, nbytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  last_.advance(before.last, std::move(event));
  host_users_.remove(before.host_users);  // they were complete
  ring_ = before.ring;
}

void BufferCopies::download(StreamRef stream, std::size_t nbytes) {
  if (nbytes == 0) return;
  Runtime::check_not_forked();
  const DeviceScope scope(context_.runtime(), stream.device);
  check_not_capturing(stream);
  copy_host_array(stream, nbytes, CopyKind::kDeviceToHost, state());
  if (!host_is_pinned_) wait_host();
}

void BufferCopies::copy_host_array(StreamRef stream, std::size_t nbytes, CopyKind kind,
                                   const State& before) {
  Runtime& runtime = context_.runtime();
  Event event = context_.events().acquire();
  before.last.wait_on(stream);
  const bool to_device = kind == CopyKind::kHostToDevice;
  runtime.copy_async(stream.device, to_device ? device_ : host_, to_device ? host_ : device_,
                     nbytes, kind, stream.handle);
  try {
    event.record(stream.handle);
  } catch (...) {
    // In flight, and nothing would tell when it ends: wait for it here.
    try {
      runtime.synchronize_stream(stream.device, stream.handle);
    } catch (...) {  // the first error is the one to report
    }
    throw;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  last_.advance(before.last, event);
  // The event comes after last, and so after every copy that used the host array before.
  host_users_.advance(before.host_users, std::move(event));
}

bool BufferCopies::host_in_flight() {
  const EventFrontier users = host_users();
  if (users.empty()) return false;
  if (!users.query()) return true;
  const std::lock_guard<std::mutex> lock(mutex_);
  host_users_.remove(users);
  return !host_users_.empty();
}

void BufferCopies::wait_host() {
  const EventFrontier users = host_users();
  users.synchronize();
  const std::lock_guard<std::mutex> lock(mutex_);
  host_users_.remove(users);
}

EventFrontier BufferCopies::host_users() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return host_users_;
}

}  // namespace staging
