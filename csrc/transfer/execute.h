// Carries a CopyPlan out on a stream.
//
// Owner: nothing of its own. Thread-safety: from any thread.
#pragma once

#include <cstddef>

#include "transfer/copy_plan.h"
#include "transfer/device_context.h"

namespace staging {

// What may be planned for `stream`. `host_side` is some address of the pinned memory that the
// plan reads or writes, or null where both sides are the device's.
// Makes no runtime call, except the first time that a device is asked about pinned memory.
PlanLimits limits_on(DeviceContext& context, StreamRef stream, CaptureStatus capture,
                     const void* host_side);

// Enqueues the plan's operations in order; waits for nothing. The stream's device is current.
// Counts in `enqueued`, also where it throws: as long as that is 0, nothing is in flight.
void execute(DeviceContext& context, StreamRef stream, CopyKind kind, const CopyPlan& plan,
             std::size_t* enqueued);

}  // namespace staging
