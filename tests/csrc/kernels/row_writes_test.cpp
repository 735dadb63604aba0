#include "kernels/row_writes.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/guarded_bytes.h"
#include "runtime/host_runtime.h"

namespace staging::kernels {
namespace {

using testing::GuardedBytes;

class RowWrites : public ::testing::Test {
 protected:
  void write(const std::vector<RowWrite>& writes, const unsigned char* payload) {
    launch_row_writes(runtime_, -1, nullptr,
                      {writes.data(), payload, static_cast<std::uint32_t>(writes.size())});
  }
  HostRuntime runtime_;
};

TEST_F(RowWrites, EveryAlignmentAndTailIsWrittenExactly) {
  for (std::uint32_t src_shift = 0; src_shift < 16; ++src_shift) {
    for (std::size_t dst_shift = 0; dst_shift < 16; ++dst_shift) {
      for (std::uint32_t nbytes = 1; nbytes <= 49; ++nbytes) {
        GuardedBytes payload(nbytes + src_shift, 0, 1);
        GuardedBytes table(nbytes, dst_shift, 2);
        table.expect(0, payload.data() + src_shift, nbytes);
        write({{table.data(), src_shift, nbytes}}, payload.data());
        ASSERT_TRUE(table.as_expected()) << "from +" << src_shift << " to +" << dst_shift;
      }
    }
  }
}

// Elements of every width at every position of a row, as a table of that width has them.
class RowWritesOfWidth : public RowWrites, public ::testing::WithParamInterface<std::uint32_t> {};

TEST_P(RowWritesOfWidth, ElementsLandInTheirRowsAndNowhereElse) {
  const std::uint32_t width = GetParam();
  constexpr std::uint32_t kRows = 23;
  constexpr std::uint32_t kCols = 37;
  GuardedBytes table(std::size_t{kRows} * kCols * width, 0, 5);
  GuardedBytes payload(std::size_t{kRows} * kCols * width, 0, 6);
  std::vector<RowWrite> writes;
  std::uint32_t taken = 0;
  for (std::uint32_t row = 0; row < kRows; ++row) {
    const std::uint32_t start = row;
    const std::uint32_t count = (kCols - start) / 2;
    const std::uint32_t nbytes = count * width;
    const std::uint32_t offset = (row * kCols + start) * width;
    table.expect(offset, payload.data() + taken, nbytes);
    writes.push_back({table.data() + offset, taken, nbytes});
    taken += nbytes;
  }
  write(writes, payload.data());
  EXPECT_TRUE(table.as_expected());
}

INSTANTIATE_TEST_SUITE_P(Widths, RowWritesOfWidth, ::testing::Values(1, 2, 4, 8, 16));

TEST_F(RowWrites, MoreWritesThanThreadsAreAllDone) {
  constexpr std::uint32_t kCount = 20'000;  // more than all warps of the largest grid
  GuardedBytes table(2 * kCount, 0, 8);
  GuardedBytes payload(kCount, 0, 9);
  std::vector<RowWrite> writes;
  for (std::uint32_t i = 0; i < kCount; ++i) {
    table.expect(2 * i, payload.data() + i, 1);
    writes.push_back({table.data() + 2 * i, i, 1});
  }
  write(writes, payload.data());
  EXPECT_TRUE(table.as_expected());
}

TEST_F(RowWrites, ALongWriteIsCopiedExactly) {
  GuardedBytes table(kRowWriteNbytes, 3, 8);
  GuardedBytes payload(kRowWriteNbytes, 0, 9);
  table.expect(0, payload.data(), kRowWriteNbytes);
  write({{table.data(), 0, kRowWriteNbytes}}, payload.data());
  EXPECT_TRUE(table.as_expected());
}

TEST_F(RowWrites, NoWritesAreNoLaunch) {
  write({}, nullptr);  // a launch would read the null payload
}

}  // namespace
}  // namespace staging::kernels
