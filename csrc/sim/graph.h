// CUDA graphs: what was captured or built, and executables made from it.
//
// Purpose: a node is a piece of work and what it depends on; an executable is a copy of the
//   nodes that later changes of the graph do not reach. Each launch spreads the nodes over
//   lanes (streams of the stand-in), so that a schedule may interleave them with everything
//   else as the programming model permits.
// Owner: the machine's pools; an executable that is destroyed in flight lives on until its
//   launches are done. Thread-safety: the machine's lock.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "sim/event.h"
#include "sim/handle_pool.h"
#include "sim/schedule.h"
#include "sim/stream.h"
#include "sim/work.h"

namespace staging::sim {

class Engine;
class Memory;

// A reference-counted object of the program, destroyed on the callback thread.
struct UserObject {
  void* pointer;
  cudaHostFn_t destroy;
  unsigned count;
};

// Gives references back; the last one has the object destroyed on the callback thread.
void release_user_object(UserObject* object, unsigned count);

// References to user objects, given back when the holder goes.
class UserObjects {
 public:
  void retain(UserObject* object, unsigned count);
  // False where there are fewer.
  bool release(UserObject* object, unsigned count);
  UserObjects() = default;
  UserObjects(const UserObjects& other);
  UserObjects& operator=(const UserObjects&) = delete;  // not needed
  ~UserObjects();
  void swap(UserObjects& other) noexcept { counts_.swap(other.counts_); }

 private:
  std::map<UserObject*, unsigned> counts_;
};

struct Node {
  Node(cudaGraphNodeType type, std::shared_ptr<const Work> work, std::vector<Node*> after)
      : type(type), work(std::move(work)), after(std::move(after)) {}

  cudaGraphNodeType type;
  std::shared_ptr<const Work> work;  // null: empty, or an event node
  std::vector<Node*> after;
  Ref<Event> event;  // of an external record or wait
};

class Graph {
 public:
  ~Graph();

  Node& add(cudaGraphNodeType type, std::shared_ptr<const Work> work, std::vector<Node*> after);

  std::vector<Node*> nodes;  // each after what it depends on, unless edges were added by hand
  UserObjects objects;
};

class GraphExec {
 public:
  explicit GraphExec(const Graph& graph);

  // False where the edges form a cycle.
  bool valid() const noexcept { return valid_; }
  // Takes the other graph's work, if it has the same shape.
  bool update(const Graph& graph);

  // Enqueues one launch after what `stream` has; waits for nothing. Fails where memory that
  // a node uses was freed.
  cudaError_t launch(Lock& lock, Engine& engine, Memory& memory, Stream& stream, cudaError_t fault);

  bool destroyed = false;  // the handle is gone
  unsigned references = 0;
  static void unreferenced(GraphExec* exec);

 private:
  struct Step {
    cudaGraphNodeType type;
    std::shared_ptr<const Work> work;
    Ref<Event> event;
    std::vector<std::size_t> after;  // indices of earlier steps
  };

  bool assign(const Graph& graph);

  std::vector<Step> steps_;
  UserObjects objects_;
  Mark last_launch_;  // launches of one executable do not overlap
  bool valid_ = false;
};

struct Graphs {
  HandlePool<Graph> graphs;
  HandlePool<GraphExec> executables;
  HandlePool<Node> nodes;
  HandlePool<UserObject> objects;
  std::uint64_t executable_handles = 0;
};

}  // namespace staging::sim
