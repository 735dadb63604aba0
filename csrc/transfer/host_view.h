// Pinned memory by the address that a device has for it, and whether that is a live view.
//
// Purpose: kernels that read host memory in place (UVA). Where the device sees a copy of it
//   instead, as has been reported under confidential computing, results are silently wrong
//   (vllm-project/vllm #50671, #57404), so it is tried before it is relied on.
// Owner: nothing of its own. Thread-safety: from any thread.
#pragma once

#include "transfer/device_context.h"

namespace staging {

// How the device addresses `pinned`. Throws InvalidArgument where it is not pinned,
// StateError where the device has no address for it.
void* device_address(DeviceContext& context, const void* pinned);

// Whether a kernel on the device sees what the host writes into pinned memory after the kernel
// before it has read it, and the host what the kernel writes; false, too, where what is
// allocated as pinned is not, or has no address on the device. Launches a few small kernels on a
// stream of its own and waits for them. Call without the GIL.
bool sees_host_writes(DeviceContext& context);

}  // namespace staging
