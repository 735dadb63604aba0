#include <gtest/gtest.h>

#include <cstdlib>

int main(int argc, char** argv) {
  // Read on the first call of the runtime. Small, so that running out is quick.
  setenv("STAGING_SIM_DEVICES", "2", 0);
  setenv("STAGING_SIM_CAPACITY", "67108864", 0);
  // Death tests start the program anew: a forked child has no devices.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
