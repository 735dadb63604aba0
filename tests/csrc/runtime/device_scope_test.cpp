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

}  // namespace
}  // namespace staging
