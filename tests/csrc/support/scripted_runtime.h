// A runtime whose work is done when the test says so.
//
// Purpose: policy (rings, pools, transfers) is tested without a device. Work is queued in
//   FIFO order on each stream and runs in `step`, `run`, `run_all`, or, when `set_eager`, in
//   the call that enqueues it. Calls are counted by name, and the nth can be made to fail.
// Owner: the test. Everything made from it (events, pinned memory) must be gone before it.
// Thread-safety: every method, from any thread.
//
// Where it differs from CUDA:
//   * "Device memory" is host memory (`allocate_device`); nothing stops a dereference.
//   * A host wait (`synchronize_*`) runs the queues as far as it must, as a device would get
//     there in the end. `set_waits_block(true)` makes it block until another thread does.
//   * `query_event` never makes progress, except after `progress_after_queries(n)`.
//   * A kernel runs in the launching call, after what its stream holds: the sizes of its
//     arguments are not known, so it cannot be kept for later.
//   * Graphs hold copies, fills, host functions and external records, in a line.
// What the seam forbids is noted in `violations()`, which a test expects to be empty:
//   enqueuing with another device current, recording an event under capture that is not
//   external, freeing or unregistering pinned memory that queued work uses.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/runtime.h"

namespace staging::testing {

// CUDA's codes, for the errors that are scripted most.
inline constexpr int kErrorInvalidValue = 1;
inline constexpr int kErrorMemoryAllocation = 2;
inline constexpr int kErrorInvalidResourceHandle = 400;
inline constexpr int kErrorIllegalAddress = 700;
inline constexpr int kErrorHostMemoryAlreadyRegistered = 712;
inline constexpr int kErrorNotSupported = 801;
inline constexpr int kErrorStreamCaptureUnsupported = 900;
inline constexpr int kErrorCapturedEvent = 907;

class ScriptedRuntime final : public Runtime {
 public:
  explicit ScriptedRuntime(int device_count = 2);
  ~ScriptedRuntime() override;

  // -- what the test says ----------------------------------------------------------------
  // Runs work in the call that enqueues it, from now on; runs what is queued first.
  void set_eager(bool eager);
  // Runs one operation; false where there is none, or it waits for an event.
  bool step(int device, StreamHandle stream);
  // Runs the stream until it is empty, and other streams as far as it waits for them.
  void run(int device, StreamHandle stream);
  void run_all();
  // Operations queued on the stream.
  std::size_t pending(int device, StreamHandle stream) const;
  std::size_t pending() const;

  // A host wait blocks until another thread has run the work.
  void set_waits_block(bool block);
  // Every `n`th query of an incomplete event runs the work that it stands for; 0: never.
  void progress_after_queries(std::size_t n);

  // The `nth` call from now of `method` ("record_event"; 1: the next one), and the
  // `count - 1` after it, fail with `code` before they do anything.
  void fail(const std::string& method, int code = kErrorInvalidValue, std::size_t nth = 1,
            std::size_t count = 1, bool sticky = false);
  void clear_failures();
  void set_numa_node(int device, int node);

  // Memory of a device, freed with the runtime.
  void* allocate_device(int device, std::size_t nbytes);

  // Work that `stream` is given goes into a graph until end_capture, which returns it.
  void begin_capture(int device, StreamHandle stream);
  std::uint64_t end_capture(int device, StreamHandle stream);
  void launch_graph(std::uint64_t graph, int device, StreamHandle stream);
  // Runs the destructors of what was retained in it.
  void destroy_graph(std::uint64_t graph);

  // -- what the test sees ----------------------------------------------------------------
  std::size_t calls(const std::string& method) const;  // failed ones included
  std::size_t calls() const;
  void reset_calls();
  std::size_t live_events() const;
  std::size_t live_streams() const;
  std::size_t pinned_nbytes() const;  // allocated or registered
  std::size_t pinned_regions() const;
  std::vector<std::string> violations() const;

  // -- the seam --------------------------------------------------------------------------
  Backend backend() const noexcept override { return Backend::kCuda; }

  int device_count() override;
  int current_device() override;
  void set_device(int device) override;
  int numa_node(int device) override;

  StreamHandle create_stream(int device) override;
  void destroy_stream(int device, StreamHandle stream) noexcept override;
  void synchronize_stream(int device, StreamHandle stream) override;
  void stream_wait_event(int device, StreamHandle stream, EventHandle event) override;
  CaptureStatus capture_status(int device, StreamHandle stream) override;
  CaptureInfo capture_info(int device, StreamHandle stream) override;

  EventHandle create_event(int device, bool timing) override;
  void destroy_event(int device, EventHandle event) noexcept override;
  void record_event(int device, EventHandle event, StreamHandle stream) override;
  void record_external_event(int device, EventHandle event, StreamHandle stream) override;
  bool query_event(int device, EventHandle event) override;
  void synchronize_event(int device, EventHandle event) override;
  float elapsed_ms(EventHandle start, EventHandle stop) override;

  void* allocate_pinned(int device, std::size_t nbytes) override;
  void free_pinned(void* pointer) noexcept override;
  void register_pinned(int device, void* pointer, std::size_t nbytes) override;
  void unregister_pinned(void* pointer) noexcept override;
  PointerInfo pointer_info(const void* pointer) override;

  void copy_async(int device, void* dst, const void* src, std::size_t nbytes, CopyKind kind,
                  StreamHandle stream) override;
  void copy_2d_async(int device, void* dst, std::size_t dst_pitch, const void* src,
                     std::size_t src_pitch, std::size_t width_nbytes, std::size_t height,
                     CopyKind kind, StreamHandle stream) override;
  bool copy_batch_async(int device, const CopyItem* items, std::size_t count, CopyKind kind,
                        StreamHandle stream) override;
  void fill_async(int device, void* dst, unsigned char value, std::size_t nbytes,
                  StreamHandle stream) override;
  void launch(int device, const Kernel& kernel, Dim3 grid, Dim3 block, std::size_t shared_nbytes,
              void** args, StreamHandle stream) override;
  void launch_host_function(int device, StreamHandle stream, void (*function)(void*),
                            void* argument) override;
  void retain_in_capture(int device, StreamHandle stream, void (*destroy)(void*),
                         void* argument) override;

 private:
  // One record of an event. Who waits for it is not concerned by the event's next record.
  struct Recording {
    int device;
    StreamHandle stream;
    bool complete = false;
  };
  using RecordingPointer = std::shared_ptr<Recording>;

  struct EventState {
    int device;
    RecordingPointer latest = nullptr;  // null: never recorded, which is complete
    bool captured = false;
    bool destroyed = false;  // the handle is gone, queued work still refers to it
    std::uint64_t incomplete_queries = 0;
  };
  using EventPointer = std::shared_ptr<EventState>;

  struct Range {
    const std::byte* begin;
    std::size_t nbytes;
  };

  struct Operation {
    std::function<void()> run;
    std::vector<Range> host;     // pinned or pageable memory that it touches
    RecordingPointer waits_for;  // not runnable before
    RecordingPointer records;
    EventPointer external_event;  // in a graph: recorded anew at each launch
  };

  using StreamKey = std::pair<int, StreamHandle>;
  struct Stream {
    std::deque<Operation> queue;
    std::uint64_t capture = 0;  // graph that takes its work, or 0
  };
  struct Graph {
    std::vector<Operation> operations;
    std::vector<std::pair<void (*)(void*), void*>> retained;
  };
  struct Failure {
    std::size_t after;  // calls that still succeed
    std::size_t count;
    int code;
    bool sticky;
  };
  struct Pinned {
    std::size_t nbytes;
    bool allocated;  // else registered
  };

  // All under mutex_.
  void enter(const char* method);
  void expect_current(const char* method, int device);
  Stream& stream_of(const char* method, int device, StreamHandle handle);
  EventPointer event_of(const char* method, EventHandle handle) const;
  void enqueue(Stream& stream, Operation operation);
  bool step_locked(Stream& stream);
  bool drain(Stream& stream);
  void drain_all();
  static bool complete(const RecordingPointer& recording) {
    return recording == nullptr || recording->complete;
  }
  void make_progress(const RecordingPointer& recording);
  void check_host_range(const char* call, const void* pointer, std::size_t nbytes) const;
  void note_if_in_use(const char* method, const void* pointer, std::size_t nbytes);
  Operation copy_operation(void* dst, const void* src, std::size_t nbytes, CopyKind kind) const;

  mutable std::mutex mutex_;
  std::condition_variable progressed_;
  const int device_count_;
  bool eager_ = false;
  bool waits_block_ = false;
  std::size_t progress_after_ = 0;
  std::map<std::thread::id, int> current_device_;
  std::map<int, int> numa_node_;
  std::map<StreamKey, Stream> streams_;
  std::map<EventHandle, EventPointer> events_;
  std::map<std::uint64_t, Graph> graphs_;
  std::uint64_t next_handle_ = 0x1000;
  std::uint64_t next_graph_ = 1;
  std::map<const std::byte*, Pinned> pinned_;
  std::map<const std::byte*, std::pair<std::size_t, int>> device_memory_;
  std::map<std::string, std::size_t> calls_;
  std::map<std::string, std::vector<Failure>> failures_;
  std::vector<std::string> violations_;
};

}  // namespace staging::testing
