// What each way of copying costs on a machine: the numbers that a CopyPlan chooses by.
//
// Purpose: which of a loop of copies, one batch or one kernel is quickest differs from one
//   machine to the next (rapidsai/cudf #15620, sgl-project/sglang #31741), so it is data:
//   published figures by default, which a table measured on the machine can replace.
// Owner: the process; a table that was replaced is kept, for those who still read it.
// Thread-safety: all of it, from any thread; reading takes no lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/runtime.h"

namespace staging {

enum class CopyMethod : std::uint8_t {
  kCopy,    // one transfer an item (cudaMemcpyAsync)
  kBatch,   // one call for many transfers (cudaMemcpyBatchAsync)
  kKernel,  // one launch; the kernel reads and writes pinned memory through its mapping
};
inline constexpr std::size_t kCopyMethods = 3;

// The time by which `count` items of `nbytes` in all delay what comes after them, host and
// device together: fixed_us + count * item_us + nbytes / gb_per_s.
struct MethodCost {
  double fixed_us = 0;  // of one operation
  double item_us = 0;   // of each item in it
  double gb_per_s = 1;  // 10^9 bytes a second

  double us_per_byte() const noexcept { return 1e-3 / gb_per_s; }
  double of(std::size_t count, double nbytes) const noexcept {
    return fixed_us + static_cast<double>(count) * item_us + nbytes * us_per_byte();
  }
};

struct CostTable {
  // Indexed by CopyMethod.
  using Methods = std::array<MethodCost, kCopyMethods>;
  Methods host_to_device;
  Methods device_to_host;
  Methods device_to_device;

  const Methods& of(CopyKind kind) const noexcept;
  Methods& of(CopyKind kind) noexcept;

  // Published figures of server GPUs behind PCIe.
  static const CostTable& defaults() noexcept;
  // The table of a device, or the defaults.
  static const CostTable& current(int device) noexcept;
  // Replaces it. Throws InvalidArgument for a negative or non-finite cost, a bandwidth that is
  // not positive, or a device that cannot be.
  static void set_current(int device, const CostTable& table);
};

}  // namespace staging
