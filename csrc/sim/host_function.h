// Host functions and stream callbacks as work.
//
// Owner: values. Thread-safety: they run on the callback thread only.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "sim/work.h"

namespace staging::sim {

class HostFunctionWork final : public Work {
 public:
  HostFunctionWork(cudaHostFn_t function, void* argument)
      : Work(Kind::kHost, /*brief=*/false), function_(function), argument_(argument) {}

  cudaError_t run() const override {
    function_(argument_);
    return cudaSuccess;
  }
  std::string describe() const override { return "a host function"; }

 private:
  cudaHostFn_t function_;
  void* argument_;
};

// Unlike host functions, callbacks run after an error, too, and are told of it.
class StreamCallbackWork final : public Work {
 public:
  StreamCallbackWork(cudaStreamCallback_t callback, cudaStream_t stream, void* data)
      : Work(Kind::kHost, /*brief=*/false), callback_(callback), stream_(stream), data_(data) {}

  cudaError_t run() const override {
    callback_(stream_, cudaSuccess, data_);
    return cudaSuccess;
  }
  void dropped(cudaError_t error) const override { callback_(stream_, error, data_); }
  std::string describe() const override { return "a stream callback"; }

 private:
  cudaStreamCallback_t callback_;
  cudaStream_t stream_;
  void* data_;
};

}  // namespace staging::sim
