#include "sim/graph.h"

#include <algorithm>
#include <cstdio>
#include <unordered_map>

#include "sim/engine.h"
#include "sim/machine.h"
#include "sim/reports.h"

namespace staging::sim {

namespace {

class LaunchEndWork final : public Work {
 public:
  explicit LaunchEndWork(Ref<GraphExec> exec)
      : Work(Kind::kMark, /*brief=*/true), exec_(std::move(exec)) {}

  cudaError_t run() const override { return cudaSuccess; }
  std::string describe() const override { return "the end of a graph launch"; }

 private:
  Ref<GraphExec> exec_;
};

}  // namespace

void UserObjects::retain(UserObject* object, unsigned count) {
  counts_[object] += count;
}

bool UserObjects::release(UserObject* object, unsigned count) {
  const auto it = counts_.find(object);
  if (it == counts_.end() || it->second < count) return false;
  it->second -= count;
  if (it->second == 0) counts_.erase(it);
  return true;
}

UserObjects::UserObjects(const UserObjects& other) {
  // An executable needs each object once, however often the graph holds it.
  for (const auto& [object, count] : other.counts_) {
    counts_[object] = 1;
    ++object->count;
  }
}

UserObjects::~UserObjects() {
  for (const auto& [object, count] : counts_) release_user_object(object, count);
}

void release_user_object(UserObject* object, unsigned count) {
  object->count -= count;
  if (object->count > 0) return;
  Machine& machine = Machine::get();
  machine.engine.callbacks().post([destroy = object->destroy, pointer = object->pointer] {
    thread_state.in_callback = true;
    destroy(pointer);
    thread_state.in_callback = false;
  });
  machine.graphs.objects.release(object);
}

Node& Graph::add(cudaGraphNodeType type, std::shared_ptr<const Work> work,
                 std::vector<Node*> after) {
  nodes.push_back(Machine::get().graphs.nodes.create(type, std::move(work), std::move(after)));
  return *nodes.back();
}

Graph::~Graph() {
  for (Node* node : nodes) Machine::get().graphs.nodes.release(node);
}

GraphExec::GraphExec(const Graph& graph) : objects_(graph.objects) {
  valid_ = assign(graph);
}

void GraphExec::unreferenced(GraphExec* exec) {
  Machine::get().graphs.executables.release(exec);
}

bool GraphExec::assign(const Graph& graph) {
  // Kahn's order; the graph's own order where it is one already.
  std::unordered_map<const Node*, std::size_t> index;
  std::vector<Step> steps;
  steps.reserve(graph.nodes.size());
  std::vector<Node*> left = graph.nodes;
  while (!left.empty()) {
    std::vector<Node*> blocked;
    for (Node* node : left) {
      Step step{node->type, node->work, node->event, {}};
      bool ready = true;
      for (const Node* before : node->after) {
        const auto it = index.find(before);
        ready &= it != index.end();
        if (ready) step.after.push_back(it->second);
      }
      if (!ready) {
        blocked.push_back(node);
        continue;
      }
      index[node] = steps.size();
      steps.push_back(std::move(step));
    }
    if (blocked.size() == left.size()) return false;
    left = std::move(blocked);
  }
  steps_ = std::move(steps);
  return true;
}

bool GraphExec::update(const Graph& graph) {
  GraphExec other(graph);
  if (!other.valid_ || other.steps_.size() != steps_.size()) return false;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    if (steps_[i].type != other.steps_[i].type || steps_[i].after != other.steps_[i].after) {
      return false;
    }
  }
  steps_ = std::move(other.steps_);
  objects_.swap(other.objects_);
  return true;
}

cudaError_t GraphExec::launch(Lock& lock, Engine& engine, Memory& memory, Stream& stream,
                              cudaError_t fault) {
  for (const Step& step : steps_) {
    if (step.work == nullptr) continue;
    bool there = true;
    step.work->visit_ranges([&](const Range& range) { there &= memory.still_there(range); });
    if (!there) {
      Reports::get().add("use-after-free", "a graph is launched and " + step.work->describe() +
                                               " was captured "
                                               "with memory that is freed by now");
      engine.lose(cudaErrorIllegalAddress);
      return cudaErrorIllegalAddress;
    }
  }

  Machine& machine = Machine::get();
  std::vector<Mark> begin{stream.tail()};
  if (last_launch_.stream) begin.push_back(last_launch_);
  if (stream.blocking()) {
    // Lanes do not take part in the legacy stream's rules: the launch does, as a whole.
    engine.enqueue(lock, stream, {nullptr, {}, cudaSuccess});
    begin.front() = stream.tail();
  }
  std::vector<Mark> done(steps_.size());
  std::vector<Ref<Stream>> lanes;
  std::vector<std::size_t> lane_ends;  // index of the last step on each lane
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    // On the lane of the step before it, where that is still the last one there.
    std::size_t lane = lanes.size();
    for (std::size_t candidate = 0; candidate < lanes.size(); ++candidate) {
      if (std::find(step.after.begin(), step.after.end(), lane_ends[candidate]) !=
          step.after.end()) {
        lane = candidate;
        break;
      }
    }
    if (lane == lanes.size()) {
      Stream* const fresh =
          machine.create_stream(Stream::Role::kLane, stream.device, cudaStreamNonBlocking, 0);
      lanes.emplace_back(fresh);
      --fresh->references;  // the lane's own, now in `lanes`
      lane_ends.push_back(i);
    }
    lane_ends[lane] = i;
    Op op{step.work, {}, cudaSuccess};
    if (step.after.empty()) {
      op.after = begin;
    } else {
      for (const std::size_t before : step.after) op.after.push_back(done[before]);
    }
    if (step.type == cudaGraphNodeTypeEventRecord) {
      step.event->recorded = true;
      step.event->capture_id = 0;
      op.work = std::make_shared<const RecordWork>(step.event, ++step.event->record);
    } else if (step.type == cudaGraphNodeTypeWaitEvent) {
      op.after.push_back(step.event->mark);
    }
    const Mark mark{lanes[lane], lanes[lane]->enqueued + 1};
    engine.enqueue(lock, *lanes[lane], std::move(op));
    if (step.type == cudaGraphNodeTypeEventRecord) step.event->mark = mark;
    done[i] = mark;
  }
  // Keeps the executable, and with it its user objects, until the launch is done.
  Op end{std::make_shared<const LaunchEndWork>(Ref<GraphExec>(this)), std::move(done), fault};
  if (steps_.empty()) end.after = begin;
  engine.enqueue(lock, stream, std::move(end));
  last_launch_ = stream.idle() ? Mark{} : stream.tail();
  return engine.lost();
}

}  // namespace staging::sim
