#include "kernels/host_grid.h"

#include <gtest/gtest.h>

#include <vector>

#include "support/error.h"

namespace staging::kernels {
namespace {

void mark(int* seen, int width) {
  const unsigned column = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned row = blockIdx.y * blockDim.y + threadIdx.y;
  ++seen[row * static_cast<unsigned>(width) + column];
}

TEST(HostGridTest, RunsEveryThreadOnce) {
  std::vector<int> seen(12 * 10);
  int* pointer = seen.data();
  int width = 12;
  void* args[] = {&pointer, &width};
  run_on_host<&mark, false>({3, 5, 1}, {4, 2, 1}, 0, args);
  EXPECT_EQ(seen, std::vector<int>(120, 1));
}

// Each thread takes its neighbour's value: right only if every write came before every read.
void rotate(int* out) {
  __shared__ int values[64];
  values[threadIdx.x] = static_cast<int>(threadIdx.x + 100 * blockIdx.x);
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = values[(threadIdx.x + 1) % blockDim.x];
  __syncthreads();
  values[threadIdx.x] = -1;
}

TEST(HostGridTest, ABarrierSeparatesWritesFromReads) {
  std::vector<int> out(2 * 64);
  int* pointer = out.data();
  void* args[] = {&pointer};
  run_on_host<&rotate, true>({2, 1, 1}, {64, 1, 1}, 0, args);
  for (int block = 0; block < 2; ++block) {
    for (int i = 0; i < 64; ++i) EXPECT_EQ(out[block * 64 + i], (i + 1) % 64 + 100 * block);
  }
}

TEST(HostGridTest, ABarrierThatWasNotDeclaredIsAnError) {
  std::vector<int> out(64);
  int* pointer = out.data();
  void* args[] = {&pointer};
  EXPECT_THROW((run_on_host<&rotate, false>({1, 1, 1}, {64, 1, 1}, 0, args)), StateError);
}

}  // namespace
}  // namespace staging::kernels
