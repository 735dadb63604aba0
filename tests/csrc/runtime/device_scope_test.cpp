#include "runtime/device_scope.h"

#include <gtest/gtest.h>

#include "support/scripted_runtime.h"

namespace staging {
namespace {

TEST(DeviceScopeTest, SwitchesAndRestores) {
  testing::ScriptedRuntime runtime(2);
  {
    const DeviceScope scope(runtime, 1);
    EXPECT_EQ(runtime.current_device(), 1);
  }
  EXPECT_EQ(runtime.current_device(), 0);
}

TEST(DeviceScopeTest, AsksOnceWhereTheDeviceIsCurrentAlready) {
  testing::ScriptedRuntime runtime(2);
  runtime.reset_calls();
  {
    const DeviceScope scope(runtime, 0);
  }
  EXPECT_EQ(runtime.calls("current_device"), 1u);
  EXPECT_EQ(runtime.calls("set_device"), 0u);
}

TEST(DeviceScopeTest, RestoresWhenAnExceptionPasses) {
  testing::ScriptedRuntime runtime(2);
  try {
    const DeviceScope scope(runtime, 1);
    throw 1;
  } catch (int) {
  }
  EXPECT_EQ(runtime.current_device(), 0);
}

TEST(DeviceScopeTest, AScopeWithinOneForTheSameDeviceAsksNothing) {
  testing::ScriptedRuntime runtime(2);
  {
    const DeviceScope scope(runtime, 1);
    runtime.reset_calls();
    {
      const DeviceScope inner(runtime, 1);
    }
    EXPECT_EQ(runtime.calls(), 0u);
    {
      const DeviceScope other(runtime, 0);
    }
    EXPECT_EQ(runtime.current_device(), 1);
  }
  EXPECT_EQ(runtime.current_device(), 0);
  {
    const DeviceScope none(runtime, -1);
  }
  EXPECT_EQ(runtime.current_device(), 0);
}

TEST(DeviceScopeTest, AFrameworkRestoresADeviceThatHasNoContext) {
  static bool takes_care;
  static int told;
  static const DeviceHooks hooks{[] { return 0; },
                                 [](int, int current) {
                                   told = current;
                                   return takes_care;
                                 }};
  testing::ScriptedRuntime runtime(2);
  device_hooks = &hooks;
  takes_care = true;
  told = -1;
  {
    const DeviceScope scope(runtime, 1);
  }
  EXPECT_EQ(runtime.current_device(), 1);
  EXPECT_EQ(told, 0);
  runtime.set_device(0);
  takes_care = false;
  {
    const DeviceScope scope(runtime, 1);
  }
  EXPECT_EQ(runtime.current_device(), 0);
  told = -1;
  {
    const DeviceScope scope(runtime, 0);
  }
  EXPECT_EQ(told, -1);  // nothing was switched
  device_hooks = nullptr;
}

}  // namespace
}  // namespace staging
