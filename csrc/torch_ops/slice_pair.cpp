#include "torch_ops/slice_pair.h"

#include <c10/core/GradMode.h>

#include <algorithm>

#include "support/error.h"
#include "transfer/strided_overlap.h"

namespace staging::torch_ops {

namespace {

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
  if (c10::isQIntType(from.scalar_type())) {
    throw TypeMismatch(::staging::detail::join_message(
        "from_tensor and to_tensor are of the quantized dtype ", from.dtype(),
        ", and a copy of the integers does not copy scale and zero point; pass .int_repr()"));
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

// `extent`: from the first byte of the slice to behind its last.
void check_storage(const at::TensorBase& tensor, const char* name, std::size_t extent) {
  const std::size_t needed =
      static_cast<std::size_t>(tensor.storage_offset()) * tensor.itemsize() + extent;
  if (needed <= tensor.storage().nbytes()) return;
  throw TypeMismatch(::staging::detail::join_message(
      name, " needs ", needed, " bytes of storage and has ", tensor.storage().nbytes(),
      ": its storage was resized; pass a tensor that has its memory"));
}

// Memory that both sides touch. They are addresses, not storages: several may be over one memory.
bool overlaps(const SlicePair& pair) {
  if (pair.src >= pair.dst + pair.dst_extent() || pair.dst >= pair.src + pair.src_extent()) {
    return false;
  }
  const BlockPair& block = pair.block;
  const auto ndim = static_cast<std::size_t>(block.ndim);
  return blocks_overlap(
      {block.sizes.data(), ndim}, block.element_nbytes,
      {reinterpret_cast<std::uintptr_t>(pair.src), {block.src_strides.data(), ndim}},
      {reinterpret_cast<std::uintptr_t>(pair.dst), {block.dst_strides.data(), ndim}});
}

// Memory that several elements of the destination share: which of them it would end with, nobody
// could say.
bool overlaps_itself(const SlicePair& pair) {
  if (pair.to.is_non_overlapping_and_dense()) return false;
  const BlockPair& block = pair.block;
  const auto ndim = static_cast<std::size_t>(block.ndim);
  return elements_overlap({block.sizes.data(), ndim}, block.element_nbytes,
                          {block.dst_strides.data(), ndim});
}

}  // namespace

bool SlicePair::nothing_to_do() const noexcept {
  return block.element_count == 0 || (src == dst && block.src_strides == block.dst_strides);
}

std::size_t SlicePair::extent(const Sizes& part, c10::IntArrayRef strides) const noexcept {
  std::int64_t last = 0;
  for (std::size_t d = 0; d < part.size(); ++d) last += (part[d] - 1) * strides[d];
  return static_cast<std::size_t>(last + 1) * block.element_nbytes;
}

BlockPair SlicePair::pack() const {
  return to_dense(sizes, span_of(from.strides()), block.element_nbytes);
}

BlockPair SlicePair::unpack() const {
  return from_dense(sizes, span_of(to.strides()), block.element_nbytes);
}

SlicePair make_slice_pair(const at::TensorBase& from, const at::TensorBase& to,
                          std::int64_t length) {
  check_arguments(from, to, length);
  SlicePair pair{.from = from,
                 .to = to,
                 .block = {},
                 .sizes = {to.sizes().begin(), to.sizes().end()},
                 .src = static_cast<const std::byte*>(from.const_data_ptr()),
                 .dst = static_cast<std::byte*>(to.mutable_data_ptr())};
  pair.sizes[0] = length;
  pair.block =
      make_block_pair(pair.sizes, span_of(from.strides()), span_of(to.strides()), from.itemsize());
  if (!pair.nothing_to_do()) {
    check_storage(from, "from_tensor", pair.src_extent());
    check_storage(to, "to_tensor", pair.dst_extent());
    STAGING_EXPECTS(!overlaps(pair),
                    "from_tensor and to_tensor overlap in memory; clone one of them first");
    STAGING_EXPECTS(!overlaps_itself(pair), "to_tensor has strides ", to.strides(),
                    ", with which several of its elements share memory; pass a tensor of its own "
                    "memory");
  }
  return pair;
}

}  // namespace staging::torch_ops
