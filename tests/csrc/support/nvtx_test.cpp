#include "support/nvtx.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace {
std::vector<std::string>& events() {
  static std::vector<std::string> seen;
  return seen;
}
}  // namespace

#if __has_include(<nvtx3/nvToolsExt.h>)
// A profiler that is linked into the program: NVTX looks for it by this name.
#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>

namespace {
int initialize(NvtxGetExportTableFunc_t get_export_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  if (callbacks == nullptr) return 0;
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) == 0) return 0;
  *table[NVTX_CBID_CORE_RangePushA] =
      reinterpret_cast<NvtxFunctionPointer>(+[](const char* name) -> int {
        events().push_back(name);
        return 0;
      });
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(+[]() -> int {
    events().push_back("end");
    return 0;
  });
  return 1;
}
}  // namespace

extern "C" NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr;
NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = &initialize;
#endif

namespace staging {
namespace {

using Seen = std::vector<std::string>;

class NvtxRangeTest : public ::testing::Test {
 protected:
  void SetUp() override { events().clear(); }
  void TearDown() override { nvtx_enabled = false; }
};

TEST_F(NvtxRangeTest, OffItSaysNothing) {
  {
    const NvtxRange range("ids", "copy_to_gpu");
  }
  EXPECT_TRUE(events().empty());
}

TEST_F(NvtxRangeTest, OnItBearsTheNameAndEndsWithItsScope) {
  if (!nvtx_available()) GTEST_SKIP() << "built without the toolkit's headers";
  nvtx_enabled = true;
  {
    const NvtxRange outer("ids", "copy_to_gpu");
    const NvtxRange inner("", "wait");
  }
  EXPECT_EQ(events(), (Seen{"ids.copy_to_gpu", "wait", "end", "end"}));
}

TEST_F(NvtxRangeTest, ARangeEndsThoughItWasSwitchedOffMeanwhile) {
  if (!nvtx_available()) GTEST_SKIP() << "built without the toolkit's headers";
  nvtx_enabled = true;
  {
    const NvtxRange range("ids", "fetch");
    nvtx_enabled = false;
  }
  EXPECT_EQ(events(), (Seen{"ids.fetch", "end"}));
}

}  // namespace
}  // namespace staging
