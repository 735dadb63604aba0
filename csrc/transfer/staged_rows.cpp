#include "transfer/staged_rows.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "kernels/row_writes.h"
#include "runtime/device_scope.h"
#include "support/error.h"
#include "transfer/address_ranges.h"
#include "transfer/buffer_copies.h"
#include "transfer/execute.h"
#include "transfer/upload.h"

namespace staging {

namespace {

using kernels::kRowWriteNbytes;
using kernels::RowWrite;

constexpr std::size_t kAlignment = 16;

// A part of a write that reaches the device.
struct Piece {
  StagedRows* table;
  std::byte* dst;
  std::size_t nbytes;
  std::size_t payload;  // in the table's payload
  std::size_t slot;     // in the slot's payload
};

// Where a piece's bytes begin behind `nbytes` of others: as its destination lies, so that both
// are aligned alike.
std::size_t begin_behind(std::size_t nbytes, const std::byte* dst) {
  return nbytes + ((reinterpret_cast<std::uintptr_t>(dst) - nbytes) & (kAlignment - 1));
}

}  // namespace

// One apply_rows(): what is applied, and how it lies in the slot.
class RowApplication {
 public:
  explicit RowApplication(std::span<StagedRows* const> tables) {
    for (StagedRows* table : tables) {
      const std::lock_guard<std::mutex> lock(table->mutex_);
      taken_.push_back({table, table->writes_.size()});
      add(*table);
    }
    std::size_t nbytes = 0;
    for (Piece& piece : pieces_) {
      piece.slot = begin_behind(nbytes, piece.dst);
      nbytes = piece.slot + piece.nbytes;
    }
    payload_nbytes_ = nbytes;
    STAGING_EXPECTS(nbytes <= std::numeric_limits<std::uint32_t>::max() &&
                        pieces_.size() <= std::numeric_limits<std::uint32_t>::max(),
                    "the staged writes must be less than 4 GiB together, got ", nbytes,
                    " bytes; apply them more often");
  }

  bool empty() const noexcept { return pieces_.empty(); }
  // One piece is a plain copy: no list says where it goes.
  std::size_t list_nbytes() const noexcept {
    return pieces_.size() == 1 ? 0 : pieces_.size() * sizeof(RowWrite);
  }
  // The payload begins as its first destination lies; one piece alone needs no more room.
  std::size_t slot_nbytes() const noexcept { return list_nbytes() + payload_nbytes_; }

  void fill(std::byte* slot) const {
    if (list_nbytes() > 0) {
      auto* list = reinterpret_cast<RowWrite*>(slot);
      for (const Piece& piece : pieces_) {
        *list++ = {reinterpret_cast<unsigned char*>(piece.dst),
                   static_cast<std::uint32_t>(piece.slot),
                   static_cast<std::uint32_t>(piece.nbytes)};
      }
    }
    std::byte* const payload = slot + list_nbytes();
    StagedRows* locked = nullptr;
    std::unique_lock<std::mutex> lock;
    for (const Piece& piece : pieces_) {
      if (piece.table != locked) {
        // Another thread may stage meanwhile, and move the payload.
        lock = std::unique_lock(piece.table->mutex_);
        locked = piece.table;
      }
      std::memcpy(payload + piece.slot, piece.table->payload_.data() + piece.payload, piece.nbytes);
    }
  }

  void enqueue(DeviceContext& context, StreamRef stream, const std::byte* slot,
               std::size_t* enqueued) const {
    const std::byte* const payload = slot + list_nbytes();
    if (pieces_.size() > 1 && context.addresses_pinned(slot)) {
      kernels::launch_row_writes(
          context.runtime(), stream.device, stream.handle,
          {reinterpret_cast<const RowWrite*>(slot), reinterpret_cast<const unsigned char*>(payload),
           static_cast<std::uint32_t>(pieces_.size())});
      ++*enqueued;
      return;
    }
    std::vector<CopyItem> items;
    for (const Piece& piece : pieces_) {
      items.push_back({piece.dst, payload + piece.slot, piece.nbytes});
    }
    CopyPlan plan;
    plan.plan(items, CopyKind::kHostToDevice,
              CostTable::current(stream.device).of(CopyKind::kHostToDevice),
              limits_on(context, stream, CaptureStatus::kNone, slot));
    execute(context, stream, CopyKind::kHostToDevice, plan, enqueued);
  }

  void forget() const {
    for (const auto& [table, count] : taken_) table->forget(count);
  }

 private:
  // The bytes of the last of each table's writes, in the order of the table.
  void add(StagedRows& table) {
    const std::vector<StagedRows::Write>& writes = table.writes_;
    std::vector<Piece> whole;
    whole.reserve(writes.size());
    for (const StagedRows::Write& write : writes) {
      whole.push_back({&table, table.table_ + write.offset_nbytes, write.nbytes, write.payload, 0});
    }
    const auto by_destination = [](const Piece& a, const Piece& b) { return a.dst < b.dst; };
    const auto disjoint = [](const std::vector<Piece>& sorted) {
      for (std::size_t i = 1; i < sorted.size(); ++i) {
        if (sorted[i].dst < sorted[i - 1].dst + sorted[i - 1].nbytes) return false;
      }
      return true;
    };
    std::vector<Piece> sorted = whole;
    if (!std::is_sorted(sorted.begin(), sorted.end(), by_destination)) {
      std::sort(sorted.begin(), sorted.end(), by_destination);
    }
    if (!disjoint(sorted)) {
      // The newest first: of an older one, what none that came later has written.
      sorted.clear();
      AddressRanges written;
      for (auto piece = whole.rbegin(); piece != whole.rend(); ++piece) {
        written.for_each_gap(
            piece->dst, piece->nbytes, [&](const std::byte* begin, std::size_t nbytes) {
              const auto skipped = static_cast<std::size_t>(begin - piece->dst);
              sorted.push_back(
                  {piece->table, piece->dst + skipped, nbytes, piece->payload + skipped, 0});
            });
        written.add(piece->dst, piece->nbytes);
      }
      std::sort(sorted.begin(), sorted.end(), by_destination);
    }
    for (Piece piece : sorted) {
      while (piece.nbytes > kRowWriteNbytes) {
        pieces_.push_back({piece.table, piece.dst, kRowWriteNbytes, piece.payload, 0});
        piece.dst += kRowWriteNbytes;
        piece.payload += kRowWriteNbytes;
        piece.nbytes -= kRowWriteNbytes;
      }
      if (piece.nbytes > 0) pieces_.push_back(piece);
    }
  }

  std::vector<std::pair<StagedRows*, std::size_t>> taken_;
  std::vector<Piece> pieces_;
  std::size_t payload_nbytes_ = 0;
};

StagedRows::StagedRows(DeviceContext* context, void* table, std::int64_t rows, std::int64_t cols,
                       std::size_t element_nbytes, std::shared_ptr<void> owner) noexcept
    : context_(context),
      table_(static_cast<std::byte*>(table)),
      rows_(rows),
      cols_(cols),
      element_nbytes_(element_nbytes),
      owner_(std::move(owner)),
      order_(context != nullptr ? std::make_unique<CopyOrder>(context->runtime()) : nullptr) {}

StagedRows::~StagedRows() {
  if (order_ != nullptr) keep_until_unused(*context_, *order_, nullptr, owner_);
}

void StagedRows::filled_on(StreamRef stream) {
  if (rows_ > 0 && cols_ > 0) order_->begin_behind(context_->record_fill(stream));
}

void StagedRows::stage(std::int64_t row, std::int64_t start, const void* values,
                       std::int64_t count) {
  STAGING_EXPECTS(row >= 0 && row < rows_, "row must be in 0..", rows_ - 1, " (the table has ",
                  rows_, " rows), got ", row);
  STAGING_EXPECTS(start >= 0 && start <= cols_, "start must be in 0..", cols_, " (the table has ",
                  cols_, " columns), got ", start);
  STAGING_EXPECTS(count <= cols_ - start, "values must be at most ", cols_ - start,
                  " elements (columns ", start, "..", cols_ - 1, " of the table), got ", count);
  if (count == 0) return;
  const std::size_t nbytes = static_cast<std::size_t>(count) * element_nbytes_;
  const auto* bytes = static_cast<const std::byte*>(values);
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::size_t payload = payload_.size();
  payload_.insert(payload_.end(), bytes, bytes + nbytes);
  try {
    writes_.push_back(
        {static_cast<std::size_t>(row * cols_ + start) * element_nbytes_, nbytes, payload});
  } catch (...) {
    payload_.resize(payload);
    throw;
  }
}

std::size_t StagedRows::discard() {
  // Not while an application is packing them.
  std::optional<CopyOrder::Turn> turn;
  if (order_ != nullptr) turn.emplace(*order_);
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::size_t count = writes_.size();
  writes_.clear();
  payload_.clear();
  return count;
}

std::size_t StagedRows::pending() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return writes_.size();
}

std::size_t StagedRows::pending_nbytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return payload_.size();
}

void StagedRows::apply_on_host() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Write& write : writes_) {
    std::memcpy(table_ + write.offset_nbytes, payload_.data() + write.payload, write.nbytes);
  }
  writes_.clear();
  payload_.clear();
}

// The first `count` writes were enqueued.
void StagedRows::forget(std::size_t count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (count == writes_.size()) {
    writes_.clear();
    payload_.clear();
    return;
  }
  const std::size_t taken = writes_[count].payload;
  writes_.erase(writes_.begin(), writes_.begin() + static_cast<std::ptrdiff_t>(count));
  payload_.erase(payload_.begin(), payload_.begin() + static_cast<std::ptrdiff_t>(taken));
  for (Write& write : writes_) write.payload -= taken;
}

void apply_rows(std::span<StagedRows* const> tables, StreamRef stream) {
  if (tables.empty()) return;
  if (tables.front()->context_ == nullptr) {
    for (StagedRows* table : tables) table->apply_on_host();
    return;
  }
  Runtime::check_not_forked();
  DeviceContext& context = *tables.front()->context_;
  const DeviceScope scope(context.runtime(), stream.device);
  // Always in the same order, so that two threads with several tables do not wait for each
  // other.
  std::vector<StagedRows*> sorted(tables.begin(), tables.end());
  std::sort(sorted.begin(), sorted.end());
  std::deque<CopyOrder::Turn> turns;
  for (StagedRows* table : sorted) turns.emplace_back(*table->order_);

  if (context.runtime().capture_status(stream.device, stream.handle) != CaptureStatus::kNone) {
    throw StateError(
        "staged rows cannot be applied on a stream that captures a CUDA graph: at replay the "
        "copy would read host memory that is used again. Apply them before the capture");
  }
  const RowApplication application(sorted);
  for (CopyOrder::Turn& turn : turns) turn.wait_on(stream);
  if (application.empty()) return;
  const std::shared_ptr<UploadRing> ring = context.ring(stream);
  UploadReport report;
  Event event;
  try {
    event = upload_through_slot(
        context, *ring, application.slot_nbytes(), [&](std::byte* slot) { application.fill(slot); },
        [&](const std::byte* slot, std::size_t* enqueued) {
          application.enqueue(context, stream, slot, enqueued);
        },
        /*tag=*/0, &report);
  } catch (...) {
    if (report.lost) {
      for (CopyOrder::Turn& turn : turns) turn.lost(stream);
    }
    throw;
  }
  for (CopyOrder::Turn& turn : turns) turn.done(event, /*uses_host=*/false);
  application.forget();
}

}  // namespace staging
