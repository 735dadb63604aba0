#include "torch_ops/tensor_bytes.h"

#include <cstring>
#include <optional>

#include "hash/strided_reader.h"
#include "torch_ops/digest.h"

namespace staging::torch_ops {

namespace {

// A small tensor comes in smaller blocks: the first is copied on while the others come.
constexpr std::size_t kSmallNbytes = std::size_t{4} << 20;
constexpr std::size_t kSmallBlockNbytes = std::size_t{256} << 10;

HostBytes copy_from_host(const at::TensorBase& tensor) {
  const TensorMemory memory(tensor);
  StridedReader reader(memory.strided(), sign_flips(tensor));
  HostBytes bytes(tensor.nbytes());
  // All at once: what is read is no more than there is, whatever the capacity.
  const std::size_t capacity = (bytes.nbytes() + 31) / 32 * 32;
  for (std::size_t at = 0; at < bytes.nbytes();) at += reader.read(bytes.data() + at, capacity);
  return bytes;
}

HostBytes copy_from_device(const at::TensorBase& tensor) {
  // The first blocks are on their way while memory is found for them.
  DeviceBlocks blocks(
      tensor, std::nullopt,
      tensor.nbytes() < kSmallNbytes ? kSmallBlockNbytes : BlockDownload::kDefaultBlockNbytes);
  HostBytes bytes(tensor.nbytes());
  std::byte* out = bytes.data();
  for (auto block = blocks.next(); !block.empty(); block = blocks.next()) {
    std::memcpy(out, block.data(), block.size());
    out += block.size();
  }
  return bytes;
}

}  // namespace

HostBytes copy_bytes(const at::TensorBase& tensor) {
  return tensor.is_cpu() ? copy_from_host(tensor) : copy_from_device(tensor);
}

}  // namespace staging::torch_ops
