// Reading a host tensor in logical order, beside copying as many bytes that lie together.
//
//   cmake -S . -B build/bench -G Ninja -DCMAKE_BUILD_TYPE=Release -DSTAGING_BENCHMARKS=ON
//   ninja -C build/bench strided_reader_bench && build/bench/strided_reader_bench
#include "hash/strided_reader.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "measure.h"

namespace {

using staging::StridedBytes;
using staging::StridedReader;
using staging::benchmarks::nanoseconds;

constexpr std::size_t kNbytes = std::size_t{64} << 20;
constexpr std::size_t kBlockNbytes = std::size_t{1} << 20;

void report(const char* what, double nanoseconds_each) {
  std::printf("%-36s %8.2f ms  %6.2f GB/s\n", what, nanoseconds_each / 1e6,
              static_cast<double>(kNbytes) / nanoseconds_each);
}

void read(const char* what, const StridedBytes& tensor, std::vector<std::byte>& block) {
  report(what, nanoseconds(
                   [&] {
                     StridedReader reader(tensor);
                     while (reader.read(block.data(), block.size()) > 0) {
                     }
                   },
                   1));
}

// A matrix of 4096 rows, read column by column.
void transposed(const char* what, std::int64_t element_nbytes, const void* data,
                std::vector<std::byte>& block) {
  const std::int64_t rows = 4096;
  const std::int64_t columns = static_cast<std::int64_t>(kNbytes) / rows / element_nbytes;
  const std::vector<std::int64_t> sizes{columns, rows};
  const std::vector<std::int64_t> strides{element_nbytes, columns * element_nbytes};
  read(what, {data, element_nbytes, sizes, strides}, block);
}

}  // namespace

int main() {
  const std::vector<std::byte> memory(2 * kNbytes, std::byte{1});
  std::vector<std::byte> block(kBlockNbytes);
  report("memcpy in blocks", nanoseconds(
                                 [&] {
                                   for (std::size_t at = 0; at < kNbytes; at += kBlockNbytes) {
                                     std::memcpy(block.data(), memory.data() + at, kBlockNbytes);
                                   }
                                 },
                                 1));
  transposed("transposed, elements of 1 byte", 1, memory.data(), block);
  transposed("transposed, elements of 2 bytes", 2, memory.data(), block);
  transposed("transposed, elements of 4 bytes", 4, memory.data(), block);
  transposed("transposed, elements of 16 bytes", 16, memory.data(), block);
  // Every second of 4 bytes, and half of each row.
  const std::vector<std::int64_t> every_second{static_cast<std::int64_t>(kNbytes) / 4};
  const std::vector<std::int64_t> eight{8};
  read("every second element of 4 bytes", {memory.data(), 4, every_second, eight}, block);
  const std::vector<std::int64_t> half{static_cast<std::int64_t>(kNbytes) / 4096, 1024};
  const std::vector<std::int64_t> row{8192, 4};
  read("half of each row of 8 KiB", {memory.data(), 4, half, row}, block);
  return 0;
}
