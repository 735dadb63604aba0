// What the generated stubs do.
#include <cstdio>
#include <cstdlib>

extern "C" [[noreturn]] void staging_sim_unmodelled(const char* name) noexcept {
  std::fprintf(stderr, "simulated device: %s is not modelled\n", name);
  std::fflush(stderr);
  std::abort();
}
