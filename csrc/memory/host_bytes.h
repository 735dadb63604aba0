// Pageable host memory for bytes that are about to be written.
//
// Purpose: a copy of a large tensor writes fresh memory once. In small pages the faults cost
//   more than the bytes do, so large memory is mapped for huge ones.
// Owner: the object; move-only. Thread-safety: a value.
#pragma once

#include <cstddef>
#include <utility>

namespace staging {

class HostBytes {
 public:
  // From here on memory comes from huge pages, where the system has them.
  static constexpr std::size_t kMappedNbytes = std::size_t{4} << 20;

  HostBytes() noexcept = default;
  // Not initialised. Throws std::bad_alloc.
  explicit HostBytes(std::size_t nbytes);
  HostBytes(const HostBytes&) = delete;  // one owner
  HostBytes& operator=(const HostBytes&) = delete;
  HostBytes(HostBytes&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), nbytes_(std::exchange(other.nbytes_, 0)) {}
  HostBytes& operator=(HostBytes&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(nbytes_, other.nbytes_);
    return *this;
  }
  ~HostBytes();

  // Null where there are none.
  std::byte* data() const noexcept { return data_; }
  std::size_t nbytes() const noexcept { return nbytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t nbytes_ = 0;
};

}  // namespace staging
