// Entry points: copies and fills.
#include <cuda_runtime_api.h>

#include "sim/machine.h"
#include "sim/transfer.h"

using namespace staging::sim;

namespace {

Shape row(std::size_t nbytes) {
  return {nbytes, 1, nbytes, nbytes};
}

// The device's `memPitch`.
constexpr std::size_t kMaxPitch = 0x7fffffff;

cudaError_t copy_call(CallId id, void* dst, const void* src, const Shape& shape,
                      cudaMemcpyKind kind, cudaStream_t handle, Waiting waiting) {
  return locked_call(id, [&](Call& call, Machine& machine, Lock& lock) {
    call.note(handle, shape.nbytes(), kind);
    if (machine.device_count() == 0) return cudaErrorNoDevice;
    if (shape.height == 0) return cudaSuccess;
    // A plain copy is one row, of any length.
    const bool pitched = shape.height > 1;
    for (const std::size_t pitch : {shape.dst_pitch, shape.src_pitch}) {
      if (pitch < shape.width || (pitched && pitch > kMaxPitch)) return cudaErrorInvalidPitchValue;
    }
    if (waiting == Waiting::kSync) {
      // The legacy stream's work cannot be captured.
      if (const cudaError_t error = machine.captures.check_unsafe_call(); error != cudaSuccess) {
        return error;
      }
    }
    Stream* const stream = machine.resolve(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    return copy(call, machine, lock, *stream, dst, src, shape, kind, waiting);
  });
}

cudaError_t refuse(CallId id, cudaError_t error) {
  return runtime_call(id, [error](Call&) { return error; });
}

cudaError_t fill_call(CallId id, void* dst, const Shape& shape, int value, cudaStream_t handle,
                      Waiting waiting) {
  return locked_call(id, [&](Call& call, Machine& machine, Lock& lock) {
    call.note(handle, shape.nbytes());
    if (machine.device_count() == 0) return cudaErrorNoDevice;
    if (shape.height == 0) return cudaSuccess;
    if (shape.dst_pitch < shape.width) return cudaErrorInvalidValue;
    if (waiting == Waiting::kSync) {
      if (const cudaError_t error = machine.captures.check_unsafe_call(); error != cudaSuccess) {
        return error;
      }
    }
    Stream* const stream = machine.resolve(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    return fill(call, machine, lock, *stream, dst, shape, value, waiting);
  });
}

}  // namespace

extern "C" {

cudaError_t cudaMemcpy(void* dst, const void* src, std::size_t nbytes, cudaMemcpyKind kind) {
  return copy_call(CallId::cudaMemcpy, dst, src, row(nbytes), kind, nullptr, Waiting::kSync);
}

cudaError_t cudaMemcpyAsync(void* dst, const void* src, std::size_t nbytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return copy_call(CallId::cudaMemcpyAsync, dst, src, row(nbytes), kind, stream, Waiting::kAsync);
}

cudaError_t cudaMemcpyPeer(void* dst, int dst_device, const void* src, int src_device,
                           std::size_t nbytes) {
  if (!Machine::get().valid_device(dst_device) || !Machine::get().valid_device(src_device)) {
    return refuse(CallId::cudaMemcpyPeer, cudaErrorInvalidDevice);
  }
  return copy_call(CallId::cudaMemcpyPeer, dst, src, row(nbytes), cudaMemcpyDeviceToDevice, nullptr,
                   Waiting::kSync);
}

cudaError_t cudaMemcpyPeerAsync(void* dst, int dst_device, const void* src, int src_device,
                                std::size_t nbytes, cudaStream_t stream) {
  if (!Machine::get().valid_device(dst_device) || !Machine::get().valid_device(src_device)) {
    return refuse(CallId::cudaMemcpyPeerAsync, cudaErrorInvalidDevice);
  }
  return copy_call(CallId::cudaMemcpyPeerAsync, dst, src, row(nbytes), cudaMemcpyDeviceToDevice,
                   stream, Waiting::kAsync);
}

cudaError_t cudaMemcpy2D(void* dst, std::size_t dst_pitch, const void* src, std::size_t src_pitch,
                         std::size_t width, std::size_t height, cudaMemcpyKind kind) {
  return copy_call(CallId::cudaMemcpy2D, dst, src, {width, height, dst_pitch, src_pitch}, kind,
                   nullptr, Waiting::kSync);
}

cudaError_t cudaMemcpy2DAsync(void* dst, std::size_t dst_pitch, const void* src,
                              std::size_t src_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  return copy_call(CallId::cudaMemcpy2DAsync, dst, src, {width, height, dst_pitch, src_pitch}, kind,
                   stream, Waiting::kAsync);
}

cudaError_t cudaMemcpyBatchAsync(void* const* dsts, const void* const* srcs,
                                 const std::size_t* sizes, std::size_t count,
                                 cudaMemcpyAttributes* attributes, std::size_t* indices,
                                 std::size_t attribute_count, cudaStream_t handle) {
  return locked_call(CallId::cudaMemcpyBatchAsync, [&](Call& call, Machine& machine, Lock& lock) {
    std::size_t total = 0;
    for (std::size_t i = 0; sizes != nullptr && i < count; ++i) total += sizes[i];
    call.note(handle, total, cudaMemcpyDefault);
    if (machine.device_count() == 0) return cudaErrorNoDevice;
    Stream* const stream = machine.resolve(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    // "Must not be legacy NULL stream."
    if (stream->role == Stream::Role::kLegacy) return cudaErrorInvalidValue;
    // As CUDA 13.0 does: an error, and the capture goes on without the copies.
    if (stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
    return copy_batch(call, machine, lock, *stream, dsts, srcs, sizes, count, attributes, indices,
                      attribute_count);
  });
}

cudaError_t cudaMemset(void* dst, int value, std::size_t nbytes) {
  return fill_call(CallId::cudaMemset, dst, row(nbytes), value, nullptr, Waiting::kSync);
}

cudaError_t cudaMemsetAsync(void* dst, int value, std::size_t nbytes, cudaStream_t stream) {
  return fill_call(CallId::cudaMemsetAsync, dst, row(nbytes), value, stream, Waiting::kAsync);
}

cudaError_t cudaMemset2D(void* dst, std::size_t pitch, int value, std::size_t width,
                         std::size_t height) {
  return fill_call(CallId::cudaMemset2D, dst, {width, height, pitch, 0}, value, nullptr,
                   Waiting::kSync);
}

cudaError_t cudaMemset2DAsync(void* dst, std::size_t pitch, int value, std::size_t width,
                              std::size_t height, cudaStream_t stream) {
  return fill_call(CallId::cudaMemset2DAsync, dst, {width, height, pitch, 0}, value, stream,
                   Waiting::kAsync);
}

// A value, and no error to return: the one entry point whose stub could not say what is missing.
cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w,
                                            cudaChannelFormatKind kind) {
  Counters::add(CallId::cudaCreateChannelDesc);
  return {x, y, z, w, kind};
}

}  // extern "C"
