// The fewest operations that move a list of byte ranges.
//
// Purpose: pure planning, from (destination, source, bytes) to transfers, batches and kernel
//   launches; execute.h carries it out. Neighbours are merged, and what is left is given to
//   whichever method the cost table says is quickest: small items to one launch or batch,
//   large ones to a transfer of their own.
// Owner: a value that keeps its memory, so that a plan made again and again allocates nothing.
// Thread-safety: none; one plan to a thread.
//
// Invariants:
//   * Carrying the operations out in order has the effect of copying the items in order.
//   * Within one operation no byte that is written is written or read by another of its items:
//     a batch and a kernel promise no order. Items that overlap are put into operations of
//     their own, one behind the other.
//   * No operation is empty, and no item has zero bytes.
// What callers owe: source and destination of one item do not overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/runtime.h"
#include "transfer/cost_table.h"

namespace staging {

struct PlanLimits {
  bool batch = true;                // off where the stream is the legacy one, or captures
  bool kernel = true;               // off where the device does not address one of the sides
  std::size_t batch_items = 1024;   // in one call: the driver builds it on the caller's thread
  std::size_t kernel_items = 1024;  // in one launch: what fits the kernel's parameters
};

class CopyPlan {
 public:
  struct Operation {
    CopyMethod method;
    std::size_t first;  // of items()
    std::size_t count;  // 1 where the method is kCopy
  };

  // Any items, in any order, that may overlap each other.
  void plan(std::span<const CopyItem> items, CopyKind kind, const CostTable::Methods& costs,
            const PlanLimits& limits);
  // Items that do not overlap and have no neighbours left to merge: only the method is chosen.
  void plan_disjoint(std::span<const CopyItem> items, const CostTable::Methods& costs,
                     const PlanLimits& limits);

  std::span<const CopyItem> items() const noexcept { return items_; }
  std::span<const CopyItem> items_of(const Operation& operation) const noexcept {
    return std::span(items_).subspan(operation.first, operation.count);
  }
  std::span<const Operation> operations() const noexcept { return operations_; }
  bool uses(CopyMethod method) const noexcept;
  // What the table says that it takes.
  double cost_us() const noexcept { return cost_us_; }

 private:
  void clear() noexcept;
  void plan_in_waves(CopyKind kind, const CostTable::Methods& costs, const PlanLimits& limits);
  void add_wave(std::span<CopyItem> wave, const CostTable::Methods& costs,
                const PlanLimits& limits);
  void choose(std::span<const CopyItem> wave, const CostTable::Methods& costs,
              const PlanLimits& limits);

  std::vector<CopyItem> items_;
  std::vector<Operation> operations_;
  std::vector<CopyItem> work_;
  double cost_us_ = 0;
};

}  // namespace staging
