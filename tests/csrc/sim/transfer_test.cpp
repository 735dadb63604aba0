// Copies and fills, against "API synchronization behavior" and the calls' documentation.
#include "sim/sim_test.h"

#include <sys/mman.h>

#include <numeric>
#include <set>

namespace staging::sim {
namespace {

class Transfer : public SimTest {};
class TransferAlways : public EverySchedule {};
INSTANTIATE_TEST_SUITE_P(All, TransferAlways, STAGING_SIM_SCHEDULES, schedule_name);

TEST_F(Transfer, APinnedSourceIsReadWhenTheCopyRuns) {
  use("lazy");
  Pinned host(64, 1);
  DeviceBuffer device(64);
  CUDA_OK(cudaMemcpyAsync(device.data, host.data, 64, cudaMemcpyHostToDevice, nullptr));
  std::memset(host.data, 2, 64);
  EXPECT_TRUE(device.holds(2));
}

TEST_F(Transfer, APinnedDestinationIsWrittenWhenTheCopyRuns) {
  use("lazy");
  Pinned host(64, 1);
  DeviceBuffer device(64);
  CUDA_OK(cudaMemsetAsync(device.data, 2, 64, nullptr));
  CUDA_OK(cudaMemcpyAsync(host.data, device.data, 64, cudaMemcpyDeviceToHost, nullptr));
  EXPECT_EQ(host.data[0], 1);
  CUDA_OK(cudaStreamSynchronize(nullptr));
  EXPECT_EQ(host.data[63], 2);
}

TEST_P(TransferAlways, TakesAPageableSourceInTheCall) {
  std::vector<unsigned char> host(64, 1);
  DeviceBuffer device(64);
  TestStream stream;
  CUDA_OK(cudaMemcpyAsync(device.data, host.data(), 64, cudaMemcpyHostToDevice, stream));
  std::fill(host.begin(), host.end(), 2);
  EXPECT_TRUE(device.holds(1));
}

TEST_P(TransferAlways, CompletesAPageableDestinationInTheCall) {
  std::vector<unsigned char> host(64, 1);
  DeviceBuffer device(64);
  TestStream stream;
  CUDA_OK(cudaMemsetAsync(device.data, 2, 64, stream));
  CUDA_OK(cudaMemcpyAsync(host.data(), device.data, 64, cudaMemcpyDeviceToHost, stream));
  EXPECT_EQ(host, std::vector<unsigned char>(64, 2));
}

TEST_P(TransferAlways, CompletesHostToHostInTheCall) {
  Pinned from(64, 3), to(64, 0);
  TestStream stream;
  CUDA_OK(cudaMemcpyAsync(to.data, from.data, 64, cudaMemcpyHostToHost, stream));
  EXPECT_EQ(std::memcmp(to.data, from.data, 64), 0);
}

TEST_P(TransferAlways, SynchronousCopiesReturnWhenTheHostSideIsDone) {
  Pinned pinned(64, 5);
  DeviceBuffer device(64);
  CUDA_OK(cudaMemcpy(device.data, pinned.data, 64, cudaMemcpyHostToDevice));
  std::memset(pinned.data, 6, 64);
  EXPECT_TRUE(device.holds(5));
  CUDA_OK(cudaMemcpy(pinned.data, device.data, 64, cudaMemcpyDeviceToHost));
  EXPECT_EQ(pinned.data[63], 5);
}

TEST_F(Transfer, ASynchronousCopyFromDeviceToDeviceDoesNotWait) {
  use("lazy");
  DeviceBuffer a(64), b(64);
  CUDA_OK(cudaMemcpy(b.data, a.data, 64, cudaMemcpyDeviceToDevice));
  EXPECT_EQ(staging_sim_pending(), 1U);
}

TEST_F(Transfer, TheKindMustBeWhatThePointersAre) {
  Pinned host(64);
  DeviceBuffer device(64);
  CUDA_ERROR(cudaMemcpyAsync(device.data, host.data, 64, cudaMemcpyDeviceToHost, nullptr),
             cudaErrorInvalidValue);
  CUDA_ERROR(cudaMemcpyAsync(host.data, device.data, 64, cudaMemcpyHostToDevice, nullptr),
             cudaErrorInvalidValue);
  CUDA_ERROR(cudaMemcpyAsync(host.data, device.data, 64, cudaMemcpyHostToHost, nullptr),
             cudaErrorInvalidValue);
  // Pageable memory is never the device's.
  std::vector<unsigned char> pageable(64);
  for (const cudaMemcpyKind kind : {cudaMemcpyHostToDevice, cudaMemcpyDeviceToDevice}) {
    CUDA_ERROR(cudaMemcpyAsync(pageable.data(), host.data, 64, kind, nullptr),
               cudaErrorInvalidValue);
  }
  for (const cudaMemcpyKind kind : {cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice}) {
    CUDA_ERROR(cudaMemcpyAsync(host.data, pageable.data(), 64, kind, nullptr),
               cudaErrorInvalidValue);
  }
  CUDA_ERROR(cudaMemcpyAsync(host.data, host.data, 64, static_cast<cudaMemcpyKind>(7), nullptr),
             cudaErrorInvalidMemcpyDirection);
  CUDA_OK(cudaMemcpyAsync(device.data, host.data, 64, cudaMemcpyDefault, nullptr));
}

// "Automatic Mapping of Host Allocated Host Memory": of cudaHostAlloc whatever its flags, and of
// cudaHostRegister where the device can use the host's pointer.
TEST_P(TransferAlways, PinnedMemoryMayStandOnTheDeviceSide) {
  Pinned allocated(64, 1);
  std::vector<unsigned char> registered(64, 2);
  CUDA_OK(cudaHostRegister(registered.data(), 64, cudaHostRegisterDefault));
  Pinned out(64);
  DeviceBuffer device(64);
  TestStream stream;
  for (unsigned char* const pinned : {allocated.data, registered.data()}) {
    const int value = pinned[0];
    CUDA_OK(cudaMemcpyAsync(device.data, pinned, 64, cudaMemcpyDeviceToDevice, stream));
    EXPECT_TRUE(device.holds(value));
    CUDA_OK(cudaMemcpyAsync(out.data, pinned, 64, cudaMemcpyDeviceToDevice, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(out.data[63], value);
    std::vector<unsigned char> pageable(64);
    CUDA_OK(cudaMemcpyAsync(pageable.data(), pinned, 64, cudaMemcpyDeviceToHost, stream));
    EXPECT_EQ(pageable, std::vector<unsigned char>(64, static_cast<unsigned char>(value)));
    pageable.assign(64, 3);
    CUDA_OK(cudaMemcpyAsync(pinned, pageable.data(), 64, cudaMemcpyHostToDevice, stream));
    pageable.assign(64, 4);  // taken in the call
    CUDA_OK(cudaMemset(device.data, 5, 64));
    CUDA_OK(cudaDeviceSynchronize());
    EXPECT_EQ(pinned[63], 3);
    CUDA_OK(cudaMemcpy2DAsync(pinned, 8, device.data, 8, 8, 8, cudaMemcpyDeviceToDevice, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(pinned[63], 5);
  }
  CUDA_OK(cudaHostUnregister(registered.data()));
}

TEST_F(Transfer, OnTheDeviceSidePinnedMemoryIsReadAndWrittenWhenTheCopyRuns) {
  use("lazy");
  Pinned from(64, 1), to(64, 0);
  for (const cudaMemcpyKind kind :
       {cudaMemcpyDeviceToDevice, cudaMemcpyDeviceToHost, cudaMemcpyHostToDevice}) {
    std::memset(from.data, 1, 64);
    std::memset(to.data, 0, 64);
    CUDA_OK(cudaMemcpyAsync(to.data, from.data, 64, kind, nullptr));
    std::memset(from.data, 2, 64);
    EXPECT_EQ(to.data[63], 0);
    CUDA_OK(cudaStreamSynchronize(nullptr));
    EXPECT_EQ(to.data[63], 2);
  }
}

TEST_F(Transfer, ARangeMustNotLeaveItsAllocation) {
  Pinned host(64);
  DeviceBuffer device(64);
  CUDA_ERROR(cudaMemcpyAsync(device.data, host.data, 65, cudaMemcpyHostToDevice, nullptr),
             cudaErrorInvalidValue);
  CUDA_ERROR(cudaMemcpyAsync(device.data + 1, host.data, 64, cudaMemcpyHostToDevice, nullptr),
             cudaErrorInvalidValue);
  CUDA_ERROR(cudaMemcpyAsync(device.data, nullptr, 1, cudaMemcpyHostToDevice, nullptr),
             cudaErrorInvalidValue);
  CUDA_ERROR(cudaMemsetAsync(device.data + 60, 0, 8, nullptr), cudaErrorInvalidValue);
  CUDA_OK(cudaMemcpyAsync(device.data + 63, host.data + 63, 1, cudaMemcpyHostToDevice, nullptr));
}

TEST_F(Transfer, ACopyMustNotSpanTwoRegistrations) {
  constexpr std::size_t kHalf = 4096;
  void* const pages =
      mmap(nullptr, 2 * kHalf, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  auto* const bytes = static_cast<unsigned char*>(pages);
  DeviceBuffer device(2 * kHalf);
  CUDA_OK(cudaHostRegister(bytes, kHalf, cudaHostRegisterDefault));
  CUDA_OK(cudaHostRegister(bytes + kHalf, kHalf, cudaHostRegisterDefault));
  const auto copy = [&](std::size_t offset, std::size_t nbytes) {
    return cudaMemcpyAsync(device.data, bytes + offset, nbytes, cudaMemcpyHostToDevice, nullptr);
  };
  CUDA_OK(copy(0, kHalf));
  CUDA_OK(copy(kHalf, kHalf));
  CUDA_ERROR(copy(kHalf - 1, 2), cudaErrorInvalidValue);
  // Half pageable is no better.
  CUDA_OK(cudaHostUnregister(bytes));
  CUDA_ERROR(copy(kHalf - 1, 2), cudaErrorInvalidValue);
  CUDA_OK(cudaHostUnregister(bytes + kHalf));
  CUDA_OK(copy(0, 2 * kHalf));
  munmap(pages, 2 * kHalf);
}

TEST_F(Transfer, PeersMustBeDevices) {
  DeviceBuffer a(64), b(64);
  CUDA_OK(cudaMemcpyPeer(a.data, 0, b.data, 0, 64));
  CUDA_ERROR(cudaMemcpyPeer(a.data, 9, b.data, 0, 64), cudaErrorInvalidDevice);
  CUDA_ERROR(cudaMemcpyPeerAsync(a.data, 0, b.data, -1, 64, nullptr), cudaErrorInvalidDevice);
}

TEST_F(Transfer, NothingIsCopiedWhereNothingIsAskedFor) {
  Pinned host(64, 1);
  DeviceBuffer device(64);
  CUDA_OK(cudaMemset(device.data, 7, 64));
  CUDA_OK(cudaMemcpyAsync(device.data, host.data, 0, cudaMemcpyHostToDevice, nullptr));
  CUDA_OK(cudaMemcpyAsync(nullptr, nullptr, 0, cudaMemcpyDefault, nullptr));
  EXPECT_TRUE(device.holds(7));
}

TEST_P(TransferAlways, RowsOfAMatrix) {
  constexpr std::size_t kWidth = 5, kHeight = 7, kHostPitch = 8, kDevicePitch = 11;
  Pinned host(kHostPitch * kHeight);
  std::iota(host.data, host.data + host.nbytes, static_cast<unsigned char>(1));
  DeviceBuffer device(kDevicePitch * kHeight);
  TestStream stream;
  CUDA_OK(cudaMemset(device.data, 0xee, device.nbytes));
  CUDA_OK(cudaDeviceSynchronize());
  CUDA_OK(cudaMemcpy2DAsync(device.data, kDevicePitch, host.data, kHostPitch, kWidth, kHeight,
                            cudaMemcpyHostToDevice, stream));
  const std::vector<unsigned char> seen = device.read();
  for (std::size_t y = 0; y < kHeight; ++y) {
    for (std::size_t x = 0; x < kDevicePitch; ++x) {
      const unsigned char want = x < kWidth ? host.data[y * kHostPitch + x] : 0xee;
      ASSERT_EQ(seen[y * kDevicePitch + x], want) << "row " << y << " column " << x;
    }
  }
  // Of a fill it is an argument like any other.
  CUDA_ERROR(cudaMemset2DAsync(device.data, 4, 0, kWidth, kHeight, stream), cudaErrorInvalidValue);
  CUDA_ERROR(cudaMemcpy2DAsync(device.data, std::size_t{1} << 31, host.data, kHostPitch, kWidth, 2,
                               cudaMemcpyHostToDevice, stream),
             cudaErrorInvalidPitchValue);
  CUDA_ERROR(cudaMemcpy2DAsync(device.data, 4, host.data, kHostPitch, kWidth, kHeight,
                               cudaMemcpyHostToDevice, stream),
             cudaErrorInvalidPitchValue);
}

TEST_P(TransferAlways, FillsBytes) {
  DeviceBuffer device(1000);
  TestStream stream;
  CUDA_OK(cudaMemsetAsync(device.data, 0x1ab, 1000, stream));
  EXPECT_TRUE(device.holds(0xab));
  std::vector<unsigned char> pageable(8);
  CUDA_ERROR(cudaMemsetAsync(pageable.data(), 0, 8, stream), cudaErrorInvalidValue);
}

TEST_P(TransferAlways, LargeCopies) {
  constexpr std::size_t kNbytes = 1 << 20;
  Pinned host(kNbytes, 3), back(kNbytes, 0);
  DeviceBuffer device(kNbytes);
  TestStream stream;
  CUDA_OK(cudaMemcpyAsync(device.data, host.data, kNbytes, cudaMemcpyHostToDevice, stream));
  CUDA_OK(cudaMemcpyAsync(back.data, device.data, kNbytes, cudaMemcpyDeviceToHost, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(std::memcmp(host.data, back.data, kNbytes), 0);
}

// -- batches ------------------------------------------------------------------------------

struct Batch {
  std::vector<void*> dsts;
  std::vector<const void*> srcs;
  std::vector<std::size_t> sizes;
  cudaMemcpyAttributes attributes = {};
  std::size_t first = 0;

  void add(void* dst, const void* src, std::size_t nbytes) {
    dsts.push_back(dst);
    srcs.push_back(src);
    sizes.push_back(nbytes);
  }
  cudaError_t enqueue(cudaStream_t stream, cudaMemcpySrcAccessOrder order) {
    attributes.srcAccessOrder = order;
    return cudaMemcpyBatchAsync(dsts.data(), srcs.data(), sizes.data(), dsts.size(), &attributes,
                                &first, 1, stream);
  }
};

TEST_P(TransferAlways, ABatchMovesEveryPiece) {
  Pinned host(100, 1);
  DeviceBuffer device(100);
  TestStream stream;
  Batch batch;
  for (std::size_t i = 0; i < 10; ++i) batch.add(device.data + 10 * i, host.data + 10 * i, 10);
  CUDA_OK(batch.enqueue(stream, cudaMemcpySrcAccessOrderStream));
  EXPECT_TRUE(device.holds(1));
}

TEST_F(Transfer, ABatchHasNoOrderWithinItself) {
  std::set<unsigned char> outcomes;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    use("eager", seed);
    Pinned host(8);
    std::iota(host.data, host.data + 8, static_cast<unsigned char>(0));
    DeviceBuffer device(1);
    TestStream stream;
    Batch batch;
    for (std::size_t i = 0; i < 8; ++i) batch.add(device.data, host.data + i, 1);
    CUDA_OK(batch.enqueue(stream, cudaMemcpySrcAccessOrderStream));
    outcomes.insert(device.read().front());
  }
  EXPECT_GT(outcomes.size(), 1U);
}

TEST_F(Transfer, ABatchReadsItsSourcesWhenItsAttributesSay) {
  use("lazy");
  Pinned host(64, 1);
  DeviceBuffer device(64);
  TestStream stream;
  Batch batch;
  batch.add(device.data, host.data, 64);
  CUDA_OK(batch.enqueue(stream, cudaMemcpySrcAccessOrderDuringApiCall));
  std::memset(host.data, 2, 64);
  EXPECT_TRUE(device.holds(1));
  CUDA_OK(batch.enqueue(stream, cudaMemcpySrcAccessOrderStream));
  std::memset(host.data, 3, 64);
  EXPECT_TRUE(device.holds(3));
}

TEST_F(Transfer, ABatchNeverGoesToTheLegacyStream) {
  Pinned host(64, 1);
  DeviceBuffer device(64);
  Batch batch;
  batch.add(device.data, host.data, 64);
  CUDA_ERROR(batch.enqueue(nullptr, cudaMemcpySrcAccessOrderStream), cudaErrorInvalidValue);
  CUDA_ERROR(batch.enqueue(cudaStreamLegacy, cudaMemcpySrcAccessOrderStream),
             cudaErrorInvalidValue);
  CUDA_OK(batch.enqueue(cudaStreamPerThread, cudaMemcpySrcAccessOrderStream));
}

TEST_F(Transfer, ABatchWithWrongAttributesIsRefusedAsAWhole) {
  Pinned host(64, 1);
  DeviceBuffer device(64);
  CUDA_OK(cudaMemset(device.data, 0, 64));
  TestStream stream;
  Batch batch;
  batch.add(device.data, host.data, 32);
  CUDA_ERROR(batch.enqueue(stream, cudaMemcpySrcAccessOrderInvalid), cudaErrorInvalidValue);
  batch.first = 1;
  CUDA_ERROR(batch.enqueue(stream, cudaMemcpySrcAccessOrderStream), cudaErrorInvalidValue);
  batch.first = 0;
  batch.add(device.data + 32, host.data, 33);  // leaves the allocation
  CUDA_ERROR(batch.enqueue(stream, cudaMemcpySrcAccessOrderStream), cudaErrorInvalidValue);
  EXPECT_TRUE(device.holds(0));
}

TEST_F(Transfer, UnderCaptureABatchFailsAndTheCaptureGoesOnWithoutIt) {
  Pinned host(64, 1);
  DeviceBuffer device(64);
  TestStream stream;
  Batch batch;
  batch.add(device.data, host.data, 64);
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CUDA_ERROR(batch.enqueue(stream, cudaMemcpySrcAccessOrderStream),
             cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  std::size_t nodes = 99;
  CUDA_OK(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 0U);
  CUDA_OK(cudaGraphDestroy(graph));
}

}  // namespace
}  // namespace staging::sim
