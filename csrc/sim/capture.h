// Stream capture: which streams record their work into which graph.
//
// Purpose: CUDA's rules of stream capture: how streams join a capture through events and
//   leave it by being joined, what is prohibited meanwhile for which thread, and what
//   invalidates a capture (programming guide, "Creating a Graph Using Stream Capture", and
//   the documentation of cudaThreadExchangeStreamCaptureMode).
// Owner: the machine. Thread-safety: the machine's lock; any() may be asked without it.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "sim/stream.h"
#include "sim/work.h"

namespace staging::sim {

class Event;
class Graph;

// One cudaStreamBeginCapture … cudaStreamEndCapture sequence.
class Capture {
 public:
  std::uint64_t id = 0;
  Graph* graph = nullptr;
  bool owns_graph = true;  // false: cudaStreamBeginCaptureToGraph
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  Stream* origin = nullptr;
  std::vector<Ref<Stream>> streams;  // that take part, the origin first
  bool invalidated = false;
};

class Captures {
 public:
  bool any() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }

  cudaError_t begin(Stream& stream, Graph* graph, bool owns_graph, cudaStreamCaptureMode mode);
  // Null `out` where the capture was invalidated or the sequence is not joined.
  cudaError_t end(Stream& stream, Graph** out);
  void invalidate(Capture& capture) noexcept { capture.invalidated = true; }

  // Appends a node to the stream's capture, after what the stream depends on.
  Node& add(Stream& stream, cudaGraphNodeType type, std::shared_ptr<const Work> work);

  // `stream`, capturing or not, waits for an event that was captured.
  cudaError_t join(Stream& stream, const Event& event);

  // A potentially unsafe call on this thread. Prohibited: the captures in question are
  // invalidated and cudaErrorStreamCaptureUnsupported is returned.
  cudaError_t check_unsafe_call();
  // Work for the legacy stream of `device`.
  cudaError_t check_legacy(int device, bool invalidates);
  Capture* find(std::uint64_t id);

 private:
  std::vector<std::unique_ptr<Capture>> captures_;
  std::atomic<int> count_{0};
  std::uint64_t next_id_ = 1;
};

}  // namespace staging::sim
