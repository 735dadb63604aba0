// Counters and the record of calls.
#include "sim/sim_test.h"

namespace staging::sim {
namespace {

class CallRecord : public SimTest {};

TEST_F(CallRecord, EveryCallIsCountedByName) {
  const std::uint64_t before = calls("cudaEventQuery");
  TestEvent event;
  for (int i = 0; i < 5; ++i) CUDA_OK(cudaEventQuery(event));
  EXPECT_EQ(calls("cudaEventQuery"), before + 5);
}

TEST_F(CallRecord, KeepsNameStreamBytesAndKindInOrder) {
  Pinned host(64);
  DeviceBuffer device(64);
  TestStream stream;
  staging_sim_record_start(10);
  CUDA_OK(cudaMemcpyAsync(device.data, host.data, 48, cudaMemcpyHostToDevice, stream));
  CUDA_ERROR(cudaMemcpyAsync(device.data, host.data, 65, cudaMemcpyHostToDevice, stream),
             cudaErrorInvalidValue);
  CUDA_OK(cudaDeviceSynchronize());
  staging_sim_record_stop();
  CUDA_OK(cudaDeviceSynchronize());
  staging_sim_call seen[10] = {};
  ASSERT_EQ(staging_sim_record_read(seen, 0, 10), 3U);
  EXPECT_STREQ(seen[0].name, "cudaMemcpyAsync");
  EXPECT_EQ(seen[0].stream, reinterpret_cast<std::uint64_t>(stream.handle));
  EXPECT_EQ(seen[0].nbytes, 48U);
  EXPECT_EQ(seen[0].kind, cudaMemcpyHostToDevice);
  EXPECT_EQ(seen[0].result, cudaSuccess);
  EXPECT_EQ(seen[1].result, cudaErrorInvalidValue);
  EXPECT_STREQ(seen[2].name, "cudaDeviceSynchronize");
  EXPECT_EQ(seen[2].kind, -1);
  EXPECT_EQ(staging_sim_record_read(seen, 2, 10), 1U);
}

TEST_F(CallRecord, IsBounded) {
  staging_sim_record_start(2);
  int device = 0;
  for (int i = 0; i < 5; ++i) CUDA_OK(cudaGetDevice(&device));
  staging_sim_record_stop();
  staging_sim_call seen[10] = {};
  EXPECT_EQ(staging_sim_record_read(seen, 0, 10), 2U);
  EXPECT_EQ(staging_sim_record_dropped(), 3U);
}

}  // namespace
}  // namespace staging::sim
