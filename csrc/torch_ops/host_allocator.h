// PyTorch tensors in the pinned pool, and PyTorch's own pinned memory from it.
//
// Purpose: three things, in the order in which a user comes to need them.
//   pinned_empty()   a CPU tensor whose storage is a block of the pool.
//   watch_copies()   PyTorch tells the allocator that is registered for CUDA of each
//                    non-blocking copy that uses host memory (HostAllocator::record_event).
//                    An allocator of ours takes its place: it notes those that use a block
//                    of the pool and hands everything else on to the one before. So
//                    `t.to("cuda", non_blocking=True); del t` is as safe as with PyTorch's
//                    own pinned memory, by whatever tensor or view the block is reached.
//   own_pinned()     that allocator also serves allocations, so that pin_memory() and data
//                    loaders use the pool. Memory that PyTorch's own allocator handed out
//                    before stays its own.
// Owner: the allocators are never destroyed; a DataPtr owns its block.
// Thread-safety: any thread. at::setHostAllocator is not synchronised with threads that copy
//   at that moment: watch_copies() runs in the first pinned_empty(), before its tensor exists.
//
// at::HostAllocator has grown with PyTorch's minor versions; what is newer than 2.11 is
// guarded by TORCH_VERSION_MINOR.
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/Allocator.h>

#include <optional>

#include "memory/numa.h"

namespace staging::torch_ops {

// An uninitialised CPU tensor in the pool of Runtime::get(), near `device` (-1: the current
// one, or another that has a context already), from `numa_node` unless that is kAnyNode.
// Without `strides` it is contiguous. Call without the GIL.
at::TensorBase pinned_empty(c10::IntArrayRef sizes, std::optional<c10::IntArrayRef> strides,
                            c10::ScalarType dtype, int device, int numa_node = kAnyNode);

// Idempotent. Does nothing on the host backend.
void watch_copies();

// Throws StateError on the host backend.
void own_pinned(bool enabled);
bool owns_pinned() noexcept;

// How PyTorch's callers learn that a wait was interrupted: throws what they understand.
// Set once by the bindings.
using ThrowInterrupt = void (*)();
void set_throw_interrupt(ThrowInterrupt function) noexcept;

}  // namespace staging::torch_ops
