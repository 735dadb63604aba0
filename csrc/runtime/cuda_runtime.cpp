#include "runtime/cuda_runtime.h"

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "runtime/device_scope.h"
#include "support/error.h"

namespace staging {

namespace {

// Up to here the copy engines are quicker, which leave the multiprocessors alone; only those
// reach the full bandwidth (NVIDIA/cudf #23674).
[[maybe_unused]] constexpr std::size_t kSmallCopyNbytes = std::size_t{128} << 10;

cudaStream_t stream_of(StreamHandle stream) {
  return static_cast<cudaStream_t>(stream);
}
cudaEvent_t event_of(EventHandle event) {
  return static_cast<cudaEvent_t>(event);
}

// The errors after which CUDA's documentation says that the process must be ended: "leaves
// the process in an inconsistent state and any further CUDA work will return the same error".
bool destroys_context(cudaError_t code) {
  switch (code) {
    case cudaErrorECCUncorrectable:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorIllegalAddress:
    case cudaErrorAssert:
    case cudaErrorLaunchTimeout:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContextIsDestroyed:
    case cudaErrorExternalDevice:
      return true;
    default:
      return false;
  }
}

cudaMemcpyKind kind_of(CopyKind kind) {
  switch (kind) {
    case CopyKind::kHostToHost:
      return cudaMemcpyHostToHost;
    case CopyKind::kHostToDevice:
      return cudaMemcpyHostToDevice;
    case CopyKind::kDeviceToHost:
      return cudaMemcpyDeviceToHost;
    case CopyKind::kDeviceToDevice:
      break;  // either side may be a device's view of pinned memory: the driver finds out
  }
  return cudaMemcpyDefault;
}

// Lets this thread query, wait and allocate while another thread captures in global mode
// (pytorch #104555, #146924).
class RelaxedCapture {
 public:
  RelaxedCapture() noexcept { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;  // restores once
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

class CudaRuntime final : public Runtime {
 public:
  Backend backend() const noexcept override { return Backend::kCuda; }

  int device_count() override {
    int count = 0;
    check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    return count;
  }
  int current_device() override {
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    return device;
  }
  void set_device(int device) override { check(cudaSetDevice(device), "cudaSetDevice"); }
  int numa_node(int device) override {
    int node = -1;
    const cudaError_t code = cudaDeviceGetAttribute(&node, cudaDevAttrHostNumaId, device);
    if (code != cudaSuccess) {
      cudaGetLastError();  // an old driver: the node is not known
      return -1;
    }
    return node;
  }

  StreamHandle create_stream(int device) override {
    const DeviceScope scope(*this, device);
    const RelaxedCapture relaxed;
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return stream;
  }
  void destroy_stream(int device, StreamHandle stream) noexcept override {
    on_device(device, [&] { discard(cudaStreamDestroy(stream_of(stream)), "cudaStreamDestroy"); });
  }
  void synchronize_stream(int device, StreamHandle stream) override {
    const DeviceScope scope(*this, device);
    const RelaxedCapture relaxed;
    check(cudaStreamSynchronize(stream_of(stream)), "cudaStreamSynchronize");
  }
  unsigned long long stream_id(int, StreamHandle stream) override {
    unsigned long long id = 0;
    check(cudaStreamGetId(stream_of(stream), &id), "cudaStreamGetId");
    return id;
  }
  void stream_wait_event(int, StreamHandle stream, EventHandle event) override {
    check(cudaStreamWaitEvent(stream_of(stream), event_of(event), cudaEventWaitDefault),
          "cudaStreamWaitEvent");
  }
  CaptureStatus capture_status(int, StreamHandle stream) override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t code = cudaStreamIsCapturing(stream_of(stream), &status);
    // The legacy stream may not be asked while another blocking stream captures; it is not
    // capturing itself, and what is enqueued on it next fails and says so.
    if (code == cudaErrorStreamCaptureImplicit) {
      cudaGetLastError();
      return CaptureStatus::kNone;
    }
    check(code, "cudaStreamIsCapturing");
    return status_of(status);
  }
  CaptureInfo capture_info(int, StreamHandle stream) override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    CaptureInfo info;
    cudaGraph_t graph = nullptr;
#if CUDART_VERSION >= 13000
    check(cudaStreamGetCaptureInfo(stream_of(stream), &status, &info.id, &graph),
          "cudaStreamGetCaptureInfo");
#else
    check(cudaStreamGetCaptureInfo_v2(stream_of(stream), &status, &info.id, &graph),
          "cudaStreamGetCaptureInfo_v2");
#endif
    info.status = status_of(status);
    info.graph = graph;
    return info;
  }

  EventHandle create_event(int device, bool timing) override {
    const DeviceScope scope(*this, device);
    const RelaxedCapture relaxed;
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, timing ? cudaEventDefault : cudaEventDisableTiming),
          "cudaEventCreateWithFlags");
    return event;
  }
  void destroy_event(int device, EventHandle event) noexcept override {
    on_device(device, [&] { discard(cudaEventDestroy(event_of(event)), "cudaEventDestroy"); });
  }
  void record_event(int, EventHandle event, StreamHandle stream) override {
    check(cudaEventRecord(event_of(event), stream_of(stream)), "cudaEventRecord");
  }
  void record_external_event(int, EventHandle event, StreamHandle stream) override {
    check(cudaEventRecordWithFlags(event_of(event), stream_of(stream), cudaEventRecordExternal),
          "cudaEventRecordWithFlags");
  }
  // With the device current: on a thread without one, the call would make a context on device 0.
  bool query_event(int device, EventHandle event) override {
    const DeviceScope scope(*this, device);
    const RelaxedCapture relaxed;
    const cudaError_t code = cudaEventQuery(event_of(event));
    if (code == cudaErrorNotReady) {
      // Not an error, and yet a "last error" for somebody else's check to find.
      if (cudaPeekAtLastError() == cudaErrorNotReady) cudaGetLastError();
      return false;
    }
    check(code, "cudaEventQuery");
    return true;
  }
  void synchronize_event(int device, EventHandle event) override {
    const DeviceScope scope(*this, device);
    const RelaxedCapture relaxed;
    check(cudaEventSynchronize(event_of(event)), "cudaEventSynchronize");
  }
  float elapsed_ms(EventHandle start, EventHandle stop) override {
    float elapsed = 0;
    check(cudaEventElapsedTime(&elapsed, event_of(start), event_of(stop)), "cudaEventElapsedTime");
    return elapsed;
  }

  void* allocate_pinned(int device, std::size_t nbytes) override {
    const DeviceScope scope(*this, device);
    const RelaxedCapture relaxed;
    void* pointer = nullptr;
    check(cudaHostAlloc(&pointer, nbytes, cudaHostAllocPortable | cudaHostAllocMapped),
          "cudaHostAlloc");
    pinning_device_.store(device, std::memory_order_relaxed);
    return pointer;
  }
  void free_pinned(void* pointer) noexcept override {
    on_device(pinning_device_.load(std::memory_order_relaxed), [&] {
      const RelaxedCapture relaxed;
      discard(cudaFreeHost(pointer), "cudaFreeHost");
    });
  }
  void register_pinned(int device, void* pointer, std::size_t nbytes) override {
    const DeviceScope scope(*this, device);
    const RelaxedCapture relaxed;
    check(cudaHostRegister(pointer, nbytes, cudaHostRegisterPortable | cudaHostRegisterMapped),
          "cudaHostRegister");
    pinning_device_.store(device, std::memory_order_relaxed);
  }
  void unregister_pinned(void* pointer) noexcept override {
    on_device(pinning_device_.load(std::memory_order_relaxed), [&] {
      const RelaxedCapture relaxed;
      discard(cudaHostUnregister(pointer), "cudaHostUnregister");
    });
  }
  PointerInfo pointer_info(const void* pointer) override {
    const RelaxedCapture relaxed;
    cudaPointerAttributes attributes{};
    check(cudaPointerGetAttributes(&attributes, pointer), "cudaPointerGetAttributes");
    PointerInfo info;
    info.device_pointer = attributes.devicePointer;
    switch (attributes.type) {
      case cudaMemoryTypeHost:
        info.kind = MemoryKind::kPinned;
        break;
      case cudaMemoryTypeDevice:
        info.kind = MemoryKind::kDevice;
        break;
      case cudaMemoryTypeManaged:
        info.kind = MemoryKind::kManaged;
        break;
      default:
        info.kind = MemoryKind::kPageable;
        break;
    }
    info.device = attributes.device;
    return info;
  }

  void copy_async(int, void* dst, const void* src, std::size_t nbytes, CopyKind kind,
                  StreamHandle stream) override {
    check(cudaMemcpyAsync(dst, src, nbytes, kind_of(kind), stream_of(stream)), "cudaMemcpyAsync");
  }
  void copy_2d_async(int, void* dst, std::size_t dst_pitch, const void* src, std::size_t src_pitch,
                     std::size_t width_nbytes, std::size_t height, CopyKind kind,
                     StreamHandle stream) override {
    check(cudaMemcpy2DAsync(dst, dst_pitch, src, src_pitch, width_nbytes, height, kind_of(kind),
                            stream_of(stream)),
          "cudaMemcpy2DAsync");
  }
  bool copy_batch_async(int, const CopyItem* items, std::size_t count, CopyKind,
                        StreamHandle stream) override {
#if CUDART_VERSION >= 13000
    // The legacy stream is refused by CUDA; under capture the copies of 13.0 are lost.
    if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread ||
        batch_missing_.load(std::memory_order_relaxed)) {
      return false;
    }
    thread_local std::vector<const void*> srcs;
    thread_local std::vector<const void*> dsts;
    thread_local std::vector<std::size_t> sizes;
    srcs.clear();
    dsts.clear();
    sizes.clear();
    bool small = true;
    for (std::size_t i = 0; i < count; ++i) {
      srcs.push_back(items[i].src);
      dsts.push_back(items[i].dst);
      sizes.push_back(items[i].nbytes);
      small = small && items[i].nbytes <= kSmallCopyNbytes;
    }
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    attributes.flags = small ? cudaMemcpyFlagPreferOverlapWithCompute : cudaMemcpyFlagDefault;
    std::size_t first = 0;
    const cudaError_t code = cudaMemcpyBatchAsync(
        const_cast<void**>(reinterpret_cast<const void**>(dsts.data())), srcs.data(), sizes.data(),
        count, &attributes, &first, 1, stream_of(stream));
    if (code == cudaErrorCallRequiresNewerDriver || code == cudaErrorNotSupported) {
      cudaGetLastError();
      batch_missing_.store(true, std::memory_order_relaxed);
      return false;
    }
    check(code, "cudaMemcpyBatchAsync");
    return true;
#else
    (void)items, (void)count, (void)stream;
    return false;
#endif
  }
  void fill_async(int, void* dst, unsigned char value, std::size_t nbytes,
                  StreamHandle stream) override {
    check(cudaMemsetAsync(dst, value, nbytes, stream_of(stream)), "cudaMemsetAsync");
  }
  void launch(int, const Kernel& kernel, Dim3 grid, Dim3 block, std::size_t shared_nbytes,
              void** args, StreamHandle stream) override {
    const cudaError_t code =
        cudaLaunchKernel(kernel.cuda, dim3(grid.x, grid.y, grid.z), dim3(block.x, block.y, block.z),
                         args, shared_nbytes, stream_of(stream));
    if (code != cudaSuccess) check(code, "cudaLaunchKernel");
  }
  void launch_host_function(int, StreamHandle stream, void (*function)(void*),
                            void* argument) override {
    check(cudaLaunchHostFunc(stream_of(stream), function, argument), "cudaLaunchHostFunc");
  }

  void retain_in_capture(int device, StreamHandle stream, void (*destroy)(void*),
                         void* argument) override {
    cudaUserObject_t object = nullptr;
    void* graph = nullptr;
    try {
      const CaptureInfo info = capture_info(device, stream);
      if (info.status != CaptureStatus::kActive) {
        throw StateError("the stream is not capturing, there is no graph to retain memory");
      }
      graph = info.graph;
      check(cudaUserObjectCreate(&object, argument, destroy, 1, cudaUserObjectNoDestructorSync),
            "cudaUserObjectCreate");
    } catch (...) {
      destroy(argument);
      throw;
    }
    const cudaError_t code = cudaGraphRetainUserObject(static_cast<cudaGraph_t>(graph), object, 1,
                                                       cudaGraphUserObjectMove);
    if (code != cudaSuccess) {
      cudaGetLastError();
      discard(cudaUserObjectRelease(object, 1), "cudaUserObjectRelease");  // runs destroy
      check(code, "cudaGraphRetainUserObject");
    }
  }

 private:
  static CaptureStatus status_of(cudaStreamCaptureStatus status) {
    switch (status) {
      case cudaStreamCaptureStatusActive:
        return CaptureStatus::kActive;
      case cudaStreamCaptureStatusInvalidated:
        return CaptureStatus::kInvalidated;
      default:
        return CaptureStatus::kNone;
    }
  }

  // For what may not throw: a device that cannot be made current is left alone.
  template <typename Call>
  void on_device(int device, Call call) noexcept {
    try {
      const DeviceScope scope(*this, device);
      call();
    } catch (...) {  // consumed; the memory or handle is leaked
    }
  }

  void check(cudaError_t code, const char* call) {
    if (code != cudaSuccess) [[unlikely]]
      fail(code, call);
  }

  [[noreturn]] void fail(cudaError_t code, const char* call) {
    cudaGetLastError();  // ours: nobody else's check may find it
    const char* name = cudaGetErrorName(code);
    const char* text = cudaGetErrorString(code);
    if (code == cudaErrorMemoryAllocation) throw OutOfMemory(call, code, name, text, false);
    const DeviceError error(call, code, name, text, destroys_context(code));
    if (error.sticky()) lose_context(error);
    throw error;
  }

  // For destructors: a failure is consumed; the memory or handle is leaked.
  void discard(cudaError_t code, const char* call) noexcept {
    // At process end the runtime is gone already, and may not be called again.
    if (code == cudaSuccess || code == cudaErrorCudartUnloading) return;
    cudaGetLastError();
    if (!destroys_context(code)) return;
    lose_context(DeviceError(call, code, cudaGetErrorName(code), cudaGetErrorString(code), true));
  }

  std::atomic<bool> batch_missing_{false};
  std::atomic<int> pinning_device_{-1};  // one that has a context, for unpinning
};

}  // namespace

std::unique_ptr<Runtime> make_cuda_runtime() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  return count > 0 ? std::make_unique<CudaRuntime>() : nullptr;
}

}  // namespace staging
