#include "transfer/execute.h"

#include "kernels/segmented_copy.h"
#include "transfer/pinned_copy.h"

namespace staging {

PlanLimits limits_on(DeviceContext& context, StreamRef stream, CaptureStatus capture,
                     const void* host_side) {
  PlanLimits limits;
  // CUDA refuses a batch on the legacy stream. Under capture, before CUDA 13.1, it refuses it
  // without invalidating the capture, so that an unchecked copy is lost (rapidsai/rmm #2518).
  limits.batch = stream.handle != nullptr && capture == CaptureStatus::kNone;
  limits.kernel = host_side == nullptr || context.addresses_pinned(host_side);
  limits.kernel_items = kernels::segmented_copy_capacity();
  return limits;
}

void execute(DeviceContext& context, StreamRef stream, CopyKind kind, const CopyPlan& plan,
             std::size_t* enqueued) {
  Runtime& runtime = context.runtime();
  const auto copy_each = [&](std::span<const CopyItem> items) {
    for (const CopyItem& item : items) {
      copy_pinned_async(context.pool(), stream, item.dst, item.src, item.nbytes, kind);
      ++*enqueued;
    }
  };
  for (const CopyPlan::Operation& operation : plan.operations()) {
    const std::span<const CopyItem> items = plan.items_of(operation);
    switch (operation.method) {
      case CopyMethod::kCopy:
        copy_each(items);
        break;
      case CopyMethod::kBatch:
        if (!context.pool().has_seams() &&
            runtime.copy_batch_async(stream.device, items.data(), items.size(), kind,
                                     stream.handle)) {
          ++*enqueued;
        } else {
          copy_each(items);  // no batches in this driver or stream, or an item may be split
        }
        break;
      case CopyMethod::kKernel:
        kernels::launch_segmented_copy(runtime, stream.device, stream.handle, items);
        ++*enqueued;
        break;
    }
  }
}

}  // namespace staging
