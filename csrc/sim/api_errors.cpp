// Entry points: errors, versions, the way to the driver.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "sim/call.h"
#include "sim/errors.h"
#include "sim/machine.h"

using namespace staging::sim;

extern "C" {

const char* cudaGetErrorName(cudaError_t error) {
  const Call call(CallId::cudaGetErrorName);
  const char* const name = error_name(error);
  return name == nullptr ? "unrecognized error code" : name;
}

const char* cudaGetErrorString(cudaError_t error) {
  const Call call(CallId::cudaGetErrorString);
  return error_text(error);
}

// An error that destroyed the context is not cleared by asking.
cudaError_t cudaGetLastError() {
  const Call call(CallId::cudaGetLastError);
  const cudaError_t error = thread_state.last_error;
  thread_state.last_error = cudaSuccess;
  return Attention::bits() & Attention::kLost ? Machine::get().lost() : error;
}

cudaError_t cudaPeekAtLastError() {
  const Call call(CallId::cudaPeekAtLastError);
  return Attention::bits() & Attention::kLost ? Machine::get().lost() : thread_state.last_error;
}

cudaError_t cudaDriverGetVersion(int* version) {
  return runtime_call(CallId::cudaDriverGetVersion, [&](Call&) {
    if (version == nullptr) return cudaErrorInvalidValue;
    *version = CUDART_VERSION;
    return cudaSuccess;
  });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  return runtime_call(CallId::cudaRuntimeGetVersion, [&](Call&) {
    if (version == nullptr) return cudaErrorInvalidValue;
    *version = CUDART_VERSION;
    return cudaSuccess;
  });
}

static cudaError_t find_driver_symbol(const char* symbol, void** function,
                                      cudaDriverEntryPointQueryResult* status) {
  if (symbol == nullptr || function == nullptr) return cudaErrorInvalidValue;
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  *function = driver == nullptr ? nullptr : dlsym(driver, symbol);
  const bool found = *function != nullptr;
  if (status != nullptr) {
    *status = found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  }
  return found || status != nullptr ? cudaSuccess : cudaErrorSymbolNotFound;
}

cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long,
                                    cudaDriverEntryPointQueryResult* status) {
  return runtime_call(CallId::cudaGetDriverEntryPoint,
                      [&](Call&) { return find_driver_symbol(symbol, function, status); });
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  return runtime_call(CallId::cudaGetDriverEntryPointByVersion,
                      [&](Call&) { return find_driver_symbol(symbol, function, status); });
}

cudaError_t cudaProfilerStart() {
  return runtime_call(CallId::cudaProfilerStart, [](Call&) { return cudaSuccess; });
}

cudaError_t cudaProfilerStop() {
  return runtime_call(CallId::cudaProfilerStop, [](Call&) { return cudaSuccess; });
}

}  // extern "C"
