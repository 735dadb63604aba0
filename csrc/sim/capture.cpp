#include "sim/capture.h"

#include <algorithm>

#include "sim/machine.h"

namespace staging::sim {

namespace {

void merge(std::vector<Node*>& into, const std::vector<Node*>& more) {
  for (Node* node : more) {
    if (std::find(into.begin(), into.end(), node) == into.end()) into.push_back(node);
  }
}

// Whether every node that the capture added leads to what the origin stream depends on.
bool all_joined(const Capture& capture) {
  const std::vector<Node*>& end = capture.origin->capture_tail;
  for (const Ref<Stream>& stream : capture.streams) {
    if (stream.get() == capture.origin) continue;
    for (Node* node : stream->capture_tail) {
      std::vector<Node*> todo = end;
      std::vector<Node*> seen;
      bool found = false;
      while (!todo.empty() && !found) {
        Node* const next = todo.back();
        todo.pop_back();
        if (std::find(seen.begin(), seen.end(), next) != seen.end()) continue;
        seen.push_back(next);
        found = next == node;
        todo.insert(todo.end(), next->after.begin(), next->after.end());
      }
      if (!found) return false;
    }
  }
  return true;
}

}  // namespace

cudaError_t Captures::begin(Stream& stream, Graph* graph, bool owns_graph,
                            cudaStreamCaptureMode mode) {
  auto capture = std::make_unique<Capture>();
  capture->id = next_id_++;
  capture->graph = graph;
  capture->owns_graph = owns_graph;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = &stream;
  capture->streams.emplace_back(&stream);
  stream.capture = capture.get();
  stream.capture_tail.clear();
  captures_.push_back(std::move(capture));
  count_.store(static_cast<int>(captures_.size()), std::memory_order_relaxed);
  return cudaSuccess;
}

cudaError_t Captures::end(Stream& stream, Graph** out) {
  *out = nullptr;
  Capture* const capture = stream.capture;
  if (capture == nullptr) return cudaErrorIllegalState;
  if (capture->origin != &stream) {
    invalidate(*capture);
    return cudaErrorStreamCaptureUnmatched;
  }
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id()) {
    return cudaErrorStreamCaptureWrongThread;
  }
  cudaError_t result = cudaSuccess;
  if (capture->invalidated) {
    result = cudaErrorStreamCaptureInvalidated;
  } else if (!all_joined(*capture)) {
    result = cudaErrorStreamCaptureUnjoined;
  }
  for (const Ref<Stream>& taking_part : capture->streams) {
    taking_part->capture = nullptr;
    taking_part->capture_tail.clear();
  }
  if (result == cudaSuccess) {
    *out = capture->graph;
  } else if (capture->owns_graph) {
    Machine::get().graphs.graphs.release(capture->graph);
  }
  captures_.erase(std::find_if(captures_.begin(), captures_.end(),
                               [&](const auto& c) { return c.get() == capture; }));
  count_.store(static_cast<int>(captures_.size()), std::memory_order_relaxed);
  return result;
}

Node& Captures::add(Stream& stream, cudaGraphNodeType type, std::shared_ptr<const Work> work) {
  Node& node = stream.capture->graph->add(type, std::move(work), stream.capture_tail);
  stream.capture_tail = {&node};
  return node;
}

Capture* Captures::find(std::uint64_t id) {
  for (const auto& capture : captures_) {
    if (capture->id == id) return capture.get();
  }
  return nullptr;
}

cudaError_t Captures::join(Stream& stream, const Event& event) {
  Capture* const capture = find(event.capture_id);
  // The sequence is over: its events mean nothing outside of it.
  if (capture == nullptr) return cudaErrorCapturedEvent;
  if (capture->invalidated) return cudaErrorStreamCaptureInvalidated;
  if (stream.capture == capture) {
    merge(stream.capture_tail, event.capture_nodes);
    return cudaSuccess;
  }
  if (stream.capture != nullptr) {
    invalidate(*capture);
    invalidate(*stream.capture);
    return cudaErrorStreamCaptureMerge;
  }
  if (stream.role == Stream::Role::kLegacy) {
    invalidate(*capture);
    return cudaErrorStreamCaptureImplicit;
  }
  stream.capture = capture;
  stream.capture_tail = event.capture_nodes;
  capture->streams.emplace_back(&stream);
  return cudaSuccess;
}

cudaError_t Captures::check_unsafe_call() {
  if (!any() || thread_state.capture_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  const auto self = std::this_thread::get_id();
  bool prohibited = false;
  for (const auto& capture : captures_) {
    const bool own = capture->thread == self && capture->mode != cudaStreamCaptureModeRelaxed;
    const bool global = thread_state.capture_mode == cudaStreamCaptureModeGlobal &&
                        capture->mode == cudaStreamCaptureModeGlobal;
    if (!own && !global) continue;
    invalidate(*capture);
    prohibited = true;
  }
  return prohibited ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t Captures::check_legacy(int device, bool invalidates) {
  bool implicit = false;
  for (const auto& capture : captures_) {
    for (const Ref<Stream>& stream : capture->streams) {
      if (stream->device != device || !stream->blocking()) continue;
      implicit = true;
      if (invalidates) invalidate(*capture);
    }
  }
  return implicit ? cudaErrorStreamCaptureImplicit : cudaSuccess;
}

}  // namespace staging::sim
