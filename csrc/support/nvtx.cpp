#include "support/nvtx.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define STAGING_WITH_NVTX
#endif

namespace staging {

#if defined(STAGING_WITH_NVTX)

bool nvtx_available() noexcept {
  return true;
}

void NvtxRange::push(const std::string& name, const char* what) {
  const std::string label = name.empty() ? what : name + "." + what;
  nvtxRangePushA(label.c_str());
}

void NvtxRange::pop() noexcept {
  nvtxRangePop();
}

#else

bool nvtx_available() noexcept {
  return false;
}
void NvtxRange::push(const std::string&, const char*) {}
void NvtxRange::pop() noexcept {}

#endif

}  // namespace staging
