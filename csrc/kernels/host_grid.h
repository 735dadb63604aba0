// Runs a kernel body on the CPU, block by block and thread by thread.
//
// Purpose: gives a body compiled as plain C++ CUDA's built-in variables and barriers.
//   A body without barriers runs as a loop; one with barriers runs its threads as fibers
//   that switch at each __syncthreads().
// Owner: the indices and the __shared__ arrays belong to the OS thread that runs the grid.
// Thread-safety: grids may run on several OS threads at once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "runtime/runtime.h"

#undef __shared__  // CUDA's headers define both, for whoever includes them, too
#undef __launch_bounds__
#define __shared__ static thread_local
#define __launch_bounds__(...)

namespace staging::kernels {

// CUDA's names, so that a body reads the same in both compilations.
inline thread_local Dim3 threadIdx{0, 0, 0};
inline thread_local Dim3 blockIdx{0, 0, 0};
inline thread_local Dim3 blockDim{};
inline thread_local Dim3 gridDim{};

// Waits until every thread of the block is here. Only inside a grid run with barriers.
void host_barrier();
inline void __syncthreads() {
  host_barrier();
}

namespace detail {

using ThreadBody = void (*)(void** args);

void run_grid(ThreadBody body, bool barriers, Dim3 grid, Dim3 block, void** args);

template <typename... Params, std::size_t... I>
void call_with(void (*kernel)(Params...), void** args, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_reference_t<Params>*>(args[I])...);
}

template <typename... Params>
void call_with(void (*kernel)(Params...), void** args) {
  call_with(kernel, args, std::index_sequence_for<Params...>{});
}

}  // namespace detail

namespace detail {

template <typename... Params>
constexpr std::array<std::size_t, sizeof...(Params)> param_nbytes_of(void (*)(Params...)) {
  return {sizeof(Params)...};
}

}  // namespace detail

// The size of each parameter of a kernel, for whoever copies its arguments.
template <auto kKernel>
inline constexpr auto kParamNbytes = detail::param_nbytes_of(kKernel);

template <auto kKernel, bool kBarriers>
void run_on_host(Dim3 grid, Dim3 block, std::size_t /*shared_nbytes*/, void** args) {
  detail::run_grid([](void** a) { detail::call_with(kKernel, a); }, kBarriers, grid, block, args);
}

}  // namespace staging::kernels
