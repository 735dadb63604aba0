#include "sim/transfer.h"

#include <cstring>

#include "sim/random.h"
#include "sim/reports.h"

namespace staging::sim {

namespace {

const char* describe_kind(const Range& range) {
  switch (range.kind) {
    case Range::Kind::kDevice:
      return "device";
    case Range::Kind::kPinned:
      return "pinned";
    case Range::Kind::kPageable:
      return "pageable";
  }
  return "";
}

// What a copy does when a page under it is gone.
cudaError_t illegal_access(const Work& work) {
  Reports::get().add("illegal-address", work.describe() + " found unmapped memory");
  return cudaErrorIllegalAddress;
}

// The side of a copy on which each end stands.
struct Sides {
  bool dst_host = false;
  bool src_host = false;
};

// The sides that `kind` names, or those of the pointers where it leaves them to be inferred.
// False where there is no such kind.
bool sides_of(cudaMemcpyKind kind, const Range& dst, const Range& src, Sides* out) {
  switch (kind) {
    case cudaMemcpyHostToHost:
      *out = {true, true};
      return true;
    case cudaMemcpyHostToDevice:
      *out = {false, true};
      return true;
    case cudaMemcpyDeviceToHost:
      *out = {true, false};
      return true;
    case cudaMemcpyDeviceToDevice:
      *out = {false, false};
      return true;
    case cudaMemcpyDefault:
      *out = {dst.host(), src.host()};
      return true;
  }
  return false;
}

// Pinned memory may stand on either side: all of it is mapped, and a device reaches it at its own
// address (CUDA runtime API, "Unified Addressing").
bool may_stand(const Range& range, bool host_side) {
  return range.kind == Range::Kind::kPinned || range.host() == host_side;
}

std::shared_ptr<const std::byte[]> take(const Range& src, const Shape& shape) {
  auto taken = std::make_shared_for_overwrite<std::byte[]>(shape.nbytes());
  for (std::size_t row = 0; row < shape.height; ++row) {
    std::memcpy(taken.get() + row * shape.width, src.place.address + row * shape.src_pitch,
                shape.width);
  }
  return taken;
}

// How a copy treats each end, from the kinds of memory and the sides on which they stand. A pinned
// end on the device side is the device's: nothing of such a copy happens in the call.
struct Treatment {
  bool take_source = false;  // read the source in the call
  bool complete = false;     // the call returns when the copy is done
};

Treatment treatment(const Range& dst, const Range& src, const Sides& sides, Waiting waiting) {
  const bool dst_pageable = dst.kind == Range::Kind::kPageable;
  const bool src_pageable = src.kind == Range::Kind::kPageable;
  const bool late = config().pageable_async && waiting == Waiting::kAsync;
  Treatment result;
  if (sides.dst_host && sides.src_host) {
    result.complete = true;
  } else if (!sides.dst_host && !sides.src_host) {
    result.complete = false;  // not even cudaMemcpy waits
  } else {
    result.take_source = src_pageable && !late;
    result.complete = (dst_pageable && !late) || (waiting == Waiting::kSync && !src_pageable);
  }
  return result;
}

Range untrusted(Range range) {
  if (range.kind == Range::Kind::kPageable) range.place.access = Place::Access::kUntrusted;
  return range;
}

}  // namespace

CopyWork::CopyWork(const Range& dst, const Range& src, const Shape& shape,
                   std::shared_ptr<const std::byte[]> taken)
    : CopyWork(dst, src, shape) {
  taken_ = std::move(taken);
  src_.place = {const_cast<std::byte*>(taken_.get()), Place::Access::kDirect};
  shape_.src_pitch = shape.width;
}

cudaError_t CopyWork::run() const {
  for (std::size_t row = 0; row < shape_.height; ++row) {
    if (!move_bytes(dst_.place.at(row * shape_.dst_pitch), src_.place.at(row * shape_.src_pitch),
                    shape_.width)) {
      return illegal_access(*this);
    }
  }
  return cudaSuccess;
}

std::string CopyWork::describe() const {
  return "a copy of " + std::to_string(shape_.nbytes()) + " bytes from " + describe_kind(src_) +
         " to " + describe_kind(dst_) + " memory";
}

cudaError_t FillWork::run() const {
  for (std::size_t row = 0; row < shape_.height; ++row) {
    if (!fill_bytes(dst_.place.at(row * shape_.dst_pitch), value_, shape_.width)) {
      return illegal_access(*this);
    }
  }
  return cudaSuccess;
}

std::string FillWork::describe() const {
  return "a fill of " + std::to_string(shape_.nbytes()) + " bytes of " + describe_kind(dst_) +
         " memory";
}

cudaError_t BatchWork::run() const {
  std::vector<const CopyWork*> order;
  order.reserve(copies_.size());
  for (const CopyWork& copy : copies_) order.push_back(&copy);
  Random random(order_seed_);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  for (const CopyWork* copy : order) {
    if (const cudaError_t error = copy->run(); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

std::string BatchWork::describe() const {
  return "a batch of " + std::to_string(copies_.size()) + " copies";
}

void BatchWork::visit_ranges(const std::function<void(const Range&)>& see) const {
  for (const CopyWork& copy : copies_) copy.visit_ranges(see);
}

bool BatchWork::uses(std::uintptr_t begin, std::uintptr_t end) const {
  for (const CopyWork& copy : copies_) {
    if (copy.uses(begin, end)) return true;
  }
  return false;
}

cudaError_t copy(const Call& call, Machine& machine, Lock& lock, Stream& stream, void* dst,
                 const void* src, const Shape& shape, cudaMemcpyKind kind, Waiting waiting) {
  if (shape.nbytes() == 0) return machine.check_enqueue(stream);
  Range to, from;
  if (const cudaError_t error = machine.memory.resolve(dst, shape.dst_extent(), &to);
      error != cudaSuccess) {
    return error;
  }
  if (const cudaError_t error = machine.memory.resolve(src, shape.src_extent(), &from);
      error != cudaSuccess) {
    return error;
  }
  Sides sides;
  if (!sides_of(kind, to, from, &sides)) return cudaErrorInvalidMemcpyDirection;
  if (!may_stand(to, sides.dst_host) || !may_stand(from, sides.src_host)) {
    return cudaErrorInvalidValue;
  }
  if (stream.capture != nullptr) {
    // A node reads and writes at each replay, whatever the memory is.
    return machine.issue(lock, call, stream, CopyWork(untrusted(to), untrusted(from), shape),
                         cudaGraphNodeTypeMemcpy);
  }
  const Treatment how = treatment(to, from, sides, waiting);
  cudaError_t error = cudaSuccess;
  if (waiting == Waiting::kSync && how.take_source) {
    // "A stream sync is performed before the copy is initiated."
    machine.engine.wait(lock, stream.tail());
  }
  if (how.take_source && machine.engine.may_defer(stream)) {
    error = machine.issue(lock, call, stream, CopyWork(to, from, shape, take(from, shape)),
                          cudaGraphNodeTypeMemcpy);
  } else {
    const bool outlives = !how.complete && !how.take_source;
    error = machine.issue(
        lock, call, stream,
        outlives ? CopyWork(untrusted(to), untrusted(from), shape) : CopyWork(to, from, shape),
        cudaGraphNodeTypeMemcpy);
  }
  if (error == cudaSuccess && how.complete) {
    machine.engine.wait(lock, stream.tail());
    error = machine.lost();
  }
  return error;
}

cudaError_t fill(const Call& call, Machine& machine, Lock& lock, Stream& stream, void* dst,
                 const Shape& shape, int value, Waiting waiting) {
  if (shape.nbytes() == 0) return machine.check_enqueue(stream);
  Range to;
  if (const cudaError_t error = machine.memory.resolve(dst, shape.dst_extent(), &to);
      error != cudaSuccess) {
    return error;
  }
  if (to.kind == Range::Kind::kPageable) return cudaErrorInvalidValue;
  if (const cudaError_t error =
          machine.issue(lock, call, stream, FillWork(to, shape, static_cast<unsigned char>(value)),
                        cudaGraphNodeTypeMemset);
      error != cudaSuccess) {
    return error;
  }
  // cudaMemset is asynchronous but for pinned host memory.
  if (waiting == Waiting::kSync && to.host()) machine.engine.wait(lock, stream.tail());
  return machine.lost();
}

cudaError_t copy_batch(const Call& call, Machine& machine, Lock& lock, Stream& stream,
                       void* const* dsts, const void* const* srcs, const std::size_t* sizes,
                       std::size_t count, const cudaMemcpyAttributes* attributes,
                       const std::size_t* first_of_attributes, std::size_t attribute_count) {
  if (count == 0 || dsts == nullptr || srcs == nullptr || sizes == nullptr ||
      attributes == nullptr || first_of_attributes == nullptr || attribute_count == 0 ||
      attribute_count > count || first_of_attributes[0] != 0) {
    return cudaErrorInvalidValue;
  }
  for (std::size_t i = 0; i < attribute_count; ++i) {
    const bool rising = i == 0 || first_of_attributes[i] > first_of_attributes[i - 1];
    const int order = attributes[i].srcAccessOrder;
    if (!rising || first_of_attributes[i] >= count || order < cudaMemcpySrcAccessOrderStream ||
        order > cudaMemcpySrcAccessOrderAny) {
      return cudaErrorInvalidValue;
    }
  }
  std::vector<CopyWork> copies;
  copies.reserve(count);
  std::size_t total = 0;
  std::size_t attribute = 0;
  bool complete = false;
  for (std::size_t i = 0; i < count; ++i) {
    while (attribute + 1 < attribute_count && first_of_attributes[attribute + 1] <= i) ++attribute;
    const cudaMemcpySrcAccessOrder order = attributes[attribute].srcAccessOrder;
    Range to, from;
    if (sizes[i] == 0 || machine.memory.resolve(dsts[i], sizes[i], &to) != cudaSuccess ||
        machine.memory.resolve(srcs[i], sizes[i], &from) != cudaSuccess) {
      return cudaErrorInvalidValue;
    }
    const Shape shape{sizes[i], 1, sizes[i], sizes[i]};
    total += sizes[i];
    // Out of stream order on request: then at once, which is the earliest that is allowed.
    // A pageable source "in stream order" is read when the copy runs.
    if (from.host() && order == cudaMemcpySrcAccessOrderDuringApiCall) {
      copies.emplace_back(to, from, shape, take(from, shape));
    } else {
      copies.emplace_back(untrusted(to), untrusted(from), shape);
    }
    complete |= !config().pageable_async && to.kind == Range::Kind::kPageable;
  }
  const std::uint64_t order_seed = machine.engine.schedule().seed() + stream.enqueued;
  if (const cudaError_t error =
          machine.issue(lock, call, stream, BatchWork(std::move(copies), total, order_seed),
                        cudaGraphNodeTypeMemcpy);
      error != cudaSuccess) {
    return error;
  }
  if (complete) machine.engine.wait(lock, stream.tail());
  return machine.lost();
}

}  // namespace staging::sim
