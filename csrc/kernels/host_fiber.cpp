#include "kernels/host_fiber.h"

#include <cstddef>
#include <cstdint>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace staging::kernels {

namespace {

constexpr std::size_t kStackNbytes = 64 * 1024;

#if defined(__x86_64__)

// Saves the stack pointer in *from, below what a call preserves, and goes on at `to`.
extern "C" void staging_switch_stack(void** from, void* to);
asm(R"(
.text
.local staging_switch_stack
.type staging_switch_stack, @function
staging_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size staging_switch_stack, .-staging_switch_stack
)");

struct Stacks {
  void prepare(char* stack, void (*entry)()) {
    // As if staging_switch_stack had been called from the entry's first instruction, which
    // finds the stack as a call leaves it: 8 past a multiple of 16.
    constexpr std::size_t kPreserved = 6;
    const std::uintptr_t top =
        (reinterpret_cast<std::uintptr_t>(stack) + kStackNbytes - 64) & ~std::uintptr_t{15};
    void** const slots = reinterpret_cast<void**>(top) - kPreserved;
    for (std::size_t i = 0; i < kPreserved; ++i) slots[i] = nullptr;
    slots[kPreserved] = reinterpret_cast<void*>(entry);
    slots[kPreserved + 1] = nullptr;  // where the entry would return to: a backtrace ends
    inside = slots;
  }
  void enter() { staging_switch_stack(&outside, inside); }
  void leave() { staging_switch_stack(&inside, outside); }

  void* outside = nullptr;
  void* inside = nullptr;
};

#else

struct Stacks {
  void prepare(char* stack, void (*entry)()) {
    getcontext(&inside);
    inside.uc_stack.ss_sp = stack;
    inside.uc_stack.ss_size = kStackNbytes;
    inside.uc_link = nullptr;
    makecontext(&inside, entry, 0);
  }
  void enter() { swapcontext(&outside, &inside); }
  void leave() { swapcontext(&inside, &outside); }

  ucontext_t outside;
  ucontext_t inside;
};

#endif

}  // namespace

struct Fiber::Context {
  Context(void (*function)(void*), void* argument)
      : function(function),
        argument(argument),
        stack(std::make_unique_for_overwrite<char[]>(kStackNbytes)) {
    stacks.prepare(stack.get(), &Context::begin);
#if defined(__SANITIZE_THREAD__)
    inside_fiber = __tsan_create_fiber(0);
#endif
  }

  ~Context() {
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(inside_fiber);
#endif
  }

  void enter() {
    entering = this;
#if defined(__SANITIZE_ADDRESS__)
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, stack.get(), kStackNbytes);
#endif
#if defined(__SANITIZE_THREAD__)
    outside_fiber = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(inside_fiber, 0);
#endif
    stacks.enter();
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  }

  void leave() {
#if defined(__SANITIZE_ADDRESS__)
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, outside_bottom, outside_nbytes);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(outside_fiber, 0);
#endif
    stacks.leave();
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack, &outside_bottom, &outside_nbytes);
#endif
  }

  static void begin() {
    Context& self = *entering;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &self.outside_bottom, &self.outside_nbytes);
#endif
    self.function(self.argument);
  }

  static inline thread_local Context* entering = nullptr;

  void (*function)(void*);
  void* argument;
  std::unique_ptr<char[]> stack;
  Stacks stacks;
#if defined(__SANITIZE_ADDRESS__)
  const void* outside_bottom = nullptr;
  std::size_t outside_nbytes = 0;
#endif
#if defined(__SANITIZE_THREAD__)
  void* outside_fiber = nullptr;
  void* inside_fiber = nullptr;
#endif
};

Fiber::Fiber(void (*function)(void*), void* argument)
    : context_(std::make_unique<Context>(function, argument)) {}

Fiber::~Fiber() = default;

void Fiber::resume() {
  context_->enter();
}

void Fiber::suspend() {
  context_->leave();
}

}  // namespace staging::kernels
