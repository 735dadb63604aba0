// Copies and fills as work, and the rules by which a copy call becomes work.
//
// Purpose: what the documentation of cudaMemcpyAsync and "API synchronization behavior"
//   say: a pinned source is read when the copy runs; a pageable source has been taken and a
//   pageable destination is complete when the call returns (unless --pageable-async makes
//   them late, which the documentation permits); host to host completes in the call.
// Owner: values. Thread-safety: the machine's lock, where a Machine is passed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "sim/machine.h"
#include "sim/memory.h"
#include "sim/work.h"

namespace staging::sim {

// Rows of `width` bytes; one row for a plain copy.
struct Shape {
  std::size_t width = 0;
  std::size_t height = 1;
  std::size_t dst_pitch = 0;
  std::size_t src_pitch = 0;

  std::size_t nbytes() const noexcept { return width * height; }
  // From the first byte to the last.
  std::size_t dst_extent() const noexcept { return (height - 1) * dst_pitch + width; }
  std::size_t src_extent() const noexcept { return (height - 1) * src_pitch + width; }
};

class CopyWork final : public Work {
 public:
  CopyWork(const Range& dst, const Range& src, const Shape& shape)
      : Work(Kind::kDevice, shape.nbytes() <= kBriefNbytes), dst_(dst), src_(src), shape_(shape) {}
  // Reads `taken` in the place of the source, which has been read already.
  CopyWork(const Range& dst, const Range& src, const Shape& shape,
           std::shared_ptr<const std::byte[]> taken);

  cudaError_t run() const override;
  std::string describe() const override;
  void visit_ranges(const std::function<void(const Range&)>& see) const override {
    see(dst_);
    see(src_);
  }
  bool uses(std::uintptr_t begin, std::uintptr_t end) const override {
    return dst_.overlaps(begin, end) || (taken_ == nullptr && src_.overlaps(begin, end));
  }

 private:
  Range dst_, src_;
  Shape shape_;
  std::shared_ptr<const std::byte[]> taken_;  // rows without gaps
};

class FillWork final : public Work {
 public:
  FillWork(const Range& dst, const Shape& shape, unsigned char value)
      : Work(Kind::kDevice, shape.nbytes() <= kBriefNbytes),
        dst_(dst),
        shape_(shape),
        value_(value) {}

  cudaError_t run() const override;
  std::string describe() const override;
  void visit_ranges(const std::function<void(const Range&)>& see) const override { see(dst_); }
  bool uses(std::uintptr_t begin, std::uintptr_t end) const override {
    return dst_.overlaps(begin, end);
  }

 private:
  Range dst_;
  Shape shape_;
  unsigned char value_;
};

// A batch, whose copies run in an order drawn from `order_seed` at each run.
class BatchWork final : public Work {
 public:
  BatchWork(std::vector<CopyWork> copies, std::size_t nbytes, std::uint64_t order_seed)
      : Work(Kind::kDevice, nbytes <= kBriefNbytes),
        copies_(std::move(copies)),
        order_seed_(order_seed) {}

  cudaError_t run() const override;
  std::string describe() const override;
  void visit_ranges(const std::function<void(const Range&)>& see) const override;
  bool uses(std::uintptr_t begin, std::uintptr_t end) const override;

 private:
  std::vector<CopyWork> copies_;
  std::uint64_t order_seed_;
};

enum class Waiting : std::uint8_t { kAsync, kSync };

// cudaMemcpy*, all of them. The pointers must be able to stand on the sides that `kind` names.
cudaError_t copy(const Call& call, Machine& machine, Lock& lock, Stream& stream, void* dst,
                 const void* src, const Shape& shape, cudaMemcpyKind kind, Waiting waiting);
cudaError_t fill(const Call& call, Machine& machine, Lock& lock, Stream& stream, void* dst,
                 const Shape& shape, int value, Waiting waiting);
cudaError_t copy_batch(const Call& call, Machine& machine, Lock& lock, Stream& stream,
                       void* const* dsts, const void* const* srcs, const std::size_t* sizes,
                       std::size_t count, const cudaMemcpyAttributes* attributes,
                       const std::size_t* first_of_attributes, std::size_t attribute_count);

}  // namespace staging::sim
