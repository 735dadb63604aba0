#include "support/scripted_runtime.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "support/error.h"

namespace staging::testing {

namespace {

constexpr std::size_t kPageNbytes = 4096;

const std::byte* address(const void* pointer) {
  return static_cast<const std::byte*>(pointer);
}

const char* name_of(int code) {
  switch (code) {
    case kErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case kErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case kErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case kErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case kErrorHostMemoryAlreadyRegistered:
      return "cudaErrorHostMemoryAlreadyRegistered";
    case kErrorNotSupported:
      return "cudaErrorNotSupported";
    case kErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case kErrorCapturedEvent:
      return "cudaErrorCapturedEvent";
    default:
      return "cudaErrorUnknown";
  }
}

[[noreturn]] void raise(const std::string& method, int code, bool sticky = false) {
  if (code == kErrorMemoryAllocation) {
    throw OutOfMemory(method, code, name_of(code), "scripted", sticky);
  }
  throw DeviceError(method, code, name_of(code), "scripted", sticky);
}

}  // namespace

ScriptedRuntime::ScriptedRuntime(int device_count) : device_count_(device_count) {
  for (int device = 0; device < device_count; ++device) streams_[{device, nullptr}];
}

ScriptedRuntime::~ScriptedRuntime() {
  for (const auto& [pointer, pinned] : pinned_) {
    if (pinned.allocated) std::free(const_cast<std::byte*>(pointer));
  }
  for (const auto& [pointer, size] : device_memory_) std::free(const_cast<std::byte*>(pointer));
}

// -- what the test says --------------------------------------------------------------------

void ScriptedRuntime::set_eager(bool eager) {
  const std::lock_guard<std::mutex> lock(mutex_);
  eager_ = eager;
  if (eager) drain_all();
}

bool ScriptedRuntime::step(int device, StreamHandle stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return step_locked(stream_of("step", device, stream));
}

void ScriptedRuntime::run(int device, StreamHandle stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  drain(stream_of("run", device, stream));
}

void ScriptedRuntime::run_all() {
  const std::lock_guard<std::mutex> lock(mutex_);
  drain_all();
}

std::size_t ScriptedRuntime::pending(int device, StreamHandle stream) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = streams_.find({device, stream});
  return found == streams_.end() ? 0 : found->second.queue.size();
}

std::size_t ScriptedRuntime::pending() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::size_t count = 0;
  for (const auto& [key, stream] : streams_) count += stream.queue.size();
  return count;
}

void ScriptedRuntime::set_waits_block(bool block) {
  const std::lock_guard<std::mutex> lock(mutex_);
  waits_block_ = block;
}

void ScriptedRuntime::progress_after_queries(std::size_t n) {
  const std::lock_guard<std::mutex> lock(mutex_);
  progress_after_ = n;
}

void ScriptedRuntime::fail(const std::string& method, int code, std::size_t nth, std::size_t count,
                           bool sticky) {
  const std::lock_guard<std::mutex> lock(mutex_);
  failures_[method].push_back({nth - 1, count, code, sticky});
}

void ScriptedRuntime::clear_failures() {
  const std::lock_guard<std::mutex> lock(mutex_);
  failures_.clear();
}

void ScriptedRuntime::set_numa_node(int device, int node) {
  const std::lock_guard<std::mutex> lock(mutex_);
  numa_node_[device] = node;
}

void* ScriptedRuntime::allocate_device(int device, std::size_t nbytes) {
  const std::size_t rounded = (std::max<std::size_t>(nbytes, 1) + 255) / 256 * 256;
  void* pointer = std::aligned_alloc(256, rounded);
  const std::lock_guard<std::mutex> lock(mutex_);
  device_memory_[address(pointer)] = {rounded, device};
  return pointer;
}

void ScriptedRuntime::begin_capture(int device, StreamHandle stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::uint64_t graph = next_graph_++;
  graphs_[graph];
  stream_of("begin_capture", device, stream).capture = graph;
}

std::uint64_t ScriptedRuntime::end_capture(int device, StreamHandle stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(stream_of("end_capture", device, stream).capture, 0);
}

void ScriptedRuntime::launch_graph(std::uint64_t graph, int device, StreamHandle stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Stream& target = stream_of("launch_graph", device, stream);
  for (Operation operation : graphs_.at(graph).operations) {
    if (operation.external_event != nullptr) {
      operation.records = std::make_shared<Recording>(Recording{device, stream});
      operation.external_event->latest = operation.records;
    }
    enqueue(target, std::move(operation));
  }
}

void ScriptedRuntime::destroy_graph(std::uint64_t graph) {
  std::vector<std::pair<void (*)(void*), void*>> retained;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    retained = std::move(graphs_.at(graph).retained);
    graphs_.erase(graph);
  }
  for (const auto& [destroy, argument] : retained) destroy(argument);
}

// -- what the test sees --------------------------------------------------------------------

std::size_t ScriptedRuntime::calls(const std::string& method) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = calls_.find(method);
  return found == calls_.end() ? 0 : found->second;
}

std::size_t ScriptedRuntime::calls() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::size_t sum = 0;
  for (const auto& [method, count] : calls_) sum += count;
  return sum;
}

void ScriptedRuntime::reset_calls() {
  const std::lock_guard<std::mutex> lock(mutex_);
  calls_.clear();
}

std::size_t ScriptedRuntime::live_events() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return events_.size();
}

std::size_t ScriptedRuntime::live_streams() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return streams_.size() - static_cast<std::size_t>(device_count_);
}

std::size_t ScriptedRuntime::pinned_nbytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::size_t sum = 0;
  for (const auto& [pointer, pinned] : pinned_) sum += pinned.nbytes;
  return sum;
}

std::size_t ScriptedRuntime::pinned_regions() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return pinned_.size();
}

std::vector<std::string> ScriptedRuntime::violations() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return violations_;
}

// -- inside, under mutex_ ------------------------------------------------------------------

void ScriptedRuntime::enter(const char* method) {
  ++calls_[method];
  auto& failures = failures_[method];
  for (auto it = failures.begin(); it != failures.end(); ++it) {
    if (it->after > 0) {
      --it->after;
      continue;
    }
    const Failure failure = *it;
    if (--it->count == 0) failures.erase(it);
    if (failure.sticky) {
      lose_context(DeviceError(method, failure.code, name_of(failure.code), "scripted", true));
    }
    raise(method, failure.code, failure.sticky);
  }
  if (context_lost()) raise(method, kErrorIllegalAddress, /*sticky=*/true);
}

void ScriptedRuntime::expect_current(const char* method, int device) {
  const auto found = current_device_.find(std::this_thread::get_id());
  const int current = found == current_device_.end() ? 0 : found->second;
  if (current != device) {
    violations_.push_back(std::string(method) + " for device " + std::to_string(device) +
                          " while device " + std::to_string(current) + " is current");
  }
}

ScriptedRuntime::Stream& ScriptedRuntime::stream_of(const char* method, int device,
                                                    StreamHandle handle) {
  const auto found = streams_.find({device, handle});
  if (found == streams_.end()) raise(method, kErrorInvalidResourceHandle);
  return found->second;
}

ScriptedRuntime::EventPointer ScriptedRuntime::event_of(const char* method,
                                                        EventHandle handle) const {
  const auto found = events_.find(handle);
  if (found == events_.end()) raise(method, kErrorInvalidResourceHandle);
  return found->second;
}

void ScriptedRuntime::enqueue(Stream& stream, Operation operation) {
  if (stream.capture != 0) {
    graphs_.at(stream.capture).operations.push_back(std::move(operation));
    return;
  }
  stream.queue.push_back(std::move(operation));
  if (eager_) drain(stream);
}

bool ScriptedRuntime::step_locked(Stream& stream) {
  if (stream.queue.empty()) return false;
  Operation& head = stream.queue.front();
  if (!complete(head.waits_for)) return false;
  const Operation operation = std::move(head);
  stream.queue.pop_front();
  // After an error that destroyed the context nothing runs; events do not complete.
  if (!context_lost()) {
    if (operation.run) operation.run();
    if (operation.records != nullptr) operation.records->complete = true;
  }
  progressed_.notify_all();
  return true;
}

// True once the stream is empty. A stream that waits for an event runs the one that records it.
bool ScriptedRuntime::drain(Stream& stream) {
  while (!stream.queue.empty()) {
    if (step_locked(stream)) continue;
    // A copy: the other stream may wait for this one in turn, and run its head.
    const RecordingPointer blocker = stream.queue.front().waits_for;
    const auto source = streams_.find({blocker->device, blocker->stream});
    if (source == streams_.end() || &source->second == &stream) return false;
    drain(source->second);
    if (!complete(blocker)) return false;
  }
  return true;
}

void ScriptedRuntime::drain_all() {
  for (auto& [key, stream] : streams_) drain(stream);
}

void ScriptedRuntime::make_progress(const RecordingPointer& recording) {
  const auto source = streams_.find({recording->device, recording->stream});
  if (source == streams_.end()) return;
  Stream& stream = source->second;
  while (!complete(recording) && !stream.queue.empty()) {
    if (step_locked(stream)) continue;
    const RecordingPointer blocker = stream.queue.front().waits_for;
    if (blocker->stream == recording->stream && blocker->device == recording->device) return;
    make_progress(blocker);
    if (!complete(blocker)) return;
  }
}

void ScriptedRuntime::check_host_range(const char* call, const void* pointer,
                                       std::size_t nbytes) const {
  const std::byte* begin = address(pointer);
  auto it = pinned_.upper_bound(begin);
  if (it == pinned_.begin()) return;
  --it;
  const std::byte* end = it->first + it->second.nbytes;
  if (begin < end && begin + nbytes > end) raise(call, kErrorInvalidValue);
}

void ScriptedRuntime::note_if_in_use(const char* method, const void* pointer, std::size_t nbytes) {
  const std::byte* begin = address(pointer);
  for (const auto& [key, stream] : streams_) {
    for (const Operation& operation : stream.queue) {
      for (const Range& range : operation.host) {
        if (range.begin < begin + nbytes && begin < range.begin + range.nbytes) {
          violations_.push_back(std::string(method) + " of memory that queued work uses");
          return;
        }
      }
    }
  }
}

ScriptedRuntime::Operation ScriptedRuntime::copy_operation(void* dst, const void* src,
                                                           std::size_t nbytes,
                                                           CopyKind kind) const {
  Operation operation;
  operation.run = [dst, src, nbytes] { std::memmove(dst, src, nbytes); };
  if (kind == CopyKind::kHostToDevice || kind == CopyKind::kHostToHost) {
    check_host_range("copy_async", src, nbytes);
    operation.host.push_back({address(src), nbytes});
  }
  if (kind == CopyKind::kDeviceToHost || kind == CopyKind::kHostToHost) {
    check_host_range("copy_async", dst, nbytes);
    operation.host.push_back({address(dst), nbytes});
  }
  return operation;
}

// -- the seam ------------------------------------------------------------------------------

int ScriptedRuntime::device_count() {
  const std::lock_guard<std::mutex> lock(mutex_);
  enter("device_count");
  return device_count_;
}

int ScriptedRuntime::current_device() {
  const std::lock_guard<std::mutex> lock(mutex_);
  enter("current_device");
  return current_device_[std::this_thread::get_id()];
}

void ScriptedRuntime::set_device(int device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  enter("set_device");
  if (device < 0 || device >= device_count_) raise("set_device", kErrorInvalidValue);
  current_device_[std::this_thread::get_id()] = device;
}

int ScriptedRuntime::numa_node(int device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  enter("numa_node");
  const auto found = numa_node_.find(device);
  return found == numa_node_.end() ? -1 : found->second;
}

StreamHandle ScriptedRuntime::create_stream(int device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  enter("create_stream");
  const auto handle = reinterpret_cast<StreamHandle>(next_handle_);
  next_handle_ += 0x10;
  streams_[{device, handle}];
  return handle;
}

void ScriptedRuntime::destroy_stream(int device, StreamHandle stream) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++calls_["destroy_stream"];
  const auto found = streams_.find({device, stream});
  if (found == streams_.end() || stream == nullptr) {
    violations_.push_back("destroy_stream of an unknown stream");
    return;
  }
  drain(found->second);  // CUDA lets its work finish
  streams_.erase(found);
}

void ScriptedRuntime::synchronize_stream(int device, StreamHandle stream) {
  std::unique_lock<std::mutex> lock(mutex_);
  enter("synchronize_stream");
  Stream& target = stream_of("synchronize_stream", device, stream);
  if (target.capture != 0) raise("synchronize_stream", kErrorStreamCaptureUnsupported);
  if (waits_block_) {
    progressed_.wait(lock, [&] { return target.queue.empty(); });
  } else {
    drain(target);
  }
}

void ScriptedRuntime::stream_wait_event(int device, StreamHandle stream, EventHandle event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  enter("stream_wait_event");
  expect_current("stream_wait_event", device);
  Operation operation;
  operation.waits_for = event_of("stream_wait_event", event)->latest;
  enqueue(stream_of("stream_wait_event", device, stream), std::move(operation));
}

CaptureStatus ScriptedRuntime::capture_status(int device, StreamHandle stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  enter("capture_status");
  return stream_of("capture_status", device, stream).capture != 0 ? CaptureStatus::kActive
                                                                  : CaptureStatus::kNone;
}

CaptureInfo ScriptedRuntime::capture_info(int device, StreamHandle stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  enter("capture_info");
  const std::uint64_t graph = stream_of("capture_info", device, stream).capture;
  CaptureInfo info;
  if (graph != 0) {
    info.status = CaptureStatus::kActive;
    info.id = graph;
    info.graph = reinterpret_cast<void*>(graph);
  }
  return info;
}

EventHandle ScriptedRuntime::create_event(int device, bool) {
  const std::lock_guard<std::mutex> lock(mutex_);
  enter("create_event");
  const auto handle = reinterpret_cast<EventHandle>(next_handle_);
  next_handle_ += 0x10;
  events_[handle] = std::make_shared<EventState>();
  events_[handle]->device = device;
  return handle;
}

void ScriptedRuntime::destroy_event(int, EventHandle event) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++calls_["destroy_event"];
  if (events_.erase(event) == 0) violations_.push_back("destroy_event of an unknown event");
}

void ScriptedRuntime::record_event(int device, EventHandle event, StreamHandle stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  enter("record_event");
  expect_current("record_event", device);
  Stream& target = stream_of("record_event", device, stream);
  const EventPointer state = event_of("record_event", event);
  if (state->device != device) raise("record_event", kErrorInvalidResourceHandle);
  if (target.capture != 0) {
    violations_.push_back("record_event under capture");
    state->captured = true;
    return;
  }
  state->captured = false;
  Operation operation;
  operation.records = std::make_shared<Recording>(Recording{device, stream});
  state->latest = operation.records;
  enqueue(target, std::move(operation));
}

void ScriptedRuntime::record_external_event(int device, EventHandle event, StreamHandle stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  enter("record_external_event");
  expect_current("record_external_event", device);
  Stream& target = stream_of("record_external_event", device, stream);
  const EventPointer state = event_of("record_external_event", event);
  Operation operation;
  if (target.capture != 0) {
    operation.external_event = state;
  } else {
    operation.records = std::make_shared<Recording>(Recording{device, stream});
    state->latest = operation.records;
  }
  enqueue(target, std::move(operation));
}

bool ScriptedRuntime::query_event(int, EventHandle event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  enter("query_event");
  const EventPointer state = event_of("query_event", event);
  if (state->captured) raise("query_event", kErrorCapturedEvent);
  if (!complete(state->latest) && progress_after_ > 0 &&
      ++state->incomplete_queries % progress_after_ == 0) {
    make_progress(state->latest);
  }
  return complete(state->latest);
}

void ScriptedRuntime::synchronize_event(int, EventHandle event) {
  std::unique_lock<std::mutex> lock(mutex_);
  enter("synchronize_event");
  const EventPointer state = event_of("synchronize_event", event);
  if (state->captured) raise("synchronize_event", kErrorCapturedEvent);
  const RecordingPointer recording = state->latest;
  if (waits_block_) {
    progressed_.wait(lock, [&] { return complete(recording); });
  } else if (recording != nullptr) {
    make_progress(recording);
  }
}

float ScriptedRuntime::elapsed_ms(EventHandle, EventHandle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  enter("elapsed_ms");
  return 0;
}

void* ScriptedRuntime::allocate_pinned(int, std::size_t nbytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  enter("allocate_pinned");
  if (nbytes == 0) raise("allocate_pinned", kErrorInvalidValue);
  const std::size_t rounded = (nbytes + kPageNbytes - 1) / kPageNbytes * kPageNbytes;
  void* pointer = std::aligned_alloc(kPageNbytes, rounded);
  pinned_[address(pointer)] = {rounded, true};
  return pointer;
}

void ScriptedRuntime::free_pinned(void* pointer) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++calls_["free_pinned"];
  const auto found = pinned_.find(address(pointer));
  if (found == pinned_.end() || !found->second.allocated) {
    violations_.push_back("free_pinned of memory that was not allocated");
    return;
  }
  note_if_in_use("free_pinned", pointer, found->second.nbytes);
  pinned_.erase(found);
  std::free(pointer);
}

void ScriptedRuntime::register_pinned(int, void* pointer, std::size_t nbytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  enter("register_pinned");
  if (nbytes == 0) raise("register_pinned", kErrorInvalidValue);
  const std::byte* begin = address(pointer);
  for (const auto& [other, pinned] : pinned_) {
    if (other < begin + nbytes && begin < other + pinned.nbytes) {
      raise("register_pinned", kErrorHostMemoryAlreadyRegistered);
    }
  }
  pinned_[begin] = {nbytes, false};
}

void ScriptedRuntime::unregister_pinned(void* pointer) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++calls_["unregister_pinned"];
  const auto found = pinned_.find(address(pointer));
  if (found == pinned_.end() || found->second.allocated) {
    violations_.push_back("unregister_pinned of memory that was not registered");
    return;
  }
  note_if_in_use("unregister_pinned", pointer, found->second.nbytes);
  pinned_.erase(found);
}

PointerInfo ScriptedRuntime::pointer_info(const void* pointer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  enter("pointer_info");
  const std::byte* at = address(pointer);
  PointerInfo info;
  if (auto it = pinned_.upper_bound(at); it != pinned_.begin()) {
    --it;
    if (at < it->first + it->second.nbytes) {
      info.kind = MemoryKind::kPinned;
      info.device_pointer = const_cast<void*>(pointer);
    }
  }
  if (auto it = device_memory_.upper_bound(at); it != device_memory_.begin()) {
    --it;
    if (at < it->first + it->second.first) {
      info.kind = MemoryKind::kDevice;
      info.device = it->second.second;
      info.device_pointer = const_cast<void*>(pointer);
    }
  }
  return info;
}

void ScriptedRuntime::copy_async(int device, void* dst, const void* src, std::size_t nbytes,
                                 CopyKind kind, StreamHandle stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  enter("copy_async");
  expect_current("copy_async", device);
  Stream& target = stream_of("copy_async", device, stream);
  enqueue(target, copy_operation(dst, src, nbytes, kind));
}

void ScriptedRuntime::copy_2d_async(int device, void* dst, std::size_t dst_pitch, const void* src,
                                    std::size_t src_pitch, std::size_t width_nbytes,
                                    std::size_t height, CopyKind kind, StreamHandle stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  enter("copy_2d_async");
  expect_current("copy_2d_async", device);
  Stream& target = stream_of("copy_2d_async", device, stream);
  Operation all;
  std::vector<std::function<void()>> rows;
  for (std::size_t row = 0; row < height; ++row) {
    Operation one = copy_operation(static_cast<std::byte*>(dst) + row * dst_pitch,
                                   address(src) + row * src_pitch, width_nbytes, kind);
    rows.push_back(std::move(one.run));
    all.host.insert(all.host.end(), one.host.begin(), one.host.end());
  }
  all.run = [rows = std::move(rows)] {
    for (const auto& row : rows) row();
  };
  enqueue(target, std::move(all));
}

bool ScriptedRuntime::copy_batch_async(int device, const CopyItem* items, std::size_t count,
                                       CopyKind kind, StreamHandle stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  enter("copy_batch_async");
  expect_current("copy_batch_async", device);
  Stream& target = stream_of("copy_batch_async", device, stream);
  if (stream == nullptr || target.capture != 0) return false;
  std::vector<Operation> operations;  // all are checked before one is enqueued
  for (std::size_t i = 0; i < count; ++i) {
    operations.push_back(copy_operation(items[i].dst, items[i].src, items[i].nbytes, kind));
  }
  // No order within a batch is promised: run it backwards.
  for (auto it = operations.rbegin(); it != operations.rend(); ++it) {
    enqueue(target, std::move(*it));
  }
  return true;
}

void ScriptedRuntime::fill_async(int device, void* dst, unsigned char value, std::size_t nbytes,
                                 StreamHandle stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  enter("fill_async");
  expect_current("fill_async", device);
  Operation operation;
  operation.run = [dst, value, nbytes] { std::memset(dst, value, nbytes); };
  enqueue(stream_of("fill_async", device, stream), std::move(operation));
}

void ScriptedRuntime::launch(int device, const Kernel& kernel, Dim3 grid, Dim3 block,
                             std::size_t shared_nbytes, void** args, StreamHandle stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  enter("launch");
  expect_current("launch", device);
  Stream& target = stream_of("launch", device, stream);
  if (target.capture != 0) raise("launch", kErrorStreamCaptureUnsupported);
  drain(target);
  kernel.host(grid, block, shared_nbytes, args);
}

void ScriptedRuntime::launch_host_function(int device, StreamHandle stream, void (*function)(void*),
                                           void* argument) {
  const std::lock_guard<std::mutex> lock(mutex_);
  enter("launch_host_function");
  expect_current("launch_host_function", device);
  Operation operation;
  operation.run = [function, argument] { function(argument); };
  enqueue(stream_of("launch_host_function", device, stream), std::move(operation));
}

void ScriptedRuntime::retain_in_capture(int device, StreamHandle stream, void (*destroy)(void*),
                                        void* argument) {
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    enter("retain_in_capture");
    const std::uint64_t graph = stream_of("retain_in_capture", device, stream).capture;
    if (graph == 0) throw StateError("the stream is not capturing");
    graphs_.at(graph).retained.emplace_back(destroy, argument);
  } catch (...) {
    destroy(argument);
    throw;
  }
}

}  // namespace staging::testing
