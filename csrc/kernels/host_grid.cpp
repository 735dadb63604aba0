#include "kernels/host_grid.h"

#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/host_fiber.h"
#include "support/error.h"

namespace staging::kernels {

namespace {

Dim3 thread_index(Dim3 block, unsigned linear) {
  return {linear % block.x, linear / block.x % block.y, linear / (block.x * block.y)};
}

// The threads of a block as fibers of the calling OS thread. A fiber runs until its next
// barrier; a round ends when each has reached it or returned, as CUDA requires. The blocks of
// a grid run one after another, on the same fibers.
class FiberBlock {
 public:
  FiberBlock(detail::ThreadBody body, Dim3 block, void** args)
      : body_(body), block_(block), args_(args) {
    for (unsigned i = 0; i < block.x * block.y * block.z; ++i) {
      threads_.push_back(std::make_unique<Thread>(*this));
    }
  }
  FiberBlock(const FiberBlock&) = delete;  // threads refer to their block
  FiberBlock& operator=(const FiberBlock&) = delete;

  void run() {
    FiberBlock* const outer = current_;
    current_ = this;
    for (auto& thread : threads_) thread->done = false;
    for (bool running = true; running && !failure_;) {
      running = false;
      for (unsigned i = 0; i < threads_.size() && !failure_; ++i) {
        if (threads_[i]->done) continue;
        threadIdx = thread_index(block_, i);
        active_ = threads_[i].get();
        active_->fiber.resume();
        running |= !active_->done;
      }
    }
    current_ = outer;
    if (failure_) std::rethrow_exception(failure_);
  }

  static void barrier() {
    if (current_ == nullptr) {
      throw StateError("__syncthreads() in a kernel that was declared to have no barriers");
    }
    current_->active_->fiber.suspend();
  }

 private:
  struct Thread {
    explicit Thread(FiberBlock& block) : block(block), fiber(&Thread::run, this) {}

    // Runs its thread of one block after another.
    static void run(void* self) {
      for (Thread& thread = *static_cast<Thread*>(self);;) {
        try {
          thread.block.body_(thread.block.args_);
        } catch (...) {
          thread.block.failure_ = std::current_exception();
        }
        thread.done = true;
        thread.fiber.suspend();
      }
    }

    FiberBlock& block;
    Fiber fiber;
    bool done = false;
  };

  static inline thread_local FiberBlock* current_ = nullptr;

  detail::ThreadBody body_;
  Dim3 block_;
  void** args_;
  std::vector<std::unique_ptr<Thread>> threads_;
  Thread* active_ = nullptr;
  std::exception_ptr failure_;
};

}  // namespace

void host_barrier() {
  FiberBlock::barrier();
}

namespace detail {

void run_grid(ThreadBody body, bool barriers, Dim3 grid, Dim3 block, void** args) {
  gridDim = grid;
  blockDim = block;
  const unsigned threads = block.x * block.y * block.z;
  std::optional<FiberBlock> fibers;
  if (barriers) fibers.emplace(body, block, args);
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        if (barriers) {
          fibers->run();
          continue;
        }
        for (unsigned i = 0; i < threads; ++i) {
          threadIdx = thread_index(block, i);
          body(args);
        }
      }
    }
  }
}

}  // namespace detail

}  // namespace staging::kernels
