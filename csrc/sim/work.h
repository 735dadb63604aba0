// What a stream does, one piece at a time.
//
// Purpose: the engine orders and runs work without knowing what it is. Work is made when
//   it is enqueued or captured, from arguments that were checked then, and is immutable: a
//   graph runs the same object at each launch.
// Owner: shared by the queue that will run it and the graph nodes that hold it.
// Thread-safety: run() may be called on any thread. Brief work runs under the machine's
//   lock, other work without it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace staging::sim {

struct Range;

class Work {
 public:
  enum class Kind : std::uint8_t {
    kDevice,  // copies, fills and kernels: what the `null` policy leaves out
    kMark,    // event records
    kHost,    // host functions, run by the callback thread
    kMemory,  // stream-ordered frees
  };

  explicit Work(Kind kind, bool brief) noexcept : kind_(kind), brief_(brief) {}
  Work(const Work&) = default;
  Work(Work&&) = default;
  Work& operator=(const Work&) = delete;  // immutable
  Work& operator=(Work&&) = delete;
  virtual ~Work() = default;

  Kind kind() const noexcept { return kind_; }
  bool brief() const noexcept { return brief_; }

  // An error is asynchronous: it destroys the context, as a fault on a GPU does.
  virtual cudaError_t run() const = 0;
  // An error came first, so that run() will never be called.
  virtual void dropped(cudaError_t /*error*/) const {}
  // For a report: "a copy of 64 bytes to the device".
  virtual std::string describe() const = 0;
  // Calls `see` for every range of memory that run() may access.
  virtual void visit_ranges(const std::function<void(const Range&)>& /*see*/) const {}
  // Whether run() may access [begin, end). Kernels hide their ranges in arguments.
  virtual bool uses(std::uintptr_t begin, std::uintptr_t end) const;

 private:
  Kind kind_;
  bool brief_;
};

// Brief work is cheaper to run than to give the lock up for.
inline constexpr std::size_t kBriefNbytes = 64 * 1024;

}  // namespace staging::sim
