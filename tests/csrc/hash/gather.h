// A strided tensor's bytes, one element after another: what every faster reader must give.
#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include "hash/index_map.h"

namespace staging::testing {

inline std::vector<unsigned char> gather(const StridedBytes& tensor) {
  std::vector<unsigned char> bytes;
  std::vector<std::int64_t> index(tensor.sizes.size(), 0);
  const std::int64_t count = std::accumulate(tensor.sizes.begin(), tensor.sizes.end(),
                                             std::int64_t{1}, std::multiplies<>());
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < index.size(); ++d) offset += index[d] * tensor.strides_nbytes[d];
    const unsigned char* from = static_cast<const unsigned char*>(tensor.data) + offset;
    bytes.insert(bytes.end(), from, from + tensor.element_nbytes);
    for (std::size_t d = index.size(); d-- > 0;) {
      if (++index[d] < tensor.sizes[d]) break;
      index[d] = 0;
    }
  }
  return bytes;
}

}  // namespace staging::testing
