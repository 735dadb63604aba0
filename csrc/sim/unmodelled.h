// What the stand-in does not model: answered with CUDA's "not supported", and said by name.
//
// Purpose: the stubs of entry points, kernels without a model, options that a modelled call does
//   not know. The program gets an error that it can handle, and nothing of the process ends.
// Owner: stateless. Thread-safety: any thread; the text of the last refusal is the thread's.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace staging::sim {

// Reports `what`, once until the reports are cleared, and makes it the text of this thread's
// cudaErrorNotSupported, which it returns.
cudaError_t unmodelled(const char* kind, const std::string& what);

// The text of the thread's last refusal, kept for ever; null if there was none.
const char* unmodelled_text() noexcept;

}  // namespace staging::sim
