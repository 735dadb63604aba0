#include "transfer/host_view.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "runtime/host_runtime.h"
#include "support/error.h"
#include "support/scripted_runtime.h"

namespace staging {
namespace {

// A device that does with a launch what the test says.
class OddDevice : public HostRuntime {
 public:
  PointerInfo pointer_info(const void* pointer) override {
    return {kind, -1, addressable ? const_cast<void*>(pointer) : nullptr};
  }
  void launch(int device, const Kernel& kernel, Dim3 grid, Dim3 block, std::size_t shared_nbytes,
              void** args, StreamHandle stream) override {
    ++launches;
    if (on_launch) return on_launch();
    HostRuntime::launch(device, kernel, grid, block, shared_nbytes, args, stream);
  }
  MemoryKind kind = MemoryKind::kPinned;
  bool addressable = true;
  int launches = 0;
  std::function<void()> on_launch;
};

TEST(HostView, PinnedMemoryHasAnAddressOnTheDeviceAndPageableMemoryHasNone) {
  testing::ScriptedRuntime runtime(1);
  DeviceContext context(runtime, 0);
  void* pinned = runtime.allocate_pinned(0, 4096);
  EXPECT_EQ(device_address(context, pinned), pinned);
  int pageable = 0;
  EXPECT_THROW(device_address(context, &pageable), InvalidArgument);
  runtime.free_pinned(pinned);
}

TEST(HostView, ALiveViewIsFoundLiveAndNothingIsLeft) {
  testing::ScriptedRuntime runtime(1);
  DeviceContext context(runtime, 0);
  EXPECT_TRUE(sees_host_writes(context));
  EXPECT_EQ(runtime.live_streams(), 0U);
  EXPECT_EQ(runtime.violations(), std::vector<std::string>());
}

TEST(HostView, ADeviceThatSeesNoWriteIsFoundOut) {
  OddDevice device;
  DeviceContext context(device, -1);
  device.on_launch = [] {};  // reads and writes memory of its own
  EXPECT_FALSE(sees_host_writes(context));
}

TEST(HostView, ADeviceThatSeesOnlyTheFirstWriteIsFoundOut) {
  OddDevice device;
  DeviceContext context(device, -1);
  EXPECT_TRUE(sees_host_writes(context));
  EXPECT_GT(device.launches, 1);  // one write says nothing about the next
}

TEST(HostView, MemoryWithoutAnAddressIsNoView) {
  OddDevice device;
  device.addressable = false;
  DeviceContext context(device, -1);
  EXPECT_FALSE(sees_host_writes(context));
  int host = 0;
  EXPECT_THROW(device_address(context, &host), StateError);
  EXPECT_EQ(device.launches, 0);
}

TEST(HostView, PinnedMemoryThatIsManagedInTruthIsNoView) {
  OddDevice device;
  device.kind = MemoryKind::kManaged;
  DeviceContext context(device, -1);
  EXPECT_FALSE(sees_host_writes(context));
  EXPECT_EQ(device.launches, 0);
}

TEST(HostView, AFailedLaunchIsReportedAndLeavesNoStream) {
  testing::ScriptedRuntime runtime(1);
  DeviceContext context(runtime, 0);
  runtime.fail("launch");
  EXPECT_THROW(sees_host_writes(context), DeviceError);
  EXPECT_EQ(runtime.live_streams(), 0U);
}

}  // namespace
}  // namespace staging
