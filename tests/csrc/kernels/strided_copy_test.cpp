#include "kernels/strided_copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "runtime/host_runtime.h"

namespace staging::kernels {
namespace {

// Transposes rows x columns elements, with a guard before and behind the destination.
void check_transpose(std::int64_t rows, std::int64_t columns, int element_nbytes) {
  const auto element = static_cast<std::size_t>(element_nbytes);
  const auto count = static_cast<std::size_t>(rows * columns);
  constexpr std::size_t kGuard = 64;
  std::vector<unsigned char> src(count * element);
  for (std::size_t i = 0; i < src.size(); ++i) src[i] = static_cast<unsigned char>(i * 31 + 7);
  // 16-byte elements need aligned memory.
  auto* memory = static_cast<unsigned char*>(
      std::aligned_alloc(64, (count * element + 2 * kGuard + 63) / 64 * 64));
  std::memset(memory, 0xEE, count * element + 2 * kGuard);
  auto* from = static_cast<unsigned char*>(std::aligned_alloc(64, (src.size() + 63) / 64 * 64));
  std::memcpy(from, src.data(), src.size());

  StridedCopyParams params{};
  params.src = from;
  params.dst = memory + kGuard;
  params.element_count = rows * columns;
  params.ndim = 2;
  params.element_nbytes = element_nbytes;
  params.sizes[0] = columns;
  params.sizes[1] = rows;
  params.src_strides_nbytes[0] = element_nbytes;
  params.src_strides_nbytes[1] = columns * element_nbytes;
  params.dst_strides_nbytes[0] = rows * element_nbytes;
  params.dst_strides_nbytes[1] = element_nbytes;
  HostRuntime runtime;
  launch_strided_copy(runtime, -1, nullptr, params);

  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      EXPECT_EQ(std::memcmp(memory + kGuard + static_cast<std::size_t>(c * rows + r) * element,
                            from + static_cast<std::size_t>(r * columns + c) * element, element),
                0);
    }
  }
  for (std::size_t i = 0; i < kGuard; ++i) {
    EXPECT_EQ(memory[i], 0xEE);
    EXPECT_EQ(memory[kGuard + count * element + i], 0xEE);
  }
  std::free(memory);
  std::free(from);
}

TEST(StridedCopyTest, TransposesEveryElementSize) {
  for (const int nbytes : {1, 2, 4, 8, 16}) {
    SCOPED_TRACE(nbytes);
    check_transpose(7, 5, nbytes);
    check_transpose(33, 65, nbytes);
  }
}

TEST(StridedCopyTest, NothingIsLaunchedForNoElements) {
  HostRuntime runtime;
  StridedCopyParams params{};
  launch_strided_copy(runtime, -1, nullptr, params);
}

}  // namespace
}  // namespace staging::kernels
