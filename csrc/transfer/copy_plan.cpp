#include "transfer/copy_plan.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "transfer/address_ranges.h"

namespace staging {

namespace {

constexpr std::less<const std::byte*> kBefore{};

const std::byte* begin_of(const void* pointer) {
  return static_cast<const std::byte*>(pointer);
}

bool by_destination(const CopyItem& a, const CopyItem& b) {
  return kBefore(begin_of(a.dst), begin_of(b.dst));
}

// Whether no destination of a list that is sorted by them overlaps the next.
bool destinations_disjoint(std::span<const CopyItem> sorted) {
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    if (kBefore(begin_of(sorted[i].dst), begin_of(sorted[i - 1].dst) + sorted[i - 1].nbytes)) {
      return false;
    }
  }
  return true;
}

// Both sides of the two are neighbours in the same order.
bool adjoin(const CopyItem& a, const CopyItem& b) {
  return begin_of(a.dst) + a.nbytes == begin_of(b.dst) &&
         begin_of(a.src) + a.nbytes == begin_of(b.src);
}

std::size_t operations_for(std::size_t items, std::size_t limit) {
  return (items + limit - 1) / limit;
}

// A method for the items that it is better at, and a transfer of its own for each of the rest.
class Mix {
 public:
  // `limit`: how many items one operation of the method takes.
  Mix(CopyMethod method, const CostTable::Methods& costs, std::size_t limit) noexcept
      : method_(method), limit_(limit) {
    const MethodCost& joined = costs[static_cast<std::size_t>(method)];
    const MethodCost& alone = costs[static_cast<std::size_t>(CopyMethod::kCopy)];
    fixed_us_ = joined.fixed_us;
    joined_us_ = joined.item_us;
    joined_us_per_byte_ = joined.us_per_byte();
    alone_us_ = alone.fixed_us + alone.item_us;
    alone_us_per_byte_ = alone.us_per_byte();
  }

  CopyMethod method() const noexcept { return method_; }
  std::size_t limit() const noexcept { return limit_; }
  bool joins(const CopyItem& item) const noexcept { return joined_us(item) < alone_us(item); }
  double cost_us(std::span<const CopyItem> items) const noexcept {
    double cost = 0;
    std::size_t joined = 0;
    for (const CopyItem& item : items) {
      cost += std::min(joined_us(item), alone_us(item));
      joined += joins(item) ? 1 : 0;
    }
    return cost + static_cast<double>(operations_for(joined, limit_)) * fixed_us_;
  }

 private:
  double joined_us(const CopyItem& item) const noexcept {
    return joined_us_ + static_cast<double>(item.nbytes) * joined_us_per_byte_;
  }
  double alone_us(const CopyItem& item) const noexcept {
    return alone_us_ + static_cast<double>(item.nbytes) * alone_us_per_byte_;
  }

  CopyMethod method_;
  std::size_t limit_;
  double fixed_us_, joined_us_, joined_us_per_byte_, alone_us_, alone_us_per_byte_;
};

}  // namespace

void CopyPlan::plan(std::span<const CopyItem> items, CopyKind kind, const CostTable::Methods& costs,
                    const PlanLimits& limits) {
  clear();
  work_.clear();
  for (const CopyItem& item : items) {
    if (item.nbytes > 0) work_.push_back(item);
  }
  // Between host and device no item reads what another writes. Else order may matter twice.
  const bool across = kind == CopyKind::kHostToDevice || kind == CopyKind::kDeviceToHost;
  if (across && std::is_sorted(work_.begin(), work_.end(), by_destination) &&
      destinations_disjoint(work_)) {
    add_wave(work_, costs, limits);
  } else {
    plan_in_waves(kind, costs, limits);
  }
}

void CopyPlan::plan_disjoint(std::span<const CopyItem> items, const CostTable::Methods& costs,
                             const PlanLimits& limits) {
  clear();
  choose(items, costs, limits);
}

bool CopyPlan::uses(CopyMethod method) const noexcept {
  return std::any_of(operations_.begin(), operations_.end(),
                     [&](const Operation& operation) { return operation.method == method; });
}

void CopyPlan::clear() noexcept {
  items_.clear();
  operations_.clear();
  cost_us_ = 0;
}

// A wave is as long a run of items as may be carried out in any order.
void CopyPlan::plan_in_waves(CopyKind kind, const CostTable::Methods& costs,
                             const PlanLimits& limits) {
  const bool reads_matter = kind == CopyKind::kDeviceToDevice || kind == CopyKind::kHostToHost;
  AddressRanges written;
  AddressRanges read;
  std::size_t first = 0;
  for (std::size_t i = 0; i < work_.size(); ++i) {
    const CopyItem& item = work_[i];
    const bool conflict = written.overlaps(item.dst, item.nbytes) ||
                          (reads_matter && (written.overlaps(item.src, item.nbytes) ||
                                            read.overlaps(item.dst, item.nbytes)));
    if (conflict) {
      add_wave(std::span(work_).subspan(first, i - first), costs, limits);
      first = i;
      written.clear();
      read.clear();
    }
    written.add(item.dst, item.nbytes);
    if (reads_matter) read.add(item.src, item.nbytes);
  }
  add_wave(std::span(work_).subspan(first), costs, limits);
}

void CopyPlan::add_wave(std::span<CopyItem> wave, const CostTable::Methods& costs,
                        const PlanLimits& limits) {
  if (wave.empty()) return;
  std::sort(wave.begin(), wave.end(), by_destination);
  std::size_t merged = 0;
  for (std::size_t i = 1; i < wave.size(); ++i) {
    if (adjoin(wave[merged], wave[i])) {
      wave[merged].nbytes += wave[i].nbytes;
    } else {
      wave[++merged] = wave[i];
    }
  }
  choose(wave.first(merged + 1), costs, limits);
}

void CopyPlan::choose(std::span<const CopyItem> wave, const CostTable::Methods& costs,
                      const PlanLimits& limits) {
  if (wave.empty()) return;
  const MethodCost& copy = costs[static_cast<std::size_t>(CopyMethod::kCopy)];
  std::size_t nbytes = 0;
  for (const CopyItem& item : wave) nbytes += item.nbytes;
  double cost = static_cast<double>(wave.size()) * (copy.fixed_us + copy.item_us) +
                static_cast<double>(nbytes) * copy.us_per_byte();
  std::optional<Mix> best;
  const auto consider = [&](CopyMethod method, std::size_t limit) {
    const Mix mix(method, costs, limit);
    const double mixed = mix.cost_us(wave);
    if (mixed < cost) {
      best = mix;
      cost = mixed;
    }
  };
  if (limits.batch && limits.batch_items > 0) consider(CopyMethod::kBatch, limits.batch_items);
  if (limits.kernel && limits.kernel_items > 0) consider(CopyMethod::kKernel, limits.kernel_items);
  cost_us_ += cost;

  if (best) {
    const std::size_t first = items_.size();
    for (const CopyItem& item : wave) {
      if (best->joins(item)) items_.push_back(item);
    }
    for (std::size_t i = first; i < items_.size(); i += best->limit()) {
      operations_.push_back({best->method(), i, std::min(best->limit(), items_.size() - i)});
    }
  }
  for (const CopyItem& item : wave) {
    if (best && best->joins(item)) continue;
    operations_.push_back({CopyMethod::kCopy, items_.size(), 1});
    items_.push_back(item);
  }
}

}  // namespace staging
