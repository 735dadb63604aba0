// How the threads of a group copy one run of bytes: shared by the kernels that do.
#pragma once

#include <cstdint>

#include "kernels/kernel.h"

namespace staging::kernels {

struct alignas(16) Word16 {
  std::uint64_t lo, hi;
};

// What one thread has in flight at once. Over PCIe a load takes about a microsecond, so
// bandwidth is bytes in flight.
inline constexpr std::uint32_t kWordsInFlight = 4;

template <typename Word>
STAGING_DEVICE void copy_words(unsigned char* dst, const unsigned char* src, std::uint64_t count,
                               std::uint64_t thread, std::uint64_t threads) {
  auto* to = reinterpret_cast<Word*>(dst);
  const auto* from = reinterpret_cast<const Word*>(src);
  for (std::uint64_t first = thread; first < count; first += kWordsInFlight * threads) {
    Word words[kWordsInFlight] = {};
    for (std::uint32_t k = 0; k < kWordsInFlight; ++k) {
      const std::uint64_t i = first + k * threads;
      if (i < count) words[k] = from[i];
    }
    for (std::uint32_t k = 0; k < kWordsInFlight; ++k) {
      const std::uint64_t i = first + k * threads;
      if (i < count) to[i] = words[k];
    }
  }
}

// The widest access, up to 16 bytes, for which both addresses can be aligned at once.
STAGING_DEVICE std::uint32_t common_width(const unsigned char* dst, const unsigned char* src) {
  const std::uint64_t differ =
      (reinterpret_cast<std::uintptr_t>(dst) ^ reinterpret_cast<std::uintptr_t>(src)) | 16;
  return static_cast<std::uint32_t>(differ & (~differ + 1));  // its lowest set bit
}

// Copies `nbytes`, as number `thread` of `threads` that do it together. No byte beside them is
// read or written: the head and the tail, up to where accesses are aligned, go byte by byte.
STAGING_DEVICE void copy_bytes(unsigned char* dst, const unsigned char* src, std::uint64_t nbytes,
                               std::uint64_t thread, std::uint64_t threads) {
  const std::uint32_t width = common_width(dst, src);
  const std::uint64_t until_aligned = (~reinterpret_cast<std::uintptr_t>(dst) + 1) & (width - 1);
  const std::uint64_t head = until_aligned < nbytes ? until_aligned : nbytes;
  const std::uint64_t words = (nbytes - head) / width;
  const std::uint64_t tail = head + words * width;
  for (std::uint64_t i = thread; i < head; i += threads) dst[i] = src[i];
  for (std::uint64_t i = tail + thread; i < nbytes; i += threads) dst[i] = src[i];
  switch (width) {
    case 16:
      copy_words<Word16>(dst + head, src + head, words, thread, threads);
      break;
    case 8:
      copy_words<std::uint64_t>(dst + head, src + head, words, thread, threads);
      break;
    case 4:
      copy_words<std::uint32_t>(dst + head, src + head, words, thread, threads);
      break;
    case 2:
      copy_words<std::uint16_t>(dst + head, src + head, words, thread, threads);
      break;
    default:
      copy_words<std::uint8_t>(dst + head, src + head, words, thread, threads);
      break;
  }
}

}  // namespace staging::kernels
