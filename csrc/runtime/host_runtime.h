// The host implementation of the seam: a device that is the CPU itself.
//
// Purpose: a build without CUDA, and a CUDA build on a machine without a driver. Work on a
//   stream runs inside the call, so every event is complete when it has been recorded.
// Owner: see Runtime::get(). Thread-safety: as the seam asks; it holds no state.
#pragma once

#include "runtime/runtime.h"

namespace staging {

class HostRuntime : public Runtime {
 public:
  Backend backend() const noexcept override { return Backend::kHost; }

  int device_count() override { return 0; }
  int current_device() override { return -1; }
  void set_device(int device) override;
  int numa_node(int device) override;

  StreamHandle create_stream(int device) override;
  void destroy_stream(int device, StreamHandle stream) noexcept override;
  void synchronize_stream(int device, StreamHandle stream) override;
  void stream_wait_event(int device, StreamHandle stream, EventHandle event) override;
  CaptureStatus capture_status(int device, StreamHandle stream) override;
  CaptureInfo capture_info(int device, StreamHandle stream) override;

  EventHandle create_event(int device, bool timing) override;
  void destroy_event(int device, EventHandle event) noexcept override;
  void record_event(int device, EventHandle event, StreamHandle stream) override;
  void record_external_event(int device, EventHandle event, StreamHandle stream) override;
  bool query_event(int device, EventHandle event) override;
  void synchronize_event(int device, EventHandle event) override;
  float elapsed_ms(EventHandle start, EventHandle stop) override;

  void* allocate_pinned(int device, std::size_t nbytes) override;
  void free_pinned(void* pointer) noexcept override;
  void register_pinned(int device, void* pointer, std::size_t nbytes) override;
  void unregister_pinned(void* pointer) noexcept override;
  PointerInfo pointer_info(const void* pointer) override;

  void copy_async(int device, void* dst, const void* src, std::size_t nbytes, CopyKind kind,
                  StreamHandle stream) override;
  void copy_2d_async(int device, void* dst, std::size_t dst_pitch, const void* src,
                     std::size_t src_pitch, std::size_t width_nbytes, std::size_t height,
                     CopyKind kind, StreamHandle stream) override;
  bool copy_batch_async(int device, const CopyItem* items, std::size_t count, CopyKind kind,
                        StreamHandle stream) override;
  void fill_async(int device, void* dst, unsigned char value, std::size_t nbytes,
                  StreamHandle stream) override;
  void launch(int device, const Kernel& kernel, Dim3 grid, Dim3 block, std::size_t shared_nbytes,
              void** args, StreamHandle stream) override;
  void launch_host_function(int device, StreamHandle stream, void (*function)(void*),
                            void* argument) override;

  void retain_in_capture(int device, StreamHandle stream, void (*destroy)(void*),
                         void* argument) override;
};

}  // namespace staging
