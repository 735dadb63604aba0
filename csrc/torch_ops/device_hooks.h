// PyTorch's idea of the current device, for DeviceScope.
#pragma once

namespace staging::torch_ops {

// Idempotent; does nothing in a build without CUDA.
void install_device_hooks() noexcept;

}  // namespace staging::torch_ops
