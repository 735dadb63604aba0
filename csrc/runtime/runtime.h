// The seam: everything that the core asks of a device runtime.
//
// Purpose: policy (rings, pools, transfers) is written against this interface, so that it
//   runs over CUDA, over the host alone, and in tests over a runtime whose events complete
//   when the test says so. No other host code calls cuda*.
// Owner: `Runtime::get()` is created on first use, never at import, and is never destroyed:
//   static destructors run after the driver's teardown, when no CUDA call may be made.
// Thread-safety: every method may be called from any thread at once.
//
// Invariants of every implementation:
//   * A failing call throws DeviceError (OutOfMemory where memory is short); the error has
//     been consumed, so none is left as the "last error" for somebody else's check.
//   * The current device is the same after a call as before it (set_device excepted).
//   * Calls that would break another thread's global-mode capture (queries, event waits,
//     allocation, registration) run in the relaxed capture mode.
//   * Nothing here takes the GIL.
// What callers owe: methods that enqueue on a stream expect its device to be current
//   (DeviceScope in runtime/device_scope.h), so that one operation asks for it once.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace staging {

class DeviceError;

enum class Backend : std::uint8_t { kHost, kCuda };

// Opaque: a cudaStream_t / cudaEvent_t under CUDA. A null stream is the legacy default
// stream of the device that is named beside it.
using StreamHandle = void*;
using EventHandle = void*;

enum class CopyKind : std::uint8_t { kHostToHost, kHostToDevice, kDeviceToHost, kDeviceToDevice };

enum class CaptureStatus : std::uint8_t { kNone, kActive, kInvalidated };

enum class MemoryKind : std::uint8_t { kPageable, kPinned, kDevice, kManaged };

struct PointerInfo {
  MemoryKind kind = MemoryKind::kPageable;
  int device = -1;                 // of device and managed memory
  void* device_pointer = nullptr;  // how kernels see pinned memory; null when they do not
};

struct CaptureInfo {
  CaptureStatus status = CaptureStatus::kNone;
  unsigned long long id = 0;  // of the capture sequence, unique in the process
  void* graph = nullptr;      // cudaGraph_t under construction
};

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// A kernel of csrc/kernels: see kernels/kernel.h. `cuda` is the host stub that
// cudaLaunchKernel takes, `host` runs the same body on the CPU.
struct Kernel {
  const char* name;
  const void* cuda;
  void (*host)(Dim3 grid, Dim3 block, std::size_t shared_nbytes, void** args);
  // The size of each parameter, in order: arguments are copied when a kernel is enqueued.
  const std::size_t* param_nbytes;
  std::size_t param_count;
};

struct CopyItem {
  void* dst;
  const void* src;
  std::size_t nbytes;
};

class Runtime {
 public:
  // The process's runtime: CUDA where this is a CUDA build and a driver with a device is
  // there, else the host. Throws StateError in a child forked after CUDA was initialised.
  static Runtime& get();
  // Throws StateError in a child forked after CUDA was initialised: its handles and pinned
  // memory belong to the parent. One relaxed load; every operation begins with it.
  static void check_not_forked() {
    if (forked_.load(std::memory_order_relaxed)) [[unlikely]]
      throw_forked();
  }
  // The same as a question, for destructors: they leave such state alone.
  static bool forked() noexcept { return forked_.load(std::memory_order_relaxed); }
  // Whether get() has chosen already; asking does not choose.
  static bool chosen() noexcept;

  Runtime() = default;
  Runtime(const Runtime&) = delete;  // identity matters: handles belong to one runtime
  Runtime& operator=(const Runtime&) = delete;
  virtual ~Runtime();

  virtual Backend backend() const noexcept = 0;
  // Once a call has reported a destroyed context; memory is then leaked, never reused.
  bool context_lost() const noexcept { return lost_.load(std::memory_order_acquire) != nullptr; }
  // Throws what that call reported, for work that would not notice by itself.
  void check_context() const;

  // -- devices -------------------------------------------------------------------------
  virtual int device_count() = 0;
  virtual int current_device() = 0;
  virtual void set_device(int device) = 0;
  // NUMA node nearest to the device, or -1 where the system does not say.
  virtual int numa_node(int device) = 0;

  // -- streams -------------------------------------------------------------------------
  virtual StreamHandle create_stream(int device) = 0;  // non-blocking
  virtual void destroy_stream(int device, StreamHandle stream) noexcept = 0;
  virtual void synchronize_stream(int device, StreamHandle stream) = 0;
  // Not given to another stream of the process, unlike a handle. 0 where streams have none.
  virtual unsigned long long stream_id(int /*device*/, StreamHandle /*stream*/) { return 0; }
  virtual void stream_wait_event(int device, StreamHandle stream, EventHandle event) = 0;
  virtual CaptureStatus capture_status(int device, StreamHandle stream) = 0;
  virtual CaptureInfo capture_info(int device, StreamHandle stream) = 0;

  // -- events --------------------------------------------------------------------------
  virtual EventHandle create_event(int device, bool timing) = 0;
  virtual void destroy_event(int device, EventHandle event) noexcept = 0;
  virtual void record_event(int device, EventHandle event, StreamHandle stream) = 0;
  // Under capture: a node that records an event which others may wait for outside.
  virtual void record_external_event(int device, EventHandle event, StreamHandle stream) = 0;
  virtual bool query_event(int device, EventHandle event) = 0;  // true: complete
  // Blocks the host thread. Callers release the GIL first.
  virtual void synchronize_event(int device, EventHandle event) = 0;
  virtual float elapsed_ms(EventHandle start, EventHandle stop) = 0;

  // -- pinned memory -------------------------------------------------------------------
  // Mapped and portable. `device` is whose context allocates (and whose node is near).
  virtual void* allocate_pinned(int device, std::size_t nbytes) = 0;
  virtual void free_pinned(void* pointer) noexcept = 0;
  virtual void register_pinned(int device, void* pointer, std::size_t nbytes) = 0;
  virtual void unregister_pinned(void* pointer) noexcept = 0;
  virtual PointerInfo pointer_info(const void* pointer) = 0;

  // -- work on a stream; none of these waits -------------------------------------------
  virtual void copy_async(int device, void* dst, const void* src, std::size_t nbytes, CopyKind kind,
                          StreamHandle stream) = 0;
  virtual void copy_2d_async(int device, void* dst, std::size_t dst_pitch, const void* src,
                             std::size_t src_pitch, std::size_t width_nbytes, std::size_t height,
                             CopyKind kind, StreamHandle stream) = 0;
  // One driver call for many copies, unordered among themselves. False where the runtime
  // cannot (no such entry point, the legacy stream, a capturing stream): nothing was
  // enqueued and the caller copies one by one.
  virtual bool copy_batch_async(int device, const CopyItem* items, std::size_t count, CopyKind kind,
                                StreamHandle stream) = 0;
  virtual void fill_async(int device, void* dst, unsigned char value, std::size_t nbytes,
                          StreamHandle stream) = 0;
  virtual void launch(int device, const Kernel& kernel, Dim3 grid, Dim3 block,
                      std::size_t shared_nbytes, void** args, StreamHandle stream) = 0;
  // `function` runs on a thread of the runtime, may not call it, and is not run after an error.
  virtual void launch_host_function(int device, StreamHandle stream, void (*function)(void*),
                                    void* argument) = 0;

  // -- graphs --------------------------------------------------------------------------
  // Ties `argument` to the graph that `stream` captures: `destroy(argument)` runs once the
  // graph and every executable made from it are gone, or before this throws; once in any
  // case. It may not call the runtime.
  virtual void retain_in_capture(int device, StreamHandle stream, void (*destroy)(void*),
                                 void* argument) = 0;

 protected:
  // `error` destroyed the context. The first one is kept.
  void lose_context(const DeviceError& error);

 private:
  friend class RuntimeOverride;
  friend struct RuntimeChoice;
  [[noreturn]] static void throw_forked();
  static std::atomic<bool> forked_;

  std::atomic<const DeviceError*> lost_{nullptr};  // owned
};

// Makes `runtime` the answer of Runtime::get() while it lives. For tests.
class RuntimeOverride {
 public:
  explicit RuntimeOverride(Runtime& runtime) noexcept;
  RuntimeOverride(const RuntimeOverride&) = delete;
  RuntimeOverride& operator=(const RuntimeOverride&) = delete;
  ~RuntimeOverride();

 private:
  Runtime* previous_;
};

}  // namespace staging
