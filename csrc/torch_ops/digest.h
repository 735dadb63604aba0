// Tensors as what the hashes read: their strided bytes, on the host or on the device.
//
// Owner: readers hold the tensor; digests in flight keep device memory from being reused on
//   other streams. Thread-safety: each object belongs to one thread at a time, except
//   PendingDigests, see there.
#pragma once

#include <ATen/core/TensorBase.h>

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "hash/block_download.h"
#include "hash/pending_digests.h"
#include "hash/strided_reader.h"
#include "torch_ops/tensor_access.h"

namespace staging::torch_ops {

// A tensor's memory and strides. Throws TypeMismatch where the tensor has no memory of its
// own, or less than its shape needs.
class TensorMemory {
 public:
  explicit TensorMemory(const at::TensorBase& tensor);

  StridedBytes strided() const noexcept {
    return {data_, element_nbytes_, sizes_, strides_nbytes_};
  }

 private:
  const void* data_;
  std::int64_t element_nbytes_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> strides_nbytes_;
};

// Whether several elements share a byte, although element_size() is 1: the storage is smaller
// than the shape says.
bool shares_bytes(c10::ScalarType dtype) noexcept;

// Whether the tensor is dense, no lazy view, and its bytes lie in logical order.
bool is_plain(const at::TensorBase& tensor);

// The signs that a lazy conjugate or negative view of floating-point or complex numbers has
// not flipped in memory.
SignFlips sign_flips(const at::TensorBase& tensor);

// Whether the device can hash the tensor where it is; else it needs a contiguous copy.
bool can_index(const at::TensorBase& tensor);

// Enqueues the BLAKE3 digests of tensors of one CUDA device, on its current stream or on
// `stream`. Lazy views are the caller's to resolve.
PendingDigests start_digests(std::span<const at::TensorBase> tensors,
                             std::optional<StreamRef> stream);

// Reads a host tensor in blocks; lazy conjugate and negative views of floating-point and
// complex tensors as their values.
class HostBlocks {
 public:
  HostBlocks(at::TensorBase tensor, std::size_t block_nbytes);
  // The next block, valid until the next call; empty at the end.
  std::span<const std::byte> next();

 private:
  at::TensorBase tensor_;
  StridedReader reader_;
  std::vector<std::byte> block_;
};

// Reads a contiguous device tensor in blocks, on its current stream or on `stream`.
class DeviceBlocks {
 public:
  DeviceBlocks(at::TensorBase tensor, std::optional<StreamRef> stream, std::size_t block_nbytes);
  DeviceBlocks(const DeviceBlocks&) = delete;  // copies are in flight out of the tensor
  DeviceBlocks& operator=(const DeviceBlocks&) = delete;
  ~DeviceBlocks();
  std::span<const std::byte> next() { return download_.next(); }

 private:
  const at::TensorBase tensor_;
  const StreamRef stream_;
  MemoryUse use_;
  BlockDownload download_;
};

}  // namespace staging::torch_ops
