#include "support/interrupt.h"

#include <gtest/gtest.h>

namespace staging {
namespace {

TEST(InterruptTest, ThrowsOnlyWhereTheInstalledCheckSaysSo) {
  EXPECT_NO_THROW(throw_if_interrupted());
  interrupt_check = [] { return false; };
  EXPECT_NO_THROW(throw_if_interrupted());
  interrupt_check = [] { return true; };
  EXPECT_THROW(throw_if_interrupted(), Interrupted);
  interrupt_check = nullptr;
}

}  // namespace
}  // namespace staging
