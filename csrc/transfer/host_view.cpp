#include "transfer/host_view.h"

#include <cstring>
#include <memory>

#include "kernels/segmented_copy.h"
#include "runtime/device_scope.h"
#include "support/error.h"

namespace staging {

void* device_address(DeviceContext& context, const void* pinned) {
  const PointerInfo info = context.runtime().pointer_info(pinned);
  STAGING_EXPECTS(info.kind == MemoryKind::kPinned,
                  "the memory must be pinned; make it with staging.pinned_empty() or "
                  "pin_memory=True (where that gives ordinary memory, as under confidential "
                  "computing, a device cannot view it)");
  if (info.device_pointer == nullptr) {
    throw StateError("the device cannot address this pinned memory; allocate it as mapped");
  }
  return info.device_pointer;
}

bool sees_host_writes(DeviceContext& context) {
  constexpr std::size_t kNbytes = 256;
  Runtime& runtime = context.runtime();
  const int device = context.device();
  const DeviceScope scope(runtime, device);
  // The kernel copies the first half onto the second.
  PinnedBlock block = context.pool().allocate(2 * kNbytes, device);
  auto* const host = static_cast<std::byte*>(block.data());
  const PointerInfo info = runtime.pointer_info(host);
  if (info.kind != MemoryKind::kPinned || info.device_pointer == nullptr) return false;
  auto* const seen = static_cast<std::byte*>(info.device_pointer);
  const StreamHandle stream = runtime.create_stream(device);
  bool live = true;
  try {
    for (const int value : {0x11, 0x22, 0x33}) {
      std::memset(host, value, kNbytes);
      std::memset(host + kNbytes, 0, kNbytes);
      const CopyItem item{seen + kNbytes, seen, kNbytes};
      kernels::launch_segmented_copy(runtime, device, stream, {&item, 1});
      runtime.synchronize_stream(device, stream);
      live = live && std::memcmp(host, host + kNbytes, kNbytes) == 0;
    }
  } catch (...) {
    block.detach();  // a kernel may still write to it
    runtime.destroy_stream(device, stream);
    throw;
  }
  runtime.destroy_stream(device, stream);
  return live;
}

}  // namespace staging
