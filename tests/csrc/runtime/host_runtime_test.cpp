#include "runtime/host_runtime.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "support/error.h"

namespace staging {
namespace {

TEST(HostRuntimeTest, WorkIsDoneWhenTheCallReturns) {
  HostRuntime runtime;
  const int src = 7;
  int dst = 0;
  EventHandle event = runtime.create_event(-1, false);
  runtime.copy_async(-1, &dst, &src, sizeof src, CopyKind::kHostToDevice, nullptr);
  runtime.record_event(-1, event, nullptr);
  EXPECT_EQ(dst, 7);
  EXPECT_TRUE(runtime.query_event(-1, event));
  runtime.destroy_event(-1, event);
}

TEST(HostRuntimeTest, RowsKeepTheirPitch) {
  HostRuntime runtime;
  const std::vector<char> src = {'a', 'b', '.', 'c', 'd', '.'};
  std::vector<char> dst(8, '-');
  runtime.copy_2d_async(-1, dst.data(), 4, src.data(), 3, 2, 2, CopyKind::kHostToHost, nullptr);
  EXPECT_EQ(std::string(dst.begin(), dst.end()), "ab--cd--");
}

TEST(HostRuntimeTest, PinnedMemoryIsPageAligned) {
  HostRuntime runtime;
  void* pointer = runtime.allocate_pinned(-1, 100);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pointer) % 4096, 0u);
  runtime.free_pinned(pointer);
}

TEST(HostRuntimeTest, HasNoDeviceAndNoGraphs) {
  HostRuntime runtime;
  EXPECT_EQ(runtime.device_count(), 0);
  EXPECT_THROW(runtime.set_device(0), InvalidArgument);
  bool destroyed = false;
  const auto destroy = [](void* flag) { *static_cast<bool*>(flag) = true; };
  EXPECT_THROW(runtime.retain_in_capture(-1, nullptr, destroy, &destroyed), StateError);
  EXPECT_TRUE(destroyed);
}

}  // namespace
}  // namespace staging
