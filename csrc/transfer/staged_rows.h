// Sparse updates of a large device table, gathered on the host and applied in one launch.
//
// Purpose: a block table of megabytes, of which a step changes a few cells. The cells' bytes
//   are kept here until apply_rows(), which packs those of several tables into one slot.
// Owner: shares the table's memory with the caller, and hands it over to the context when it is
//   destroyed while an application still writes it.
// Thread-safety: stage() and apply_rows() may be called from several threads at once; which
//   write comes first is then theirs to decide.
//
// Invariants:
//   * Writes have the effect of being applied in the order in which they were staged: of bytes
//     that several write, the last one's are put on the device.
//   * A write that is out of bounds is refused before anything is staged.
//   * A write is forgotten only once it was enqueued: what could not be applied stays staged.
//   * Applications of one table reach the device in the order of the calls, on whatever
//     streams; what follows one on its stream comes after all before it, also where nothing
//     was staged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "transfer/copy_order.h"
#include "transfer/device_context.h"

namespace staging {

class StagedRows {
 public:
  // `table` is rows * cols elements, row after row. Without a context it is host memory.
  // `owner` keeps it alive.
  StagedRows(DeviceContext* context, void* table, std::int64_t rows, std::int64_t cols,
             std::size_t element_nbytes, std::shared_ptr<void> owner = {}) noexcept;
  StagedRows(const StagedRows&) = delete;  // one order of writes
  StagedRows& operator=(const StagedRows&) = delete;
  ~StagedRows();

  // The table, on a device, was filled on `stream` just now: applications come after that. Before
  // any other call. Throws StateError where `stream` captures.
  void filled_on(StreamRef stream);

  // Takes the bytes of `count` elements for table[row, start : start + count]. Throws
  // InvalidArgument that names the index which is out of bounds.
  void stage(std::int64_t row, std::int64_t start, const void* values, std::int64_t count);
  // Forgets what was staged; how many writes that were.
  std::size_t discard();

  std::size_t pending() const;         // writes
  std::size_t pending_nbytes() const;  // their bytes

 private:
  friend void apply_rows(std::span<StagedRows* const> tables, StreamRef stream);
  friend class RowApplication;

  struct Write {
    std::size_t offset_nbytes;  // in the table
    std::size_t nbytes;
    std::size_t payload;  // where its bytes begin in payload_
  };

  void apply_on_host();
  void forget(std::size_t count);

  DeviceContext* const context_;
  std::byte* const table_;
  const std::int64_t rows_;
  const std::int64_t cols_;
  const std::size_t element_nbytes_;
  const std::shared_ptr<void> owner_;
  std::unique_ptr<CopyOrder> order_;  // null on the host

  mutable std::mutex mutex_;
  std::vector<Write> writes_;       // guarded by mutex_
  std::vector<std::byte> payload_;  // guarded by mutex_
};

// Enqueues what was staged in `tables`, which are different ones of one device (or all on the
// host), on `stream`: one slot, one launch and one event record. Waits only where the stream's
// ring is full of copies in flight, for the oldest. Throws StateError where `stream` captures.
// Call without the GIL.
void apply_rows(std::span<StagedRows* const> tables, StreamRef stream);

}  // namespace staging
