#include "support/error.h"

#include <gtest/gtest.h>

namespace staging {
namespace {

TEST(DeviceErrorTest, SaysTheCallTheCodesNameAndItsText) {
  const DeviceError error("cudaMemcpyAsync", 1, "cudaErrorInvalidValue", "invalid argument", false);
  EXPECT_STREQ(error.what(),
               "cudaMemcpyAsync failed: cudaErrorInvalidValue (1): invalid argument. Earlier "
               "asynchronous work may be the cause");
  EXPECT_EQ(error.call(), "cudaMemcpyAsync");
  EXPECT_EQ(error.code(), 1);
}

TEST(DeviceErrorTest, SaysThatALostContextIsForGood) {
  const DeviceError error("cudaEventQuery", 700, "cudaErrorIllegalAddress", "illegal", true);
  EXPECT_NE(std::string(error.what()).find("must be restarted"), std::string::npos);
  EXPECT_TRUE(error.sticky());
}

TEST(ExpectsTest, StreamsItsPartsIntoTheMessage) {
  const int n = -1;
  try {
    STAGING_EXPECTS(n >= 0, "n must be >= 0, got ", n);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "n must be >= 0, got -1");
  }
}

}  // namespace
}  // namespace staging
