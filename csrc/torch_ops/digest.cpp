#include "torch_ops/digest.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <utility>

#include "support/error.h"
#include "torch_ops/device_scratch.h"
#include "torch_ops/tensor_access.h"

namespace staging::torch_ops {

namespace {

using ::staging::detail::join_message;

StreamRef stream_of(const at::TensorBase& tensor, std::optional<StreamRef> stream) {
  return stream ? *stream : current_stream(tensor.device().index());
}

// Behind an error: some of the work may have been enqueued, and uses the memory yet. On a stream
// that captures nothing was.
void give_up(MemoryUse& use, Runtime& runtime, StreamRef stream) noexcept {
  try {
    if (runtime.capture_status(stream.device, stream.handle) == CaptureStatus::kNone) {
      use.enqueued();
    }
  } catch (...) {  // the error that led here is the one to report
  }
}

BlockDownload start_download(const at::TensorBase& tensor, MemoryUse& use, StreamRef stream,
                             std::size_t block_nbytes) {
  const TensorMemory bytes(tensor);
  if (!tensor.is_contiguous()) {
    throw TypeMismatch("a tensor that is read in blocks from the device must be contiguous");
  }
  DeviceContext& context = DeviceContext::of(stream.device);
  use.device(tensor);
  try {
    return BlockDownload(context, PinnedPool::get(context.runtime()), stream, bytes.strided().data,
                         tensor.nbytes(), block_nbytes);
  } catch (...) {
    give_up(use, context.runtime(), stream);
    throw;
  }
}

}  // namespace

TensorMemory::TensorMemory(const at::TensorBase& tensor)
    : element_nbytes_(static_cast<std::int64_t>(tensor.element_size())) {
  if (tensor.layout() != c10::kStrided || !tensor.has_storage() ||
      tensor.unsafeGetTensorImpl()->is_python_dispatch()) {
    throw TypeMismatch(join_message("a tensor of layout ", tensor.layout(), " on ", tensor.device(),
                                    " has no memory of its own to hash"));
  }
  sizes_.assign(tensor.sizes().begin(), tensor.sizes().end());
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    strides_nbytes_.push_back(tensor.stride(d) * element_nbytes_);
    last += (sizes_[static_cast<std::size_t>(d)] - 1) * strides_nbytes_.back();
  }
  data_ = nullptr;
  if (tensor.numel() == 0) return;
  const std::int64_t needed = tensor.storage_offset() * element_nbytes_ + last + element_nbytes_;
  if (static_cast<std::size_t>(needed) > tensor.storage().nbytes()) {
    throw TypeMismatch(join_message("a tensor of shape ", tensor.sizes(), " needs ", needed,
                                    " bytes of storage and has ", tensor.storage().nbytes(),
                                    ": its storage was resized, so it cannot be hashed"));
  }
  data_ = tensor.const_data_ptr();
  if (data_ == nullptr) {
    throw TypeMismatch(join_message("a tensor of shape ", tensor.sizes(), " on ", tensor.device(),
                                    " has no memory, so it cannot be hashed"));
  }
}

bool shares_bytes(c10::ScalarType dtype) noexcept {
  return dtype == c10::ScalarType::QUInt4x2 || dtype == c10::ScalarType::QUInt2x4;
}

bool is_plain(const at::TensorBase& tensor) {
  return !shares_bytes(tensor.scalar_type()) && tensor.layout() == c10::kStrided &&
         !tensor.is_conj() && !tensor.is_neg() &&
         !tensor.unsafeGetTensorImpl()->is_python_dispatch() && tensor.has_storage() &&
         !tensor._is_zerotensor() && !tensor.is_nested() && tensor.is_contiguous();
}

SignFlips sign_flips(const at::TensorBase& tensor) {
  if (!tensor.is_conj() && !tensor.is_neg()) return {};
  const std::int64_t element_nbytes = static_cast<std::int64_t>(tensor.element_size());
  const bool complex = c10::isComplexType(tensor.scalar_type());
  return {complex ? element_nbytes / 2 : element_nbytes, tensor.is_neg(),
          tensor.is_neg() != tensor.is_conj()};
}

bool can_index(const at::TensorBase& tensor) {
  return DeviceBlake3::can_index(IndexMap(TensorMemory(tensor).strided()));
}

PendingDigests start_digests(std::span<const at::TensorBase> tensors,
                             std::optional<StreamRef> stream) {
  STAGING_EXPECTS(!tensors.empty(), "tensors must not be empty");
  std::vector<TensorMemory> bytes;
  for (const at::TensorBase& tensor : tensors) {
    if (!tensor.is_cuda() || tensor.device() != tensors[0].device()) {
      throw TypeMismatch(join_message("tensors must be on one CUDA device, got ",
                                      tensors[0].device(), " and ", tensor.device()));
    }
    bytes.emplace_back(tensor);
  }
  std::vector<StridedBytes> strided;
  for (const TensorMemory& tensor : bytes) strided.push_back(tensor.strided());
  const DeviceBlake3 plan(strided);
  const StreamRef on = stream_of(tensors[0], stream);
  DeviceContext& context = DeviceContext::of(on.device);
  MemoryUse use(context, on, /*capturing=*/false);
  for (const at::TensorBase& tensor : tensors) use.device(tensor);
  const DeviceScratch scratch(on, PendingDigests::scratch_nbytes(plan, tensors.size()));
  try {
    PendingDigests digests(context, PinnedPool::get(context.runtime()), on, plan, tensors.size(),
                           scratch.data());
    use.enqueued();
    return digests;
  } catch (...) {
    give_up(use, context.runtime(), on);
    throw;
  }
}

HostBlocks::HostBlocks(at::TensorBase tensor, std::size_t block_nbytes)
    : tensor_(std::move(tensor)),
      reader_(TensorMemory(tensor_).strided(), sign_flips(tensor_)),
      block_(std::min<std::size_t>(block_nbytes, (tensor_.nbytes() + 31) / 32 * 32)) {}

std::span<const std::byte> HostBlocks::next() {
  if (block_.empty()) return {};
  return {block_.data(), reader_.read(block_.data(), block_.size())};
}

DeviceBlocks::DeviceBlocks(at::TensorBase tensor, std::optional<StreamRef> stream,
                           std::size_t block_nbytes)
    : tensor_(std::move(tensor)),
      stream_(stream_of(tensor_, stream)),
      use_(DeviceContext::of(stream_.device), stream_, /*capturing=*/false),
      download_(start_download(tensor_, use_, stream_, block_nbytes)) {}

DeviceBlocks::~DeviceBlocks() {
  try {
    use_.enqueued();
  } catch (...) {  // it has kept the memory for ever
  }
}

}  // namespace staging::torch_ops
