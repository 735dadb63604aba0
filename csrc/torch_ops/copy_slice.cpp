#include "torch_ops/copy_slice.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstddef>

#include "kernels/strided_copy.h"
#include "runtime/device_scope.h"
#include "support/error.h"
#include "torch_ops/tensor_access.h"
#include "transfer/strided_block.h"
#include "transfer/upload.h"

namespace staging::torch_ops {

namespace {

// A larger snapshot passes through the ring in pieces of this size.
constexpr std::size_t kPieceNbytes = std::size_t{8} << 20;

std::span<const std::int64_t> span_of(c10::IntArrayRef array) {
  return {array.data(), array.size()};
}

void check_layout(const at::TensorBase& tensor, const char* name) {
  const bool dense = tensor.layout() == c10::kStrided && tensor.has_storage() &&
                     !tensor.unsafeGetTensorImpl()->is_python_dispatch();
  if (!dense) {
    throw TypeMismatch(::staging::detail::join_message(
        name, " must be a dense tensor with memory of its own, got layout ", tensor.layout(),
        " on ", tensor.device()));
  }
  if (tensor.is_conj() || tensor.is_neg()) {
    throw TypeMismatch(::staging::detail::join_message(
        name, " is a lazy ", tensor.is_conj() ? "conjugate" : "negative",
        " view, its bytes are not its values; pass ", name,
        tensor.is_conj() ? ".resolve_conj()" : ".resolve_neg()"));
  }
}

void check_arguments(const at::TensorBase& from, const at::TensorBase& to, std::int64_t length) {
  check_layout(from, "from_tensor");
  check_layout(to, "to_tensor");
  if (from.dtype() != to.dtype()) {
    throw TypeMismatch(::staging::detail::join_message(
        "from_tensor and to_tensor must have one dtype, got ", from.dtype(), " and ", to.dtype(),
        "; convert one with .to()"));
  }
  STAGING_EXPECTS(from.dim() > 0 && to.dim() > 0,
                  "from_tensor and to_tensor must have at least one dimension, got ", from.dim(),
                  " and ", to.dim());
  STAGING_EXPECTS(from.sizes().slice(1) == to.sizes().slice(1),
                  "from_tensor and to_tensor must have one shape behind dimension 0, got ",
                  from.sizes(), " and ", to.sizes());
  // What copy_() would refuse or track.
  if (c10::GradMode::is_enabled() && (from.requires_grad() || to.requires_grad())) {
    throw TypeMismatch(
        "copy_slice is not differentiable and got a tensor that requires a gradient; pass "
        ".detach() or call it under torch.no_grad()");
  }
  for (std::int64_t d = 0; d < to.dim(); ++d) {
    STAGING_EXPECTS(to.stride(d) != 0 || to.size(d) <= 1, "to_tensor is expanded along dimension ",
                    d, ", several of its elements share memory; pass a tensor of its own memory");
  }
  const std::int64_t limit = std::min(from.size(0), to.size(0));
  STAGING_EXPECTS(length >= 0 && length <= limit, "length must be in 0..", limit,
                  " (from_tensor has ", from.size(0), " rows, to_tensor has ", to.size(0),
                  "), got ", length);
}

// One copy_slice: the block and where its two ends are.
struct Copy {
  const at::TensorBase& from;
  const at::TensorBase& to;
  BlockPair block;
  c10::SmallVector<std::int64_t, 6> sizes;  // of the slice
  const std::byte* src;
  std::byte* dst;
};

// Memory that both sides touch, unless they are the same bytes in the same order.
bool overlaps(const Copy& copy) {
  if (copy.from.storage().data() != copy.to.storage().data()) return false;
  const auto extent = [&](c10::IntArrayRef strides) {
    std::int64_t last = 0;
    for (std::size_t d = 0; d < copy.sizes.size(); ++d) last += (copy.sizes[d] - 1) * strides[d];
    return (last + 1) * static_cast<std::int64_t>(copy.block.element_nbytes);
  };
  return copy.src < copy.dst + extent(copy.to.strides()) &&
         copy.dst < copy.src + extent(copy.from.strides());
}

#if defined(STAGING_WITH_CUDA)

class DeviceCopy {
 public:
  DeviceCopy(const Copy& copy, StreamRef stream)
      : copy_(copy), stream_(stream), context_(DeviceContext::of(stream.device)) {}

  void host_to_device(bool snapshot) {
    keep_device_memory(copy_.to, stream_);
    if (!snapshot && is_pinned(copy_.from, context_) && direct(CopyKind::kHostToDevice)) {
      keep_host(copy_.from);
      return;
    }
    refuse_capture("copies a host tensor through a reused slot");
    through_ring();
  }

  void device_to_host() {
    keep_device_memory(copy_.from, stream_);
    const bool pinned = is_pinned(copy_.to, context_);
    if (!pinned) refuse_capture("waits for a pageable destination");
    if (direct(CopyKind::kDeviceToHost)) {
      pinned ? keep_host(copy_.to) : record().synchronize();
      return;
    }
    if (pinned) {
      // The kernel writes through the device's mapping of the destination.
      launch_strided(copy_.block, device_view(copy_.dst), copy_.src);
      keep_host(copy_.to);
      return;
    }
    unpack_on_host();
  }

  void device_to_device() {
    keep_device_memory(copy_.from, stream_);
    keep_device_memory(copy_.to, stream_);
    if (!direct(CopyKind::kDeviceToDevice)) launch_strided(copy_.block, copy_.dst, copy_.src);
  }

 private:
  // One transfer, where the block is a run of bytes or rows with a pitch.
  bool direct(CopyKind kind) {
    if (copy_.block.contiguous()) {
      context_.runtime().copy_async(stream_.device, copy_.dst, copy_.src, copy_.block.nbytes(),
                                    kind, stream_.handle);
      return true;
    }
    std::size_t width = 0, height = 0, src_pitch = 0, dst_pitch = 0;
    if (kind == CopyKind::kDeviceToDevice ||
        !copy_.block.rows(&width, &height, &src_pitch, &dst_pitch)) {
      return false;
    }
    context_.runtime().copy_2d_async(stream_.device, copy_.dst, dst_pitch, copy_.src, src_pitch,
                                     width, height, kind, stream_.handle);
    return true;
  }

  // The host packs rows of dimension 0 into a slot; a transfer or a kernel takes them out.
  void through_ring() {
    UploadRing& ring = context_.ring(stream_.handle);
    const std::size_t row_nbytes = copy_.block.nbytes() / static_cast<std::size_t>(copy_.sizes[0]);
    const std::int64_t rows_a_piece =
        std::max<std::int64_t>(1, static_cast<std::int64_t>(kPieceNbytes / row_nbytes));
    const std::int64_t src_row =
        copy_.from.stride(0) * static_cast<std::int64_t>(copy_.block.element_nbytes);
    const std::int64_t dst_row =
        copy_.to.stride(0) * static_cast<std::int64_t>(copy_.block.element_nbytes);
    for (std::int64_t row = 0; row < copy_.sizes[0]; row += rows_a_piece) {
      c10::SmallVector<std::int64_t, 6> sizes = copy_.sizes;
      sizes[0] = std::min(rows_a_piece, copy_.sizes[0] - row);
      const std::size_t element_nbytes = copy_.block.element_nbytes;
      const BlockPair pack = to_dense(sizes, span_of(copy_.from.strides()), element_nbytes);
      const BlockPair unpack = from_dense(sizes, span_of(copy_.to.strides()), element_nbytes);
      std::byte* const dst = copy_.dst + row * dst_row;
      upload_through_slot(
          context_, ring, pack.nbytes(),
          [&](std::byte* slot) { copy_on_host(pack, slot, copy_.src + row * src_row); },
          [&](std::byte* slot) { put(unpack, dst, slot); });
    }
  }

  void put(const BlockPair& unpack, std::byte* dst, std::byte* slot) {
    Runtime& runtime = context_.runtime();
    std::size_t width = 0, height = 0, src_pitch = 0, dst_pitch = 0;
    if (unpack.contiguous()) {
      runtime.copy_async(stream_.device, dst, slot, unpack.nbytes(), CopyKind::kHostToDevice,
                         stream_.handle);
    } else if (unpack.rows(&width, &height, &src_pitch, &dst_pitch)) {
      runtime.copy_2d_async(stream_.device, dst, dst_pitch, slot, src_pitch, width, height,
                            CopyKind::kHostToDevice, stream_.handle);
    } else {
      launch_strided(unpack, dst, device_view(slot));
    }
  }

  void launch_strided(const BlockPair& block, std::byte* dst, const std::byte* src) {
    kernels::StridedCopyParams params{};
    params.src = reinterpret_cast<const unsigned char*>(src);
    params.dst = reinterpret_cast<unsigned char*>(dst);
    params.element_count = block.element_count;
    params.ndim = block.ndim;
    params.element_nbytes = static_cast<int>(block.element_nbytes);
    std::copy_n(block.sizes.begin(), block.ndim, params.sizes);
    std::copy_n(block.src_strides.begin(), block.ndim, params.src_strides_nbytes);
    std::copy_n(block.dst_strides.begin(), block.ndim, params.dst_strides_nbytes);
    kernels::launch_strided_copy(context_.runtime(), stream_.device, stream_.handle, params);
  }

  // How a kernel sees pinned memory.
  std::byte* device_view(std::byte* pinned) {
    const PointerInfo info = context_.runtime().pointer_info(pinned);
    if (info.device_pointer == nullptr) {
      throw StateError("the device cannot address this pinned memory; allocate it as mapped");
    }
    return static_cast<std::byte*>(info.device_pointer);
  }

  // A strided pageable destination: the run of device memory that holds the slice is brought
  // to the host and picked apart there.
  void unpack_on_host() {
    std::int64_t last = 0;
    for (std::size_t d = 0; d < copy_.sizes.size(); ++d) {
      last += (copy_.sizes[d] - 1) * copy_.from.stride(static_cast<std::int64_t>(d));
    }
    const std::size_t span_nbytes = static_cast<std::size_t>(last + 1) * copy_.block.element_nbytes;
    PinnedBuffer staging(context_.runtime(), stream_.device, span_nbytes);
    context_.runtime().copy_async(stream_.device, staging.data(), copy_.src, span_nbytes,
                                  CopyKind::kDeviceToHost, stream_.handle);
    try {
      record().synchronize();
    } catch (...) {
      staging.leak();  // the copy may still run
      throw;
    }
    copy_on_host(copy_.block, copy_.dst, staging.data());
  }

  void refuse_capture(const char* why) {
    if (!capturing()) return;
    throw StateError(::staging::detail::join_message(
        "this copy_slice ", why,
        ", which a CUDA graph cannot replay; use pinned, contiguous host "
        "tensors under capture"));
  }

  Event record() {
    Event event = context_.events().acquire();
    event.record(stream_.handle);
    return event;
  }

  void keep_host(const at::TensorBase& tensor) {
    keep_host_memory(tensor, stream_, context_, [&] { return record(); });
  }

  bool capturing() {
    return context_.runtime().capture_status(stream_.device, stream_.handle) !=
           CaptureStatus::kNone;
  }

  const Copy& copy_;
  const StreamRef stream_;
  DeviceContext& context_;
};

#endif  // STAGING_WITH_CUDA

}  // namespace

void copy_slice(const at::TensorBase& from, const at::TensorBase& to, std::int64_t length,
                const CopySliceOptions& options) {
  check_arguments(from, to, length);
  Copy copy{.from = from,
            .to = to,
            .block = {},
            .sizes = {to.sizes().begin(), to.sizes().end()},
            .src = static_cast<const std::byte*>(from.const_data_ptr()),
            .dst = static_cast<std::byte*>(to.mutable_data_ptr())};
  copy.sizes[0] = length;
  if (c10::multiply_integers(copy.sizes) == 0) return;
  copy.block =
      make_block_pair(copy.sizes, span_of(from.strides()), span_of(to.strides()), from.itemsize());
  if (copy.src == copy.dst && from.strides() == to.strides()) return;
  STAGING_EXPECTS(!overlaps(copy),
                  "from_tensor and to_tensor overlap in memory; clone one of them first");
  to.unsafeGetTensorImpl()->bump_version();

  if (from.is_cpu() && to.is_cpu()) return copy_on_host(copy.block, copy.dst, copy.src);
#if defined(STAGING_WITH_CUDA)
  const auto supported = [](const at::TensorBase& t) { return t.is_cpu() || t.is_cuda(); };
  if (supported(from) && supported(to)) {
    Runtime::check_not_forked();
    if (from.is_cuda() && to.is_cuda() && from.device() != to.device()) {
      // Between devices PyTorch orders both sides' current streams.
      at::Tensor(to)
          .narrow(0, 0, length)
          .copy_(at::Tensor(from).narrow(0, 0, length),
                 /*non_blocking=*/true);
      return;
    }
    const int device = to.is_cuda() ? to.device().index() : from.device().index();
    StreamRef stream = current_stream(device);
    if (options.stream) stream.handle = *options.stream;
    const DeviceScope scope(Runtime::get(), device);
    DeviceCopy on_device(copy, stream);
    if (from.is_cpu()) return on_device.host_to_device(options.snapshot);
    if (to.is_cpu()) return on_device.device_to_host();
    return on_device.device_to_device();
  }
#else
  (void)options;
#endif
  throw TypeMismatch(::staging::detail::join_message(
      "copy_slice copies between CPU and CUDA tensors, got ", from.device(), " and ", to.device()));
}

}  // namespace staging::torch_ops
