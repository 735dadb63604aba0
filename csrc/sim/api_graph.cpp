// Entry points: stream capture, graphs, user objects.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "sim/machine.h"
#include "sim/unmodelled.h"

using namespace staging::sim;

namespace {

Graph* graph_of(cudaGraph_t handle) {
  return HandlePool<Graph>::find(handle);
}
Node* node_of(cudaGraphNode_t handle) {
  return HandlePool<Node>::find(handle);
}
UserObject* object_of(cudaUserObject_t handle) {
  return HandlePool<UserObject>::find(handle);
}
GraphExec* executable_of(cudaGraphExec_t handle) {
  GraphExec* const exec = HandlePool<GraphExec>::find(handle);
  return exec == nullptr || exec->destroyed ? nullptr : exec;
}

cudaGraph_t handle_of(Graph* graph) {
  return reinterpret_cast<cudaGraph_t>(graph);
}
cudaGraphNode_t handle_of(Node* node) {
  return reinterpret_cast<cudaGraphNode_t>(node);
}

bool plain(const cudaGraphEdgeData* edges, std::size_t count) {
  for (std::size_t i = 0; edges != nullptr && i < count; ++i) {
    if (edges[i].from_port != 0 || edges[i].to_port != 0 || edges[i].type != 0) return false;
  }
  return true;
}

// Programmatic dependent launch, the only use of edge data, is not modelled.
bool nodes_of(const cudaGraphNode_t* handles, const cudaGraphEdgeData* edges, std::size_t count,
              std::vector<Node*>* out) {
  if ((count > 0 && handles == nullptr) || !plain(edges, count)) return false;
  for (std::size_t i = 0; i < count; ++i) {
    Node* const node = node_of(handles[i]);
    if (node == nullptr) return false;
    out->push_back(node);
  }
  return true;
}

// The convention of cudaGraphGetNodes and its kin: with an array, fills up to *count and
// clears the rest; without, says how many there are.
void list(const std::vector<Node*>& nodes, cudaGraphNode_t* out, std::size_t* count) {
  if (out != nullptr) {
    for (std::size_t i = 0; i < *count; ++i) {
      out[i] = i < nodes.size() ? handle_of(nodes[i]) : nullptr;
    }
    *count = std::min(*count, nodes.size());
  } else {
    *count = nodes.size();
  }
}

cudaError_t begin(CallId id, cudaStream_t handle, cudaGraph_t graph_handle, bool to_graph,
                  const cudaGraphNode_t* dependencies, const cudaGraphEdgeData* edges,
                  std::size_t count, cudaStreamCaptureMode mode) {
  return locked_call(id, [&](Call& call, Machine& machine, Lock&) {
    call.note(handle);
    if (machine.device_count() == 0) return cudaErrorNoDevice;
    if (mode < cudaStreamCaptureModeGlobal || mode > cudaStreamCaptureModeRelaxed) {
      return cudaErrorInvalidValue;
    }
    Stream* const stream = machine.resolve(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (stream->role == Stream::Role::kLegacy) return cudaErrorStreamCaptureUnsupported;
    if (stream->capture != nullptr) return cudaErrorIllegalState;
    std::vector<Node*> after;
    Graph* const graph = to_graph ? graph_of(graph_handle) : machine.graphs.graphs.create();
    if (graph == nullptr || !nodes_of(dependencies, edges, count, &after)) {
      return cudaErrorInvalidValue;
    }
    const cudaError_t error = machine.captures.begin(*stream, graph, !to_graph, mode);
    stream->capture_tail = std::move(after);
    return error;
  });
}

cudaError_t instantiate(CallId id, cudaGraphExec_t* out, cudaGraph_t handle,
                        unsigned long long flags) {
  return locked_call(id, [&](Call&, Machine& machine, Lock&) {
    constexpr unsigned long long kKnown = cudaGraphInstantiateFlagAutoFreeOnLaunch |
                                          cudaGraphInstantiateFlagUpload |
                                          cudaGraphInstantiateFlagUseNodePriority;
    Graph* const graph = graph_of(handle);
    if (out == nullptr || graph == nullptr) return cudaErrorInvalidValue;
    if (flags == cudaGraphInstantiateFlagDeviceLaunch) {
      return unmodelled("unmodelled-call", "cudaGraphInstantiate for launches by the device");
    }
    if ((flags & ~kKnown) != 0) return cudaErrorInvalidValue;
    GraphExec* const exec = machine.graphs.executables.create(*graph);
    if (!exec->valid()) {
      machine.graphs.executables.release(exec);
      return cudaErrorInvalidValue;
    }
    ++exec->references;
    ++machine.graphs.executable_handles;
    *out = reinterpret_cast<cudaGraphExec_t>(exec);
    return cudaSuccess;
  });
}

}  // namespace

extern "C" {

// -- capture -------------------------------------------------------------------------------

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return begin(CallId::cudaStreamBeginCapture, stream, nullptr, false, nullptr, nullptr, 0, mode);
}

cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                          const cudaGraphNode_t* dependencies,
                                          const cudaGraphEdgeData* edges, std::size_t count,
                                          cudaStreamCaptureMode mode) {
  return begin(CallId::cudaStreamBeginCaptureToGraph, stream, graph, true, dependencies, edges,
               count, mode);
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* out) {
  return locked_call(CallId::cudaStreamEndCapture, [&](Call& call, Machine& machine, Lock&) {
    call.note(handle);
    Stream* const stream = machine.resolve(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    Graph* graph = nullptr;
    const cudaError_t error = machine.captures.end(*stream, &graph);
    if (out != nullptr) *out = handle_of(graph);
    return error;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return locked_call(CallId::cudaStreamIsCapturing, [&](Call& call, Machine& machine, Lock&) {
    call.note(handle);
    if (status == nullptr) return cudaErrorInvalidValue;
    Stream* const stream = machine.resolve(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (machine.captures.any() && stream->role == Stream::Role::kLegacy) {
      const cudaError_t error = machine.captures.check_legacy(stream->device, false);
      if (error != cudaSuccess) return error;
    }
    *status = stream->capture == nullptr     ? cudaStreamCaptureStatusNone
              : stream->capture->invalidated ? cudaStreamCaptureStatusInvalidated
                                             : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, std::size_t* count) {
  return locked_call(CallId::cudaStreamGetCaptureInfo, [&](Call& call, Machine& machine, Lock&) {
    call.note(handle);
    if (status == nullptr || (edges != nullptr && dependencies == nullptr)) {
      return cudaErrorInvalidValue;
    }
    Stream* const stream = machine.resolve(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (machine.captures.any() && stream->role == Stream::Role::kLegacy) {
      const cudaError_t error = machine.captures.check_legacy(stream->device, false);
      if (error != cudaSuccess) return error;
    }
    *status = cudaStreamCaptureStatusNone;
    const Capture* const capture = stream->capture;
    if (capture == nullptr) return cudaSuccess;
    *status =
        capture->invalidated ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
    if (capture->invalidated) return cudaSuccess;
    if (id != nullptr) *id = capture->id;
    if (graph != nullptr) *graph = handle_of(capture->graph);
    if (dependencies != nullptr) {
      // A node's handle is its address.
      *dependencies = reinterpret_cast<const cudaGraphNode_t*>(stream->capture_tail.data());
    }
    if (edges != nullptr) {
      stream->capture_edges.assign(stream->capture_tail.size(), cudaGraphEdgeData{});
      *edges = stream->capture_edges.data();
    }
    if (count != nullptr) *count = stream->capture_tail.size();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t handle, cudaGraphNode_t* nodes,
                                                const cudaGraphEdgeData* edges, std::size_t count,
                                                unsigned flags) {
  return locked_call(CallId::cudaStreamUpdateCaptureDependencies,
                     [&](Call& call, Machine& machine, Lock&) {
                       call.note(handle);
                       Stream* const stream = machine.resolve(handle);
                       if (stream == nullptr) return cudaErrorInvalidResourceHandle;
                       if (stream->capture == nullptr) return cudaErrorIllegalState;
                       std::vector<Node*> after;
                       if (!nodes_of(nodes, edges, count, &after)) return cudaErrorInvalidValue;
                       if (flags == cudaStreamSetCaptureDependencies) {
                         stream->capture_tail.clear();
                       } else if (flags != cudaStreamAddCaptureDependencies) {
                         return cudaErrorInvalidValue;
                       }
                       auto& tail = stream->capture_tail;
                       for (Node* node : after) {
                         if (std::find(tail.begin(), tail.end(), node) == tail.end()) {
                           tail.push_back(node);
                         }
                       }
                       return cudaSuccess;
                     });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return runtime_call(CallId::cudaThreadExchangeStreamCaptureMode, [&](Call&) {
    if (mode == nullptr || *mode < cudaStreamCaptureModeGlobal ||
        *mode > cudaStreamCaptureModeRelaxed) {
      return cudaErrorInvalidValue;
    }
    std::swap(*mode, thread_state.capture_mode);
    return cudaSuccess;
  });
}

// -- graphs --------------------------------------------------------------------------------

cudaError_t cudaGraphCreate(cudaGraph_t* out, unsigned flags) {
  return locked_call(CallId::cudaGraphCreate, [&](Call&, Machine& machine, Lock&) {
    if (out == nullptr || flags != 0) return cudaErrorInvalidValue;
    *out = handle_of(machine.graphs.graphs.create());
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t handle) {
  return locked_call(CallId::cudaGraphDestroy, [&](Call&, Machine& machine, Lock&) {
    Graph* const graph = graph_of(handle);
    if (graph == nullptr) return cudaErrorInvalidValue;
    machine.graphs.graphs.release(graph);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t* nodes, std::size_t* count) {
  return locked_call(CallId::cudaGraphGetNodes, [&](Call&, Machine&, Lock&) {
    const Graph* const graph = graph_of(handle);
    if (graph == nullptr || count == nullptr) return cudaErrorInvalidValue;
    list(graph->nodes, nodes, count);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphGetRootNodes(cudaGraph_t handle, cudaGraphNode_t* nodes, std::size_t* count) {
  return locked_call(CallId::cudaGraphGetRootNodes, [&](Call&, Machine&, Lock&) {
    const Graph* const graph = graph_of(handle);
    if (graph == nullptr || count == nullptr) return cudaErrorInvalidValue;
    std::vector<Node*> roots;
    for (Node* node : graph->nodes) {
      if (node->after.empty()) roots.push_back(node);
    }
    list(roots, nodes, count);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphGetEdges(cudaGraph_t handle, cudaGraphNode_t* from, cudaGraphNode_t* to,
                              cudaGraphEdgeData* edges, std::size_t* count) {
  return locked_call(CallId::cudaGraphGetEdges, [&](Call&, Machine&, Lock&) {
    const Graph* const graph = graph_of(handle);
    if (graph == nullptr || count == nullptr || (from == nullptr) != (to == nullptr)) {
      return cudaErrorInvalidValue;
    }
    std::vector<Node*> starts, ends;
    for (Node* node : graph->nodes) {
      for (Node* before : node->after) {
        starts.push_back(before);
        ends.push_back(node);
      }
    }
    std::size_t n = *count;
    list(starts, from, &n);
    list(ends, to, count);
    if (edges != nullptr) std::fill_n(edges, n, cudaGraphEdgeData{});
    return cudaSuccess;
  });
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t handle, cudaGraphNodeType* type) {
  return locked_call(CallId::cudaGraphNodeGetType, [&](Call&, Machine&, Lock&) {
    const Node* const node = node_of(handle);
    if (node == nullptr || type == nullptr) return cudaErrorInvalidValue;
    *type = node->type;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t handle, cudaGraphNode_t* nodes,
                                         cudaGraphEdgeData* edges, std::size_t* count) {
  return locked_call(CallId::cudaGraphNodeGetDependencies, [&](Call&, Machine&, Lock&) {
    const Node* const node = node_of(handle);
    if (node == nullptr || count == nullptr) return cudaErrorInvalidValue;
    list(node->after, nodes, count);
    if (edges != nullptr) std::fill_n(edges, *count, cudaGraphEdgeData{});
    return cudaSuccess;
  });
}

cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* out, cudaGraph_t handle,
                                  const cudaGraphNode_t* dependencies, std::size_t count) {
  return locked_call(CallId::cudaGraphAddEmptyNode, [&](Call&, Machine&, Lock&) {
    Graph* const graph = graph_of(handle);
    std::vector<Node*> after;
    if (out == nullptr || graph == nullptr || !nodes_of(dependencies, nullptr, count, &after)) {
      return cudaErrorInvalidValue;
    }
    *out = handle_of(&graph->add(cudaGraphNodeTypeEmpty, nullptr, std::move(after)));
    return cudaSuccess;
  });
}

cudaError_t cudaGraphAddDependencies(cudaGraph_t handle, const cudaGraphNode_t* from,
                                     const cudaGraphNode_t* to, const cudaGraphEdgeData* edges,
                                     std::size_t count) {
  return locked_call(CallId::cudaGraphAddDependencies, [&](Call&, Machine&, Lock&) {
    std::vector<Node*> starts, ends;
    if (graph_of(handle) == nullptr || !nodes_of(from, edges, count, &starts) ||
        !nodes_of(to, nullptr, count, &ends)) {
      return cudaErrorInvalidValue;
    }
    for (std::size_t i = 0; i < count; ++i) ends[i]->after.push_back(starts[i]);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags) {
  return instantiate(CallId::cudaGraphInstantiate, exec, graph, flags);
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph,
                                          unsigned long long flags) {
  return instantiate(CallId::cudaGraphInstantiateWithFlags, exec, graph, flags);
}

// Launches in flight go on.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle) {
  return locked_call(CallId::cudaGraphExecDestroy, [&](Call&, Machine& machine, Lock&) {
    GraphExec* const exec = executable_of(handle);
    if (exec == nullptr) return cudaErrorInvalidValue;
    exec->destroyed = true;
    --machine.graphs.executable_handles;
    if (--exec->references == 0) GraphExec::unreferenced(exec);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec_handle, cudaGraph_t handle,
                                cudaGraphExecUpdateResultInfo* result) {
  return locked_call(CallId::cudaGraphExecUpdate, [&](Call&, Machine&, Lock&) {
    GraphExec* const exec = executable_of(exec_handle);
    const Graph* const graph = graph_of(handle);
    if (exec == nullptr || graph == nullptr) return cudaErrorInvalidValue;
    const bool updated = exec->update(*graph);
    if (result != nullptr) {
      *result = {};
      result->result =
          updated ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateErrorTopologyChanged;
    }
    return updated ? cudaSuccess : cudaErrorGraphExecUpdateFailure;
  });
}

cudaError_t cudaGraphUpload(cudaGraphExec_t handle, cudaStream_t stream) {
  return locked_call(CallId::cudaGraphUpload, [&](Call& call, Machine&, Lock&) {
    call.note(stream);
    return executable_of(handle) == nullptr ? cudaErrorInvalidValue : cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec_handle, cudaStream_t handle) {
  return locked_call(CallId::cudaGraphLaunch, [&](Call& call, Machine& machine, Lock& lock) {
    call.note(handle);
    const Ref<GraphExec> exec(executable_of(exec_handle));
    if (!exec) return cudaErrorInvalidValue;
    Stream* const stream = machine.resolve(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t error = machine.check_enqueue(*stream); error != cudaSuccess) {
      return error;
    }
    if (stream->capture != nullptr) {
      // It would become a child graph.
      machine.captures.invalidate(*stream->capture);
      return unmodelled("unmodelled-call", "cudaGraphLaunch under capture");
    }
    return exec->launch(lock, machine.engine, machine.memory, *stream, call.deferred());
  });
}

// -- user objects --------------------------------------------------------------------------

cudaError_t cudaUserObjectCreate(cudaUserObject_t* out, void* pointer, cudaHostFn_t destroy,
                                 unsigned count, unsigned flags) {
  return locked_call(CallId::cudaUserObjectCreate, [&](Call&, Machine& machine, Lock&) {
    if (out == nullptr || destroy == nullptr || count == 0 || count > INT32_MAX ||
        flags != cudaUserObjectNoDestructorSync) {
      return cudaErrorInvalidValue;
    }
    *out = reinterpret_cast<cudaUserObject_t>(
        machine.graphs.objects.create(UserObject{pointer, destroy, count}));
    return cudaSuccess;
  });
}

cudaError_t cudaUserObjectRetain(cudaUserObject_t handle, unsigned count) {
  return locked_call(CallId::cudaUserObjectRetain, [&](Call&, Machine&, Lock&) {
    UserObject* const object = object_of(handle);
    if (object == nullptr || count == 0 || count > INT32_MAX) return cudaErrorInvalidValue;
    object->count += count;
    return cudaSuccess;
  });
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t handle, unsigned count) {
  return locked_call(CallId::cudaUserObjectRelease, [&](Call&, Machine&, Lock&) {
    UserObject* const object = object_of(handle);
    if (object == nullptr || count == 0 || count > object->count) return cudaErrorInvalidValue;
    release_user_object(object, count);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t handle, cudaUserObject_t object_handle,
                                      unsigned count, unsigned flags) {
  return locked_call(CallId::cudaGraphRetainUserObject, [&](Call&, Machine&, Lock&) {
    Graph* const graph = graph_of(handle);
    UserObject* const object = object_of(object_handle);
    const bool move = flags == cudaGraphUserObjectMove;
    if (graph == nullptr || object == nullptr || count == 0 || count > INT32_MAX ||
        (flags != 0 && !move) || (move && count > object->count)) {
      return cudaErrorInvalidValue;
    }
    if (!move) object->count += count;
    graph->objects.retain(object, count);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphReleaseUserObject(cudaGraph_t handle, cudaUserObject_t object_handle,
                                       unsigned count) {
  return locked_call(CallId::cudaGraphReleaseUserObject, [&](Call&, Machine&, Lock&) {
    Graph* const graph = graph_of(handle);
    UserObject* const object = object_of(object_handle);
    if (graph == nullptr || object == nullptr || count == 0) return cudaErrorInvalidValue;
    if (!graph->objects.release(object, count)) return cudaErrorInvalidValue;
    release_user_object(object, count);
    return cudaSuccess;
  });
}

}  // extern "C"
