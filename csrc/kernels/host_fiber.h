// A stack of its own that a function runs on, until it suspends itself.
//
// Purpose: the threads of a block, which meet at barriers, on one OS thread (host_grid.h).
//   A switch costs nanoseconds on x86-64; swapcontext, which is used elsewhere, makes two
//   system calls, and a block of a hundred threads switches thousands of times.
// Owner: whoever made it. A fiber that is destroyed while suspended runs no destructors.
// Thread-safety: a fiber belongs to the OS thread that first resumes it.
#pragma once

#include <memory>

namespace staging::kernels {

class Fiber {
 public:
  // `function(argument)` begins at the first resume(). It neither returns nor throws.
  Fiber(void (*function)(void*), void* argument);
  Fiber(const Fiber&) = delete;  // its stack refers to it
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber();

  void resume();   // runs the fiber until it suspends
  void suspend();  // on the fiber: goes back to where resume() was called

 private:
  struct Context;

  std::unique_ptr<Context> context_;
};

}  // namespace staging::kernels
