#include "transfer/method_timer.h"

#include <chrono>
#include <optional>

#include "transfer/execute.h"

namespace staging {

namespace {

constexpr std::size_t kGap = 256;

std::size_t stride_of(std::size_t nbytes) {
  return (nbytes + 2 * kGap - 1) / kGap * kGap;
}

// A table by which every item goes to `method`.
CostTable::Methods only(CopyMethod method) {
  CostTable::Methods costs;
  costs.fill({.fixed_us = 1e12, .item_us = 1e12, .gb_per_s = 1});
  costs[static_cast<std::size_t>(method)] = {.fixed_us = 0, .item_us = 0, .gb_per_s = 1e12};
  return costs;
}

// The plan of one call, or nothing where the method cannot be used.
std::optional<CopyPlan> plan_for(DeviceContext& context, StreamRef stream, CopyMethod method,
                                 CopyKind kind, void* dst, const void* src, std::size_t count,
                                 std::size_t nbytes) {
  const void* host_side = kind == CopyKind::kHostToDevice   ? src
                          : kind == CopyKind::kDeviceToHost ? dst
                                                            : nullptr;
  const PlanLimits limits = limits_on(context, stream, CaptureStatus::kNone, host_side);
  if ((method == CopyMethod::kBatch && !limits.batch) ||
      (method == CopyMethod::kKernel && !limits.kernel)) {
    return {};
  }
  std::vector<CopyItem> items;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = i * stride_of(nbytes);
    items.push_back(
        {static_cast<std::byte*>(dst) + at, static_cast<const std::byte*>(src) + at, nbytes});
  }
  CopyPlan plan;
  plan.plan_disjoint(items, only(method), limits);
  return plan;
}

}  // namespace

std::size_t method_timer_nbytes(std::size_t count, std::size_t nbytes) noexcept {
  return count * stride_of(nbytes);
}

bool repeat_method(DeviceContext& context, StreamRef stream, CopyMethod method, CopyKind kind,
                   void* dst, const void* src, std::size_t count, std::size_t nbytes,
                   std::size_t repetitions) {
  const std::optional<CopyPlan> plan =
      plan_for(context, stream, method, kind, dst, src, count, nbytes);
  if (!plan) return false;
  std::size_t enqueued = 0;
  for (std::size_t i = 0; i < repetitions; ++i) {
    execute(context, stream, kind, *plan, &enqueued);
  }
  return true;
}

std::vector<MethodTime> time_method(DeviceContext& context, StreamRef stream, CopyMethod method,
                                    CopyKind kind, void* dst, const void* src, std::size_t count,
                                    std::size_t nbytes, std::size_t repetitions) {
  const std::optional<CopyPlan> plan =
      plan_for(context, stream, method, kind, dst, src, count, nbytes);
  if (!plan) return {};
  Runtime& runtime = context.runtime();
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  };
  std::vector<MethodTime> times;
  for (std::size_t i = 0; i < repetitions; ++i) {
    std::size_t enqueued = 0;
    const Clock::time_point start = Clock::now();
    execute(context, stream, kind, *plan, &enqueued);
    const double host_us = since(start);
    runtime.synchronize_stream(stream.device, stream.handle);
    times.push_back({host_us, since(start)});
    // A runtime without batches copied the items one by one.
    if (method == CopyMethod::kBatch && enqueued > plan->operations().size()) return {};
  }
  return times;
}

}  // namespace staging
