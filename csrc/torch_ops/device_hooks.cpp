#include "torch_ops/device_hooks.h"

#include "runtime/device_scope.h"

#if defined(STAGING_WITH_CUDA)
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace staging::torch_ops {

void install_device_hooks() noexcept {
#if defined(STAGING_WITH_CUDA)
  static const DeviceHooks hooks{
      .current =
          [] {
            c10::DeviceIndex device = -1;
            const bool known = static_cast<int>(c10::cuda::GetDevice(&device)) == 0;
            return known ? static_cast<int>(device) : -1;
          },
      .restore =
          [](int raw, int current) {
            if (current < 0 || c10::cuda::hasPrimaryContext(static_cast<c10::DeviceIndex>(raw))) {
              return false;
            }
            const auto index = static_cast<c10::DeviceIndex>(current);
            return static_cast<int>(c10::cuda::MaybeSetDevice(index)) == 0;
          },
  };
  device_hooks.store(&hooks);
#endif
}

}  // namespace staging::torch_ops
