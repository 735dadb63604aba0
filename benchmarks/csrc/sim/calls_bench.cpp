// What a call of the simulated runtime costs the host, under `eager`: the floor below which
// no host cost can be measured over it.
//
//   cmake -S csrc/sim -B build/sim -G Ninja -DCMAKE_BUILD_TYPE=Release -DSTAGING_BENCHMARKS=ON
//   ninja -C build/sim sim_calls_bench && build/sim/sim_calls_bench
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/strided_copy.cuh"
#include "measure.h"

extern "C" {
void** __cudaRegisterFatBinary(void*);
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*,
                            dim3*, int*);
}

namespace {

using staging::benchmarks::nanoseconds;

void show(const char* what, double ns) {
  std::printf("%-44s %8.1f ns\n", what, ns);
}

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
  std::exit(1);
}
#define CHECK(call) check(call, #call)

}  // namespace

int main() {
  constexpr std::size_t kNbytes = 1 << 20;
  void *host = nullptr, *device = nullptr;
  CHECK(cudaHostAlloc(&host, kNbytes, cudaHostAllocDefault));
  CHECK(cudaMalloc(&device, kNbytes));
  std::vector<char> registered(kNbytes), pageable(kNbytes);
  CHECK(cudaHostRegister(registered.data(), kNbytes, cudaHostRegisterDefault));
  std::memset(host, 1, kNbytes);
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr, timed = nullptr;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  CHECK(cudaEventCreate(&timed));

  std::printf("Simulated device, eager: host times, not device times\n");
  show("memcpy of 1 KiB, for comparison", nanoseconds([&] {
         std::memcpy(pageable.data(), registered.data(), 1024);
         asm volatile("" : : "r"(pageable.data()) : "memory");
       }));
  const struct {
    const char* name;
    const void* source;
  } sources[] = {
      {"pinned", host}, {"registered", registered.data()}, {"pageable", pageable.data()}};
  for (const auto& [name, source] : sources) {
    for (const std::size_t nbytes : {std::size_t{1}, std::size_t{1024}}) {
      char what[64];
      std::snprintf(what, sizeof what, "cudaMemcpyAsync of %4zu bytes, %s", nbytes, name);
      show(what, nanoseconds([&, source = source] {
             cudaMemcpyAsync(device, source, nbytes, cudaMemcpyHostToDevice, stream);
           }));
    }
  }
  int current = 0;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaPointerAttributes attributes = {};
  show("cudaEventRecord", nanoseconds([&] { cudaEventRecord(event, stream); }));
  show("cudaEventRecord, with timing", nanoseconds([&] { cudaEventRecord(timed, stream); }));
  show("cudaEventQuery", nanoseconds([&] { cudaEventQuery(event); }));
  show("cudaStreamWaitEvent", nanoseconds([&] { cudaStreamWaitEvent(stream, event, 0); }));
  show("cudaStreamSynchronize", nanoseconds([&] { cudaStreamSynchronize(stream); }));
  show("cudaStreamIsCapturing", nanoseconds([&] { cudaStreamIsCapturing(stream, &status); }));
  show("cudaGetDevice", nanoseconds([&] { cudaGetDevice(&current); }));
  show("cudaSetDevice", nanoseconds([&] { cudaSetDevice(0); }));
  show("cudaPointerGetAttributes",
       nanoseconds([&] { cudaPointerGetAttributes(&attributes, host); }));
  show("cudaThreadExchangeStreamCaptureMode", nanoseconds([&] {
         cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
         cudaThreadExchangeStreamCaptureMode(&mode);
       }));

  static char stub;
  __cudaRegisterFunction(__cudaRegisterFatBinary(nullptr), &stub, nullptr,
                         "_ZN7staging7kernels19strided_copy_kernelENS0_17StridedCopyParamsE", -1,
                         nullptr, nullptr, nullptr, nullptr, nullptr);
  staging::kernels::StridedCopyParams params{};
  params.src = static_cast<const unsigned char*>(host);
  params.dst = static_cast<unsigned char*>(device);
  params.element_count = params.sizes[0] = 1;
  params.ndim = params.element_nbytes = 1;
  params.src_strides_nbytes[0] = params.dst_strides_nbytes[0] = 1;
  void* args[] = {&params};
  show("cudaLaunchKernel of one thread",
       nanoseconds([&] { cudaLaunchKernel(&stub, dim3(1), dim3(1), args, 0, stream); }, 2000));

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  CHECK(cudaMemcpyAsync(device, host, 1024, cudaMemcpyHostToDevice, stream));
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  show("cudaGraphLaunch of one copy", nanoseconds([&] { cudaGraphLaunch(exec, stream); }, 2000));

  void* pointer = nullptr;
  show("cudaMalloc and cudaFree of 4 KiB", nanoseconds(
                                               [&] {
                                                 cudaMalloc(&pointer, 4096);
                                                 cudaFree(pointer);
                                               },
                                               500));
  show("cudaHostAlloc and cudaFreeHost of 4 KiB", nanoseconds(
                                                      [&] {
                                                        cudaHostAlloc(&pointer, 4096,
                                                                      cudaHostAllocDefault);
                                                        cudaFreeHost(pointer);
                                                      },
                                                      100));
  return 0;
}
