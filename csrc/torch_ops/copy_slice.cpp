#include "torch_ops/copy_slice.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>

#include "kernels/strided_copy.h"
#include "runtime/device_scope.h"
#include "support/error.h"
#include "support/slow_path.h"
#include "torch_ops/slice_pair.h"
#include "torch_ops/tensor_access.h"
#include "transfer/pinned_copy.h"
#include "transfer/upload.h"

namespace staging::torch_ops {

namespace {

// A larger snapshot passes through the ring in pieces of this size.
constexpr std::size_t kPieceNbytes = std::size_t{8} << 20;
// Where pinned memory is short, the pieces are made smaller, down to this.
constexpr std::size_t kLeastPieceNbytes = std::size_t{4} << 10;

#if defined(STAGING_WITH_CUDA)

constexpr SlowPath kPageableSource{
    "from_tensor", "is pageable: the host copies it into pinned slots first",
    "pin it (staging.pinned_empty, pin_memory=True), or say snapshot=True"};
constexpr SlowPath kPageableDestination{"to_tensor",
                                        "is pageable: the copy returns when its bytes are there",
                                        "pin it (staging.pinned_empty, pin_memory=True)"};
constexpr SlowPath kGapOnTheWayDown{
    "from_tensor and to_tensor",
    "are not one run of bytes each: the copy is a kernel, or packed by the host",
    "make the slices contiguous, or stage whole rows"};
constexpr SlowPath kGapOnTheWayUp{"to_tensor and from_tensor",
                                  "are not one run of bytes each: the copy is a kernel",
                                  "make the slices contiguous, or fetch whole rows"};

// Calls move(sizes, dst, src) for pieces of a slice, in logical order, which throws OutOfMemory,
// and has done nothing then, where it has no memory for a piece of that size.
template <typename Move>
class Pieces {
 public:
  Pieces(const SlicePair& copy, std::size_t piece_nbytes, Move move)
      : copy_(copy), piece_nbytes_(piece_nbytes), move_(std::move(move)) {}

  void run() { run(copy_.sizes, 0, copy_.dst, copy_.src); }

 private:
  // Of a part of one element in each dimension before `d`. What a row of that dimension does not
  // fit into is taken apart along the next.
  void run(SlicePair::Sizes sizes, std::size_t d, std::byte* dst, const std::byte* src) {
    const auto element_nbytes = static_cast<std::int64_t>(copy_.block.element_nbytes);
    const std::int64_t src_row = copy_.from.stride(static_cast<std::int64_t>(d)) * element_nbytes;
    const std::int64_t dst_row = copy_.to.stride(static_cast<std::int64_t>(d)) * element_nbytes;
    std::size_t row_nbytes = copy_.block.element_nbytes;
    for (std::size_t inner = d + 1; inner < sizes.size(); ++inner) {
      row_nbytes *= static_cast<std::size_t>(sizes[inner]);
    }
    const std::int64_t count = sizes[d];
    for (std::int64_t row = 0; row < count; row += sizes[d]) {
      const auto fit = static_cast<std::int64_t>(piece_nbytes_ / row_nbytes);
      sizes[d] = std::clamp<std::int64_t>(fit, 1, count - row);
      if (fit == 0 && d + 1 < sizes.size()) {
        run(sizes, d + 1, dst + row * dst_row, src + row * src_row);
        continue;
      }
      try {
        move_(sizes, dst + row * dst_row, src + row * src_row);
      } catch (const OutOfMemory&) {
        const std::size_t nbytes = static_cast<std::size_t>(sizes[d]) * row_nbytes;
        if (nbytes <= kLeastPieceNbytes) throw;
        piece_nbytes_ = nbytes / 2;
        sizes[d] = 0;  // once more
      }
    }
  }

  const SlicePair& copy_;
  std::size_t piece_nbytes_;
  Move move_;
};

class DeviceCopy {
 public:
  DeviceCopy(const SlicePair& copy, StreamRef stream)
      : copy_(copy),
        stream_(stream),
        context_(DeviceContext::of(stream.device)),
        capturing_(context_.runtime().capture_status(stream.device, stream.handle) !=
                   CaptureStatus::kNone),
        use_(context_, stream, capturing_) {}

  void host_to_device(bool snapshot) {
    const bool pinned = is_pinned(copy_.from, copy_.src, copy_.src_extent(), context_);
    if (!snapshot && !pinned) report_slow_path(kPageableSource);
    if (!copy_.block.contiguous()) report_slow_path(kGapOnTheWayDown);
    if (!snapshot && pinned && one_operation()) {
      use_.device(copy_.to);
      use_.host(copy_.from);
      enqueue([&] { direct(CopyKind::kHostToDevice); });
      return;
    }
    refuse_capture("copies a host tensor through a reused slot");
    use_.device(copy_.to);
    enqueue([&] { through_ring(); });
  }

  void device_to_host() {
    const bool pinned = is_pinned(copy_.to, copy_.dst, copy_.dst_extent(), context_);
    if (!pinned) {
      refuse_capture("waits for a pageable destination");
      report_slow_path(kPageableDestination);
    } else if (!copy_.block.contiguous()) {
      report_slow_path(kGapOnTheWayUp);
    }
    if (!pinned && !copy_.block.contiguous()) return unpack_on_host();
    use_.device(copy_.from);
    use_.host(copy_.to);
    if (!pinned) {
      // Returns when the bytes are there. Interrupted, it leaves the tensor's memory held.
      enqueue_only([&] { direct(CopyKind::kDeviceToHost); });
      use_.recorded().synchronize();
      return;
    }
    enqueue([&] {
      if (one_operation()) {
        direct(CopyKind::kDeviceToHost);
      } else {
        // The kernel writes through the device's mapping of the destination.
        launch_strided(copy_.block, device_view(copy_.dst), copy_.src);
      }
    });
  }

  void device_to_device() {
    use_.device(copy_.from);
    use_.device(copy_.to);
    enqueue([&] {
      if (copy_.block.contiguous()) {
        direct(CopyKind::kDeviceToDevice);
      } else {
        launch_strided(copy_.block, copy_.dst, copy_.src);
      }
    });
  }

 private:
  template <typename Operation>
  void enqueue_only(Operation operation) {
    try {
      operation();
    } catch (...) {
      use_.failed();
      throw;
    }
  }
  template <typename Operation>
  void enqueue(Operation operation) {
    enqueue_only(operation);
    use_.enqueued();
  }

  // The block is a run of bytes, or rows with a pitch.
  bool one_operation() const {
    std::size_t width = 0, height = 0, src_pitch = 0, dst_pitch = 0;
    return copy_.block.contiguous() || copy_.block.rows(&width, &height, &src_pitch, &dst_pitch);
  }

  void direct(CopyKind kind) {
    if (copy_.block.contiguous()) {
      copy_pinned_async(context_.pool(), stream_, copy_.dst, copy_.src, copy_.block.nbytes(), kind);
    } else {
      copy_rows(copy_.block, copy_.dst, copy_.src, kind,
                kind == CopyKind::kHostToDevice ? copy_.src : copy_.dst);
    }
  }

  // Rows with a pitch, one side of them pinned. By a kernel: cudaMemcpy2DAsync is reported to
  // be a thousand times slower than that at some widths (pytorch #153176).
  bool copy_rows(const BlockPair& block, std::byte* dst, const std::byte* src, CopyKind kind,
                 const void* pinned) {
    std::size_t width = 0, height = 0, src_pitch = 0, dst_pitch = 0;
    if (!block.rows(&width, &height, &src_pitch, &dst_pitch)) return false;
    if (context_.addresses_pinned(pinned)) {
      launch_strided(block, dst, src);
    } else if (context_.pool().has_seams()) {
      for (std::size_t row = 0; row < height; ++row) {
        copy_pinned_async(context_.pool(), stream_, dst + row * dst_pitch, src + row * src_pitch,
                          width, kind);
      }
    } else {
      context_.runtime().copy_2d_async(stream_.device, dst, dst_pitch, src, src_pitch, width,
                                       height, kind, stream_.handle);
    }
    return true;
  }

  // The host packs a piece into a slot; a transfer or a kernel takes it out.
  void through_ring() {
    const std::shared_ptr<UploadRing> ring = context_.ring(stream_);
    const std::size_t element_nbytes = copy_.block.element_nbytes;
    Pieces(copy_, kPieceNbytes,
           [&](const SlicePair::Sizes& sizes, std::byte* dst, const std::byte* src) {
             const BlockPair pack = to_dense(sizes, span_of(copy_.from.strides()), element_nbytes);
             const BlockPair unpack =
                 from_dense(sizes, span_of(copy_.to.strides()), element_nbytes);
             upload_through_slot(
                 context_, *ring, pack.nbytes(),
                 [&](std::byte* slot) { copy_on_host(pack, slot, src); },
                 [&](std::byte* slot) { put(unpack, dst, slot); });
           })
        .run();
  }

  void put(const BlockPair& unpack, std::byte* dst, std::byte* slot) {
    if (unpack.contiguous()) {
      copy_pinned_async(context_.pool(), stream_, dst, slot, unpack.nbytes(),
                        CopyKind::kHostToDevice);
    } else if (!copy_rows(unpack, dst, slot, CopyKind::kHostToDevice, slot)) {
      launch_strided(unpack, dst, device_view(slot));
    }
  }

  void launch_strided(const BlockPair& narrow, std::byte* dst, const std::byte* src) {
    const BlockPair block = widened(narrow, dst, src);
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
    if (context_.addresses_pinned(pinned)) return pinned;
    const PointerInfo info = context_.runtime().pointer_info(pinned);
    if (info.device_pointer == nullptr) {
      throw StateError("the device cannot address this pinned memory; allocate it as mapped");
    }
    return static_cast<std::byte*>(info.device_pointer);
  }

  // A strided pageable destination: the run of device memory that holds the slice, or a piece of
  // it where pinned memory is short, is brought to the host and picked apart there.
  void unpack_on_host() {
    Pieces(copy_, copy_.block.nbytes(),
           [&](const SlicePair::Sizes& sizes, std::byte* dst, const std::byte* src) {
             unpack_piece(sizes, dst, src);
           })
        .run();
  }

  void unpack_piece(const SlicePair::Sizes& sizes, std::byte* dst, const std::byte* src) {
    const std::size_t span_nbytes = copy_.extent(sizes, copy_.from.strides());
    PinnedBlock staging = context_.pool().allocate(span_nbytes, stream_.device);
    use_.device(copy_.from);  // of each piece: an interrupted wait leaves the tensor to its copy
    try {
      enqueue_only([&] {
        copy_pinned_async(context_.pool(), stream_, staging.data(), src, span_nbytes,
                          CopyKind::kDeviceToHost);
      });
      const Event event = use_.recorded();
      staging.add_gate(event);  // an interrupted wait leaves the block to the copy
      event.synchronize();
    } catch (...) {
      if (use_.lost()) staging.detach();  // leaked: the copy may run yet
      throw;
    }
    const BlockPair unpack =
        make_block_pair(sizes, span_of(copy_.from.strides()), span_of(copy_.to.strides()),
                        copy_.block.element_nbytes);
    copy_on_host(unpack, dst, staging.data());
  }

  void refuse_capture(const char* why) {
    if (!capturing_) return;
    throw StateError(::staging::detail::join_message(
        "this copy_slice ", why,
        ", which a CUDA graph cannot replay; use pinned, contiguous host "
        "tensors under capture"));
  }

  const SlicePair& copy_;
  const StreamRef stream_;
  DeviceContext& context_;
  const bool capturing_;
  MemoryUse use_;
};

#endif  // STAGING_WITH_CUDA

}  // namespace

void copy_slice(const at::TensorBase& from, const at::TensorBase& to, std::int64_t length,
                const CopySliceOptions& options) {
  const SlicePair copy = make_slice_pair(from, to, length);
  if (copy.nothing_to_do()) return;
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
    const StreamRef stream = options.stream ? *options.stream : current_stream(device);
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
