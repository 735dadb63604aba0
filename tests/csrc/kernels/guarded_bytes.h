// Memory with a pattern around and in it, so that a test sees every byte that was touched.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace staging::testing {

// Random bytes at an address that is aligned to 16 and shifted by `misalignment`, between
// guards that are as random.
class GuardedBytes {
 public:
  static constexpr std::size_t kGuard = 64;

  GuardedBytes(std::size_t nbytes, std::size_t misalignment, std::uint32_t seed)
      : memory_((nbytes + misalignment + 2 * kGuard + 15) / 16),
        nbytes_(nbytes),
        begin_(kGuard + misalignment) {
    std::mt19937 random(seed);
    for (std::size_t i = 0; i < memory_.size() * 16; ++i) {
      all()[i] = static_cast<unsigned char>(random());
    }
    expected_.assign(all(), all() + memory_.size() * 16);
  }

  unsigned char* data() { return all() + begin_; }
  std::size_t nbytes() const { return nbytes_; }

  // What is expected from now on at data()[offset].
  void expect(std::size_t offset, const unsigned char* bytes, std::size_t nbytes) {
    std::copy(bytes, bytes + nbytes,
              expected_.begin() + static_cast<std::ptrdiff_t>(begin_ + offset));
  }
  // Everything, the guards included, is as expected.
  ::testing::AssertionResult as_expected() {
    for (std::size_t i = 0; i < expected_.size(); ++i) {
      if (all()[i] == expected_[i]) continue;
      return ::testing::AssertionFailure()
             << "byte " << static_cast<std::ptrdiff_t>(i) - static_cast<std::ptrdiff_t>(begin_)
             << " of " << nbytes_;
    }
    return ::testing::AssertionSuccess();
  }

 private:
  struct alignas(16) Block {
    unsigned char bytes[16];
  };
  unsigned char* all() { return memory_.front().bytes; }

  std::vector<Block> memory_;
  std::size_t nbytes_;
  std::size_t begin_;
  std::vector<unsigned char> expected_;
};

}  // namespace staging::testing
