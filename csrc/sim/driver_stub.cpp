// libcuda.so.1 of the simulated device.
//
// Purpose: what PyTorch and others ask of the driver itself; generate_stubs.py adds a stub
//   for every other entry point, which reports its name and returns "not supported". State is
//   the runtime's: the stand-in for libcudart, where it is loaded.
// Owner: nothing. Thread-safety: stateless.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#undef cuGetProcAddress
#undef cuDeviceTotalMem

namespace {

template <typename Function>
Function* runtime_function(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

// The stand-in's own functions rather than the runtime's: PyTorch asks for contexts at each
// copy, which must neither count as calls nor fail once the context is lost.
bool context_active(int device) {
  static auto* const active = runtime_function<int(int)>("staging_sim_context_active");
  return active != nullptr && active(device) != 0;
}

int current_device() {
  static auto* const get = runtime_function<int()>("staging_sim_current_device");
  return get == nullptr ? 0 : get();
}

int device_count() {
  static auto* const count = runtime_function<int()>("staging_sim_device_count");
  return count == nullptr ? 0 : count();
}

// A context's handle: never dereferenced by anybody, one for each device.
char g_contexts[16];

// The text of the thread's last refusal, which names what is not modelled; null: there was none.
const char* unmodelled_text() {
  static auto* const get = runtime_function<const char*()>("staging_sim_unmodelled_text");
  return get == nullptr ? nullptr : get();
}

const char* name_of(CUresult error) {
  switch (error) {
    case CUDA_SUCCESS:
      return "CUDA_SUCCESS";
    case CUDA_ERROR_INVALID_VALUE:
      return "CUDA_ERROR_INVALID_VALUE";
    case CUDA_ERROR_OUT_OF_MEMORY:
      return "CUDA_ERROR_OUT_OF_MEMORY";
    case CUDA_ERROR_NOT_INITIALIZED:
      return "CUDA_ERROR_NOT_INITIALIZED";
    case CUDA_ERROR_NO_DEVICE:
      return "CUDA_ERROR_NO_DEVICE";
    case CUDA_ERROR_INVALID_DEVICE:
      return "CUDA_ERROR_INVALID_DEVICE";
    case CUDA_ERROR_INVALID_CONTEXT:
      return "CUDA_ERROR_INVALID_CONTEXT";
    case CUDA_ERROR_NOT_FOUND:
      return "CUDA_ERROR_NOT_FOUND";
    case CUDA_ERROR_NOT_SUPPORTED:
      return "CUDA_ERROR_NOT_SUPPORTED";
    default:
      return nullptr;
  }
}

}  // namespace

extern "C" {

// What the generated stubs do.
int staging_sim_unmodelled_call(const char* name) {
  static auto* const report = runtime_function<int(const char*)>("staging_sim_unmodelled_driver");
  if (report != nullptr) return report(name);
  std::fprintf(stderr, "simulated device: unmodelled-call: %s\n", name);
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuInit(unsigned) {
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *name = name_of(error);
  return *name == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  if (text != nullptr && error == CUDA_ERROR_NOT_SUPPORTED && unmodelled_text() != nullptr) {
    *text = unmodelled_text();
    return CUDA_SUCCESS;
  }
  return cuGetErrorName(error, text);
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (ordinal < 0 || ordinal >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = device_count();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int nbytes, CUdevice) {
  if (name == nullptr || nbytes <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::snprintf(name, static_cast<size_t>(nbytes), "Simulated device");
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  // The runtime's attributes have the driver's numbers.
  static auto* const get = runtime_function<int(int*, int, int)>("staging_sim_device_attribute");
  if (get == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  return get(value, static_cast<int>(attribute), device) == 0 ? CUDA_SUCCESS
                                                              : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const int device = current_device();
  *context = context_active(device) ? reinterpret_cast<CUcontext>(&g_contexts[device]) : nullptr;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!context_active(current_device())) return CUDA_ERROR_INVALID_CONTEXT;
  *device = current_device();
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  if (device < 0 || device >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
  if (flags != nullptr) *flags = 0;
  if (active != nullptr) *active = context_active(device) ? 1 : 0;
  return CUDA_SUCCESS;
}

// There is no driver that would log anything.
CUresult cuLogsRegisterCallback(CUlogsCallback, void*, CUlogsCallbackHandle* handle) {
  static char none;
  if (handle != nullptr) *handle = reinterpret_cast<CUlogsCallbackHandle>(&none);
  return CUDA_SUCCESS;
}

CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle) {
  return CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char* symbol, void** function, int, cuuint64_t,
                             CUdriverProcAddressQueryResult* status) {
  if (symbol == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // As in CUDA, the name without a version means the version that the caller was built for.
  if (std::strcmp(symbol, "cuGetProcAddress") == 0) symbol = "cuGetProcAddress_v2";
  static void* const self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  *function = self == nullptr ? nullptr : dlsym(self, symbol);
  if (status != nullptr) {
    *status =
        *function == nullptr ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND : CU_GET_PROC_ADDRESS_SUCCESS;
  }
  return *function == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

// Under its first name, by which libraries with a runtime of their own look it up.
CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}

}  // extern "C"
