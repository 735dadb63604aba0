#include "torch_ops/copy_slices.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "runtime/device_scope.h"
#include "support/error.h"
#include "torch_ops/slice_pair.h"
#include "torch_ops/tensor_access.h"
#include "transfer/address_ranges.h"
#include "transfer/execute.h"
#include "transfer/upload.h"

namespace staging::torch_ops {

namespace {

// How a slice travels. Slices of one route share their operations.
enum class Route : std::uint8_t {
  kHost,    // from host to host, in the call
  kUp,      // to the device: from pinned memory itself, or through a slot
  kWithin,  // from the device to itself
  kDown,    // to the host: to pinned memory itself, or through a staging buffer
  kAlone,   // what takes an operation of its own anyway
};
constexpr std::size_t kRoutes = 5;

struct Slice {
  SlicePair pair;
  Route route = Route::kHost;
  bool through_staging = false;  // the host side is packed, or unpacked, by the host
};

// A slice of more runs of bytes than this is one strided kernel.
constexpr std::int64_t kMaxRuns = 32;
// What passes through one slot, or one staging buffer, at a time.
constexpr std::size_t kPieceNbytes = std::size_t{8} << 20;

// What the slices that wait for their turn read and write, by route.
class Pending {
 public:
  // Whether a slice must come after one that waits on another route. (Those of its own route
  // are carried out in order.)
  bool conflicts(const Slice& slice) const {
    const SlicePair& pair = slice.pair;
    for (std::size_t route = 0; route < kRoutes; ++route) {
      if (route == static_cast<std::size_t>(slice.route)) continue;
      if (written_[route].overlaps(pair.src, pair.src_extent()) ||
          written_[route].overlaps(pair.dst, pair.dst_extent()) ||
          read_[route].overlaps(pair.dst, pair.dst_extent())) {
        return true;
      }
    }
    return false;
  }
  void add(const Slice& slice) {
    const SlicePair& pair = slice.pair;
    read_[static_cast<std::size_t>(slice.route)].add(pair.src, pair.src_extent());
    written_[static_cast<std::size_t>(slice.route)].add(pair.dst, pair.dst_extent());
  }
  void clear() { *this = {}; }

 private:
  AddressRanges read_[kRoutes];
  AddressRanges written_[kRoutes];
};

#if defined(STAGING_WITH_CUDA)

class DeviceSlices {
 public:
  DeviceSlices(StreamRef stream, const CopySliceOptions& options)
      : stream_(stream),
        options_(options),
        context_(DeviceContext::of(stream.device)),
        capture_(context_.runtime().capture_status(stream.device, stream.handle)) {}

  // Chooses each slice's route. Throws where one cannot be captured.
  void route(std::span<Slice> slices) {
    for (std::size_t i = 0; i < slices.size(); ++i) {
      Slice& slice = slices[i];
      choose(slice);
      if (capture_ == CaptureStatus::kNone || !slice.through_staging) continue;
      throw StateError(::staging::detail::join_message(
          "slices[", i,
          "] passes through host memory that is used again, which a CUDA graph "
          "cannot replay; use pinned, contiguous host tensors under capture"));
    }
  }

  void run(std::span<Slice> slices) {
    const bool one_route = std::all_of(slices.begin(), slices.end(), [&](const Slice& slice) {
      return slice.route == slices.front().route;
    });
    if (one_route) return flush(slices);
    Pending pending;
    std::size_t first = 0;
    for (std::size_t i = 0; i < slices.size(); ++i) {
      if (pending.conflicts(slices[i])) {
        flush(slices.subspan(first, i - first));
        first = i;
        pending.clear();
      }
      pending.add(slices[i]);
    }
    flush(slices.subspan(first));
  }

 private:
  void choose(Slice& slice) {
    const SlicePair& pair = slice.pair;
    const bool from_host = pair.from.is_cpu();
    const bool to_host = pair.to.is_cpu();
    if (from_host && to_host) {
      slice.route = Route::kHost;
      return;
    }
    slice.route = from_host ? Route::kUp : to_host ? Route::kDown : Route::kWithin;
    if (slice.route != Route::kWithin) {
      const bool pinned = from_host ? is_pinned(pair.from, pair.src, pair.src_extent(), context_)
                                    : is_pinned(pair.to, pair.dst, pair.dst_extent(), context_);
      slice.through_staging = (from_host && options_.snapshot) || !pinned;
    }
    const BlockPair& moved =
        slice.through_staging ? (from_host ? pair.unpack() : pair.pack()) : pair.block;
    if (moved.run_count() > kMaxRuns ||
        (slice.through_staging && pair.block.nbytes() > kPieceNbytes)) {
      slice.route = Route::kAlone;
    }
  }

  void flush(std::span<Slice> slices) {
    std::vector<Slice*> of_route[kRoutes];
    for (Slice& slice : slices) {
      of_route[static_cast<std::size_t>(slice.route)].push_back(&slice);
    }
    for (Slice* slice : of_route[static_cast<std::size_t>(Route::kHost)]) {
      copy_on_host(slice->pair.block, slice->pair.dst, slice->pair.src);
    }
    up(of_route[static_cast<std::size_t>(Route::kUp)]);
    within(of_route[static_cast<std::size_t>(Route::kWithin)]);
    down(of_route[static_cast<std::size_t>(Route::kDown)]);
    for (Slice* slice : of_route[static_cast<std::size_t>(Route::kAlone)]) alone(*slice);
  }

  // -- the three routes over the stream ----------------------------------------------------
  void up(std::span<Slice*> slices) {
    in_pieces(slices,
              [&](std::span<Slice*> piece, std::size_t nbytes) { up_piece(piece, nbytes); });
  }

  void up_piece(std::span<Slice*> slices, std::size_t staged_nbytes) {
    MemoryUse use(context_, stream_, capturing());
    for (const Slice* slice : slices) {
      use.device(slice->pair.to);
      if (!slice->through_staging) use.host(slice->pair.from);
    }
    const void* host_side = slices.front()->pair.src;
    const auto enqueue = [&](const std::byte* slot) {
      items_.clear();
      place(slices, [&](const Slice& slice, std::size_t offset) {
        if (slice.through_staging) {
          add_runs(slice.pair.unpack(), slice.pair.dst, slot + offset);
        } else {
          add_runs(slice.pair.block, slice.pair.dst, slice.pair.src);
        }
      });
      enqueue_items(CopyKind::kHostToDevice, slot != nullptr ? slot : host_side);
    };
    if (staged_nbytes == 0) {
      enqueue(nullptr);
    } else {
      const std::shared_ptr<UploadRing> ring = context_.ring(stream_);
      upload_through_slot(
          context_, *ring, staged_nbytes,
          [&](std::byte* slot) {
            place(slices, [&](const Slice& slice, std::size_t offset) {
              if (slice.through_staging)
                copy_on_host(slice.pair.pack(), slot + offset, slice.pair.src);
            });
          },
          enqueue);
    }
    use.enqueued();
  }

  void within(std::span<Slice*> slices) {
    if (slices.empty()) return;
    items_.clear();
    MemoryUse use(context_, stream_, capturing());
    for (const Slice* slice : slices) {
      use.device(slice->pair.from);
      use.device(slice->pair.to);
      add_runs(slice->pair.block, slice->pair.dst, slice->pair.src);
    }
    enqueue_items(CopyKind::kDeviceToDevice, nullptr);
    use.enqueued();
  }

  void down(std::span<Slice*> slices) {
    in_pieces(slices,
              [&](std::span<Slice*> piece, std::size_t nbytes) { down_piece(piece, nbytes); });
  }

  void down_piece(std::span<Slice*> slices, std::size_t staged_nbytes) {
    MemoryUse use(context_, stream_, capturing());
    for (const Slice* slice : slices) {
      use.device(slice->pair.from);
      if (!slice->through_staging) use.host(slice->pair.to);
    }
    PinnedBlock staging;
    if (staged_nbytes > 0) staging = context_.pool().allocate(staged_nbytes, stream_.device);
    items_.clear();
    place(slices, [&](const Slice& slice, std::size_t offset) {
      if (slice.through_staging) {
        add_runs(slice.pair.pack(), staging.bytes() + offset, slice.pair.src);
      } else {
        add_runs(slice.pair.block, slice.pair.dst, slice.pair.src);
      }
    });
    enqueue_items(CopyKind::kDeviceToHost, staging ? staging.data() : slices.front()->pair.dst);
    if (!staging) return use.enqueued();
    try {
      const Event behind = use.recorded();
      staging.add_gate(behind);  // an interrupted wait leaves the block to the copies
      behind.synchronize();
    } catch (...) {
      if (use.lost()) staging.detach();  // leaked: the copies may run yet
      throw;
    }
    place(slices, [&](const Slice& slice, std::size_t offset) {
      if (!slice.through_staging) return;
      copy_on_host(slice.pair.unpack(), slice.pair.dst, staging.bytes() + offset);
    });
  }

  // -- what they share -----------------------------------------------------------------------
  // In pieces: what one slot holds, and the slices between that need none. `move` throws
  // OutOfMemory, and has done nothing then, where there is no pinned memory for a piece.
  template <typename Move>
  void in_pieces(std::span<Slice*> slices, Move move) {
    while (!slices.empty()) {
      std::size_t count = 0;
      std::size_t nbytes = 0;
      for (; count < slices.size(); ++count) {
        const std::size_t end = reserve(*slices[count], nbytes);
        if (end > piece_nbytes_ && nbytes > 0) break;
        nbytes = end;
      }
      try {
        move(slices.first(count), nbytes);
      } catch (const OutOfMemory&) {
        if (nbytes == 0) throw;
        if (nbytes <= piece_nbytes_) {
          piece_nbytes_ = nbytes / 2;
          continue;
        }
        // One slice that needs memory, and may be taken apart.
        for (const Slice* slice : slices.first(count)) alone(*slice);
      }
      slices = slices.subspan(count);
    }
  }
  void alone(const Slice& slice) {
    copy_slice(slice.pair.from, slice.pair.to, slice.pair.sizes[0],
               {.snapshot = options_.snapshot, .stream = stream_});
  }

  // Where a staged slice begins behind `nbytes` of others: as its device side lies, so that
  // both are aligned alike and neighbours stay neighbours.
  static std::size_t begin_of(const Slice& slice, std::size_t nbytes) {
    const void* on_device = slice.route == Route::kUp ? static_cast<const void*>(slice.pair.dst)
                                                      : static_cast<const void*>(slice.pair.src);
    return nbytes + ((reinterpret_cast<std::uintptr_t>(on_device) - nbytes) & 15);
  }
  static std::size_t reserve(const Slice& slice, std::size_t nbytes) {
    return slice.through_staging ? begin_of(slice, nbytes) + slice.pair.block.nbytes() : nbytes;
  }
  template <typename Visit>
  static void place(std::span<Slice*> slices, Visit visit) {
    std::size_t nbytes = 0;
    for (const Slice* slice : slices) {
      visit(*slice, slice->through_staging ? begin_of(*slice, nbytes) : 0);
      nbytes = reserve(*slice, nbytes);
    }
  }

  void add_runs(const BlockPair& block, std::byte* dst, const std::byte* src) {
    const std::size_t nbytes = block.run_nbytes();
    block.for_each_run([&](std::int64_t from, std::int64_t to) {
      items_.push_back({dst + to, src + from, nbytes});
    });
  }

  // Enqueues items_. Where it throws, nothing is in flight.
  void enqueue_items(CopyKind kind, const void* host_side) {
    const PlanLimits limits = limits_on(context_, stream_, capture_, host_side);
    plan_.plan(items_, kind, CostTable::current(stream_.device).of(kind), limits);
    std::size_t enqueued = 0;
    try {
      execute(context_, stream_, kind, plan_, &enqueued);
    } catch (...) {
      if (enqueued > 0) settle();
      throw;
    }
  }

  // After an error: waits for what is in flight, so that nothing is.
  void settle() noexcept {
    try {
      context_.runtime().synchronize_stream(stream_.device, stream_.handle);
    } catch (...) {  // the first error is the one to report
    }
  }

  bool capturing() const noexcept { return capture_ != CaptureStatus::kNone; }

  const StreamRef stream_;
  const CopySliceOptions& options_;
  DeviceContext& context_;
  const CaptureStatus capture_;
  std::size_t piece_nbytes_ = kPieceNbytes;  // less where pinned memory is short
  std::vector<CopyItem> items_;
  CopyPlan plan_;
};

// The one device that the slices are of, or -1.
int device_of(std::span<const Slice> slices) {
  int device = -1;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    for (const at::TensorBase* tensor : {&slices[i].pair.from, &slices[i].pair.to}) {
      if (!tensor->is_cuda()) continue;
      const int index = tensor->device().index();
      STAGING_EXPECTS(device < 0 || device == index,
                      "the device tensors of slices must be on one device, got cuda:", device,
                      " and, in slices[", i, "], cuda:", index, "; make one call for each");
      device = index;
    }
  }
  return device;
}

#endif  // STAGING_WITH_CUDA

SlicePair make_named_pair(const SliceArguments& slice, std::size_t index) {
  const std::string where = "slices[" + std::to_string(index) + "]: ";
  try {
    return make_slice_pair(slice.from, slice.to, slice.length);
  } catch (const TypeMismatch& error) {
    throw TypeMismatch(where + error.what());
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(where + error.what());
  }
}

void check_places(const SlicePair& pair, std::size_t index) {
  const auto supported = [](const at::TensorBase& tensor) {
#if defined(STAGING_WITH_CUDA)
    if (tensor.is_cuda()) return true;
#endif
    return tensor.is_cpu();
  };
  if (supported(pair.from) && supported(pair.to)) return;
  throw TypeMismatch(::staging::detail::join_message(
      "slices[", index, "]: copy_slices copies between CPU and CUDA tensors, got ",
      pair.from.device(), " and ", pair.to.device()));
}

}  // namespace

void copy_slices(std::span<const SliceArguments> arguments, const CopySliceOptions& options) {
  std::vector<Slice> slices;
  slices.reserve(arguments.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    SlicePair pair = make_named_pair(arguments[i], i);
    check_places(pair, i);
    if (!pair.nothing_to_do()) slices.push_back({.pair = std::move(pair)});
  }
  if (slices.empty()) return;
#if defined(STAGING_WITH_CUDA)
  const int device = device_of(slices);
  if (device >= 0) {
    Runtime::check_not_forked();
    const StreamRef stream = options.stream ? *options.stream : current_stream(device);
    const DeviceScope scope(Runtime::get(), device);
    DeviceSlices on_device(stream, options);
    on_device.route(slices);
    for (Slice& slice : slices) slice.pair.to.unsafeGetTensorImpl()->bump_version();
    on_device.run(slices);
    return;
  }
#else
  (void)options;
#endif
  for (Slice& slice : slices) {
    slice.pair.to.unsafeGetTensorImpl()->bump_version();
    copy_on_host(slice.pair.block, slice.pair.dst, slice.pair.src);
  }
}

}  // namespace staging::torch_ops
