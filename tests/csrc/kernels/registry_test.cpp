#include "kernels/registry.h"

#include <gtest/gtest.h>

namespace staging::kernels {
namespace {

TEST(RegistryTest, FindsAKernelByItsName) {
  const Kernel* kernel = find_kernel("strided_copy_kernel");
  ASSERT_NE(kernel, nullptr);
  EXPECT_STREQ(kernel->name, "strided_copy_kernel");
}

TEST(RegistryTest, DoesNotKnowOthers) {
  EXPECT_EQ(find_kernel("no_such_kernel"), nullptr);
}

}  // namespace
}  // namespace staging::kernels
