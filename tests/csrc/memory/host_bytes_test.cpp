#include "memory/host_bytes.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include "memory/pinned_buffer.h"

namespace staging {
namespace {

constexpr std::size_t kMapped = HostBytes::kMappedNbytes;

TEST(HostBytesTest, OfNoBytesHaveNoAddress) {
  EXPECT_EQ(HostBytes().data(), nullptr);
  EXPECT_EQ(HostBytes(0).data(), nullptr);
}

TEST(HostBytesTest, CanBeWrittenToTheirEnd) {
  for (const std::size_t nbytes :
       {std::size_t{1}, kMapped - 1, kMapped, kMapped + 1, kMapped + (std::size_t{2} << 20)}) {
    const HostBytes bytes(nbytes);
    ASSERT_EQ(bytes.nbytes(), nbytes);
    std::memset(bytes.data(), 7, nbytes);
    EXPECT_EQ(bytes.data()[0], std::byte{7});
    EXPECT_EQ(bytes.data()[nbytes - 1], std::byte{7});
  }
}

TEST(HostBytesTest, LargeOnesBeginWhereAHugePageDoesAndEndWithTheirLastPage) {
  std::byte* begin;
  {
    const HostBytes bytes(kMapped + 1);
    begin = bytes.data();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(begin) % (std::size_t{2} << 20), 0U);
    // Mapped up to there.
    EXPECT_EQ(msync(begin, page_ceil(kMapped + 1), MS_ASYNC), 0);
  }
  // And gone afterwards.
  EXPECT_EQ(msync(begin, page_nbytes(), MS_ASYNC), -1);
  EXPECT_EQ(errno, ENOMEM);
}

TEST(HostBytesTest, MoveWithTheirMemory) {
  HostBytes from(100);
  std::byte* const data = from.data();
  HostBytes to(std::move(from));
  EXPECT_EQ(to.data(), data);
  EXPECT_EQ(to.nbytes(), 100U);
  HostBytes assigned;
  assigned = std::move(to);
  EXPECT_EQ(assigned.data(), data);
}

TEST(HostBytesTest, MoreThanThereIsIsAnError) {
  EXPECT_THROW(HostBytes(SIZE_MAX), std::bad_alloc);
  EXPECT_THROW(HostBytes(std::size_t{1} << 60), std::bad_alloc);
}

}  // namespace
}  // namespace staging
