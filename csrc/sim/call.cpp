#include "sim/call.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "sim/call_record.h"
#include "sim/faults.h"
#include "sim/machine.h"
#include "sim/reports.h"

namespace staging::sim {

namespace {

// Calls that need neither a device nor a context.
bool needs_nothing(CallId id) {
  switch (id) {
    case CallId::cudaGetErrorName:
    case CallId::cudaGetErrorString:
    case CallId::cudaGetLastError:
    case CallId::cudaPeekAtLastError:
    case CallId::cudaDriverGetVersion:
    case CallId::cudaRuntimeGetVersion:
    case CallId::cudaGetDevice:
    case CallId::__cudaPushCallConfiguration:
    case CallId::__cudaPopCallConfiguration:
    case CallId::__cudaGetKernel:
    case CallId::__cudaRegisterFatBinary:
    case CallId::__cudaRegisterFatBinaryEnd:
    case CallId::__cudaUnregisterFatBinary:
    case CallId::__cudaRegisterFunction:
    case CallId::__cudaRegisterVar:
    case CallId::__cudaInitModule:
      return true;
    default:
      return false;
  }
}

}  // namespace

cudaError_t Call::inspect() noexcept {
  const unsigned attention = Attention::bits();
  if (attention & Attention::kFaults) {
    if (const auto fault = Faults::get().check(id_)) {
      if (fault->deferred) {
        deferred_ = fault->code;
      } else {
        thread_state.unmodelled = nullptr;  // this error is not about what is not modelled
        if (fault->sticky) Machine::get().lose(fault->code);
        return fault->code;
      }
    }
  }
  if (needs_nothing(id_)) return cudaSuccess;
  if (thread_state.in_callback) {
    Reports::get().add("call-in-callback",
                       std::string(name_of(id_)) +
                           " was called from a host function or a "
                           "destructor of a user object, which must not call CUDA");
    return cudaErrorNotPermitted;
  }
  if (attention & Attention::kForked) return cudaErrorInitializationError;
  if (attention & Attention::kLost) return Machine::get().lost();
  return cudaSuccess;
}

void Call::record(cudaError_t result) noexcept {
  static thread_local const int thread = static_cast<int>(syscall(SYS_gettid));
  CallRecord::get().add({id_, result, thread, thread_state.device, stream_, nbytes_, kind_});
}

}  // namespace staging::sim
