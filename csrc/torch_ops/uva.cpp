#include "torch_ops/uva.h"

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <memory>

#include "support/error.h"
#include "transfer/host_view.h"

namespace staging::torch_ops {

at::TensorBase uva_view(const at::TensorBase& pinned, int device) {
  STAGING_EXPECTS(pinned.is_cpu(), "the tensor must be on the host, got ", pinned.device());
  STAGING_EXPECTS(pinned.layout() == c10::kStrided && pinned.has_storage(),
                  "the tensor must be dense, got layout ", pinned.layout());
  const c10::Storage& host = pinned.storage();
  STAGING_EXPECTS(host.nbytes() > 0, "the tensor must have memory, got none");
  DeviceContext& context = DeviceContext::of(device);
  void* const seen = device_address(context, host.data());
  const auto index = static_cast<c10::DeviceIndex>(device);
  // The storage of the view holds the host's.
  auto* const owner = new c10::Storage(host);
  c10::DataPtr data(
      seen, owner, [](void* context) { delete static_cast<c10::Storage*>(context); },
      c10::Device(c10::DeviceType::CUDA, index));
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), host.nbytes(), std::move(data), /*allocator=*/nullptr,
      /*resizable=*/false));
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), pinned.dtype());
  impl->set_sizes_and_strides(pinned.sizes(), pinned.strides(), pinned.storage_offset());
  return at::TensorBase(
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(std::move(impl)));
}

}  // namespace staging::torch_ops
