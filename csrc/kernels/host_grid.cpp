#include "kernels/host_grid.h"

#include <ucontext.h>

#include <exception>
#include <memory>
#include <vector>

#include "support/error.h"

namespace staging::kernels {

namespace {

constexpr std::size_t kFiberStackNbytes = 64 * 1024;

Dim3 thread_index(Dim3 block, unsigned linear) {
  return {linear % block.x, linear / block.x % block.y, linear / (block.x * block.y)};
}

// The threads of one block as fibers of the calling OS thread. A fiber runs until its next
// barrier; a round ends when each has reached it or returned, as CUDA requires.
class FiberBlock {
 public:
  FiberBlock(detail::ThreadBody body, Dim3 block, void** args)
      : body_(body), block_(block), args_(args), fibers_(block.x * block.y * block.z) {}

  void run() {
    FiberBlock* const outer = current_;
    current_ = this;
    for (Fiber& fiber : fibers_) start(fiber);
    for (bool running = true; running;) {
      running = false;
      for (unsigned i = 0; i < fibers_.size(); ++i) {
        if (fibers_[i].done) continue;
        threadIdx = thread_index(block_, i);
        active_ = &fibers_[i];
        swapcontext(&scheduler_, &fibers_[i].context);
        if (failure_) break;
        running |= !fibers_[i].done;
      }
      if (failure_) break;
    }
    current_ = outer;
    if (failure_) std::rethrow_exception(failure_);
  }

  static void barrier() {
    if (current_ == nullptr) {
      throw StateError("__syncthreads() in a kernel that was declared to have no barriers");
    }
    swapcontext(&current_->active_->context, &current_->scheduler_);
  }

 private:
  struct Fiber {
    ucontext_t context{};
    std::unique_ptr<char[]> stack;
    bool done = false;
  };

  void start(Fiber& fiber) {
    fiber.stack = std::make_unique_for_overwrite<char[]>(kFiberStackNbytes);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kFiberStackNbytes;
    fiber.context.uc_link = &scheduler_;
    makecontext(&fiber.context, &FiberBlock::enter, 0);
  }

  static void enter() {
    FiberBlock& self = *current_;
    try {
      self.body_(self.args_);
    } catch (...) {
      self.failure_ = std::current_exception();
    }
    self.active_->done = true;
  }

  static inline thread_local FiberBlock* current_ = nullptr;

  detail::ThreadBody body_;
  Dim3 block_;
  void** args_;
  std::vector<Fiber> fibers_;
  ucontext_t scheduler_{};
  Fiber* active_ = nullptr;
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
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        if (barriers) {
          FiberBlock(body, block, args).run();
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
