#include "runtime/host_runtime.h"

#include <chrono>
#include <cstdlib>
#include <cstring>

#include "support/error.h"

namespace staging {

namespace {

// Pinned memory of a driver is page-aligned; what is tested here should not meet less there.
constexpr std::size_t kPageNbytes = 4096;

using Clock = std::chrono::steady_clock;

}  // namespace

void HostRuntime::set_device(int device) {
  STAGING_EXPECTS(device < 0, "device must be -1 on the host backend, got ", device);
}

int HostRuntime::numa_node(int) {
  return -1;
}

// Handles are distinct addresses, so that mixing them up shows in tests.
StreamHandle HostRuntime::create_stream(int) {
  return new char;
}
void HostRuntime::destroy_stream(int, StreamHandle stream) noexcept {
  delete static_cast<char*>(stream);
}
void HostRuntime::synchronize_stream(int, StreamHandle) {}
void HostRuntime::stream_wait_event(int, StreamHandle, EventHandle) {}
CaptureStatus HostRuntime::capture_status(int, StreamHandle) {
  return CaptureStatus::kNone;
}
CaptureInfo HostRuntime::capture_info(int, StreamHandle) {
  return {};
}

EventHandle HostRuntime::create_event(int, bool) {
  return new Clock::time_point(Clock::now());
}
void HostRuntime::destroy_event(int, EventHandle event) noexcept {
  delete static_cast<Clock::time_point*>(event);
}
void HostRuntime::record_event(int, EventHandle event, StreamHandle) {
  *static_cast<Clock::time_point*>(event) = Clock::now();
}
void HostRuntime::record_external_event(int device, EventHandle event, StreamHandle stream) {
  record_event(device, event, stream);
}
bool HostRuntime::query_event(int, EventHandle) {
  return true;
}
void HostRuntime::synchronize_event(int, EventHandle) {}
float HostRuntime::elapsed_ms(EventHandle start, EventHandle stop) {
  return std::chrono::duration<float, std::milli>(*static_cast<Clock::time_point*>(stop) -
                                                  *static_cast<Clock::time_point*>(start))
      .count();
}

void* HostRuntime::allocate_pinned(int, std::size_t nbytes) {
  void* pointer = nullptr;
  if (posix_memalign(&pointer, kPageNbytes, nbytes) != 0) {
    throw OutOfMemory("posix_memalign", 12, "ENOMEM",
                      "cannot allocate " + std::to_string(nbytes) + " bytes", false);
  }
  return pointer;
}
void HostRuntime::free_pinned(void* pointer) noexcept {
  std::free(pointer);
}
void HostRuntime::register_pinned(int, void*, std::size_t) {}
void HostRuntime::unregister_pinned(void*) noexcept {}
PointerInfo HostRuntime::pointer_info(const void*) {
  return {};
}

void HostRuntime::copy_async(int, void* dst, const void* src, std::size_t nbytes, CopyKind,
                             StreamHandle) {
  std::memmove(dst, src, nbytes);
}
void HostRuntime::copy_2d_async(int, void* dst, std::size_t dst_pitch, const void* src,
                                std::size_t src_pitch, std::size_t width_nbytes, std::size_t height,
                                CopyKind, StreamHandle) {
  for (std::size_t row = 0; row < height; ++row) {
    std::memmove(static_cast<char*>(dst) + row * dst_pitch,
                 static_cast<const char*>(src) + row * src_pitch, width_nbytes);
  }
}
bool HostRuntime::copy_batch_async(int device, const CopyItem* items, std::size_t count,
                                   CopyKind kind, StreamHandle stream) {
  for (std::size_t i = 0; i < count; ++i) {
    copy_async(device, items[i].dst, items[i].src, items[i].nbytes, kind, stream);
  }
  return true;
}
void HostRuntime::fill_async(int, void* dst, unsigned char value, std::size_t nbytes,
                             StreamHandle) {
  std::memset(dst, value, nbytes);
}
void HostRuntime::launch(int, const Kernel& kernel, Dim3 grid, Dim3 block,
                         std::size_t shared_nbytes, void** args, StreamHandle) {
  kernel.host(grid, block, shared_nbytes, args);
}
void HostRuntime::launch_host_function(int, StreamHandle, void (*function)(void*), void* argument) {
  function(argument);
}
void HostRuntime::retain_in_capture(int, StreamHandle, void (*destroy)(void*), void* argument) {
  destroy(argument);
  throw StateError("the host backend has no graphs to capture");
}

}  // namespace staging
