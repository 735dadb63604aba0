#include "runtime/runtime.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/host_runtime.h"
#include "support/error.h"

namespace staging {
namespace {

TEST(RuntimeTest, AnOverrideIsTheAnswerWhileItLives) {
  HostRuntime outer;
  const RuntimeOverride first(outer);
  EXPECT_EQ(&Runtime::get(), &outer);
  {
    HostRuntime inner;
    const RuntimeOverride second(inner);
    EXPECT_EQ(&Runtime::get(), &inner);
  }
  EXPECT_EQ(&Runtime::get(), &outer);
}

TEST(RuntimeTest, OneRuntimeIsChosenForTheProcess) {
  Runtime& runtime = Runtime::get();
  EXPECT_TRUE(Runtime::chosen());
  EXPECT_EQ(&Runtime::get(), &runtime);
}

TEST(RuntimeTest, AForkedChildOfAHostProcessGoesOn) {
  if (Runtime::get().backend() != Backend::kHost) GTEST_SKIP() << "has a device";
  const pid_t child = fork();
  if (child == 0) {
    try {
      Runtime::check_not_forked();
      _exit(0);
    } catch (const StateError&) {
      _exit(1);
    }
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace staging
