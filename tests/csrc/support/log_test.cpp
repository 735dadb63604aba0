#include "support/log.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace staging {
namespace {

std::vector<std::string>& said() {
  static std::vector<std::string> messages;
  return messages;
}

TEST(LogTest, EachFlagSpeaksOnce) {
  log_hook.store([](const char* message) noexcept { said().emplace_back(message); });
  std::atomic_flag first;
  std::atomic_flag second;
  for (int i = 0; i < 3; ++i) {
    log_once(first, "first");
    log_once(second, "second");
  }
  log_hook.store(nullptr);
  EXPECT_EQ(said(), (std::vector<std::string>{"first", "second"}));
}

}  // namespace
}  // namespace staging
