#include "hash/strided_reader.h"

#include <algorithm>
#include <cstring>

#include "support/error.h"

namespace staging {

namespace {

// A tile is a cache line in the order of the output, and four in the order of the input: most
// of the time goes into finding the input's pages.
constexpr std::int64_t kTileColumnNbytes = 64;
constexpr std::int64_t kTileRowNbytes = 256;

struct alignas(16) Unit16 {
  std::uint64_t lo, hi;
};

template <typename Unit>
void copy_units(std::byte* out, const std::byte* from, std::int64_t stride, std::int64_t count) {
  if (stride == sizeof(Unit)) {
    std::memcpy(out, from, static_cast<std::size_t>(count) * sizeof(Unit));
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(out + i * static_cast<std::int64_t>(sizeof(Unit)), from + i * stride, sizeof(Unit));
  }
}

// Writes `rows` rows of `columns` units, `out_stride` apart. In memory the rows are a unit
// apart and the columns `stride`. Each cache line of either side is touched once.
template <typename Unit>
void copy_tiles(std::byte* out, std::int64_t out_stride, const std::byte* from, std::int64_t stride,
                std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kUnit = sizeof(Unit);
  constexpr std::int64_t kRows = kTileRowNbytes / kUnit;
  constexpr std::int64_t kColumns = kTileColumnNbytes / kUnit;
  alignas(64) Unit tile[kColumns][kRows];
  std::int64_t first = 0;
  if (rows == kRows) {
    for (; first + kColumns <= columns; first += kColumns) {
      for (std::int64_t c = 0; c < kColumns; ++c) {
        std::memcpy(tile[c], from + (first + c) * stride, kTileRowNbytes);
      }
      for (std::int64_t r = 0; r < kRows; ++r) {
        Unit line[kColumns];
        for (std::int64_t c = 0; c < kColumns; ++c) line[c] = tile[c][r];
        std::memcpy(out + r * out_stride + first * kUnit, line, kTileColumnNbytes);
      }
    }
  }
  for (; first < columns; first += kColumns) {
    const std::int64_t count = std::min(kColumns, columns - first);
    for (std::int64_t c = 0; c < count; ++c) {
      std::memcpy(tile[c], from + (first + c) * stride, static_cast<std::size_t>(rows * kUnit));
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      std::byte* const to = out + r * out_stride + first * kUnit;
      for (std::int64_t c = 0; c < count; ++c) std::memcpy(to + c * kUnit, &tile[c][r], kUnit);
    }
  }
}

}  // namespace

StridedReader::StridedReader(const StridedBytes& tensor, SignFlips flips)
    : map_(tensor), flips_(flips), row_(static_cast<const std::byte*>(tensor.data)) {
  const std::int64_t unit_nbytes = std::int64_t{1} << map_.unit_log2;
  units_left_ = map_.nbytes >> map_.unit_log2;
  if (map_.contiguous()) {
    map_.unit_log2 = 0;
    units_left_ = map_.nbytes;
    map_.dims.push_back({static_cast<std::int64_t>(map_.nbytes), 1});
  }
  if (map_.dims[0].stride_nbytes != unit_nbytes) {
    std::int64_t slab = map_.dims[0].size;
    for (std::size_t d = 1; d < map_.dims.size() && across_ == 0; ++d) {
      if (map_.dims[d].stride_nbytes == unit_nbytes)
        across_ = d;
      else
        slab *= map_.dims[d].size;
    }
    if (across_ != 0) slab_units_ = slab;
  }
  index_.assign(map_.dims.size(), 0);
}

std::size_t StridedReader::read(std::byte* out, std::size_t capacity) {
  STAGING_EXPECTS(capacity > 0 && capacity % 32 == 0,
                  "capacity must be a positive multiple of 32, got ", capacity);
  const std::int64_t units = units_for(capacity);
  switch (map_.unit_log2) {
    case 4:
      copy<Unit16>(out, units);
      break;
    case 3:
      copy<std::uint64_t>(out, units);
      break;
    case 2:
      copy<std::uint32_t>(out, units);
      break;
    case 1:
      copy<std::uint16_t>(out, units);
      break;
    default:
      copy<std::uint8_t>(out, units);
      break;
  }
  units_left_ -= static_cast<std::uint64_t>(units);
  const std::size_t nbytes = static_cast<std::size_t>(units) << map_.unit_log2;
  if (flips_.part_nbytes > 0) flip_signs(out, nbytes);
  return nbytes;
}

// Whole slabs where they fit, and whole tiles of them, so that no cache line is read again
// for the next block.
std::int64_t StridedReader::units_for(std::size_t capacity) const {
  const std::int64_t fit =
      static_cast<std::int64_t>(std::min<std::uint64_t>(units_left_, capacity >> map_.unit_log2));
  if (across_ == 0 || static_cast<std::uint64_t>(fit) == units_left_) return fit;
  const std::int64_t slabs = fit / slab_units_;
  const std::int64_t rows = kTileRowNbytes >> map_.unit_log2;
  if (slabs >= rows) return (slabs - slabs % rows) * slab_units_;
  return slabs > 0 ? slabs * slab_units_ : fit;
}

template <typename Unit>
void StridedReader::copy(std::byte* out, std::int64_t units) {
  constexpr std::int64_t kUnit = sizeof(Unit);
  const IndexMap::Dim inner = map_.dims[0];
  while (units > 0) {
    std::int64_t count;
    if (across_ != 0 && at_slab() && units >= 2 * slab_units_) {
      const std::int64_t slabs = std::min(
          {kTileRowNbytes / kUnit, units / slab_units_, map_.dims[across_].size - index_[across_]});
      for (std::int64_t at = 0; at < slab_units_; at += inner.size) {
        copy_tiles<Unit>(out + at * kUnit, slab_units_ * kUnit, row_, inner.stride_nbytes, slabs,
                         inner.size);
        if (at + inner.size < slab_units_) advance(1, 1);
      }
      for (std::size_t d = 1; d < across_; ++d) rewind(d);
      advance(across_, slabs);
      count = slabs * slab_units_;
    } else {
      count = std::min(units, inner.size - column_);
      copy_units<Unit>(out, row_ + column_ * inner.stride_nbytes, inner.stride_nbytes, count);
      column_ += count;
      if (column_ == inner.size) {
        column_ = 0;
        advance(1, 1);
      }
    }
    units -= count;
    out += count * kUnit;
  }
}

bool StridedReader::at_slab() const {
  return column_ == 0 &&
         std::all_of(index_.begin() + 1, index_.begin() + static_cast<std::ptrdiff_t>(across_),
                     [](std::int64_t index) { return index == 0; });
}

void StridedReader::rewind(std::size_t dim) {
  row_ -= index_[dim] * map_.dims[dim].stride_nbytes;
  index_[dim] = 0;
}

// Moves on by `count` in a dimension, not beyond its end, and carries into the next ones.
void StridedReader::advance(std::size_t dim, std::int64_t count) {
  for (; dim < map_.dims.size(); ++dim, count = 1) {
    index_[dim] += count;
    row_ += count * map_.dims[dim].stride_nbytes;
    if (index_[dim] < map_.dims[dim].size) return;
    rewind(dim);
  }
}

void StridedReader::flip_signs(std::byte* out, std::size_t nbytes) const {
  const std::size_t part = static_cast<std::size_t>(flips_.part_nbytes);
  const std::byte even{static_cast<unsigned char>(flips_.even ? 0x80 : 0)};
  const std::byte odd{static_cast<unsigned char>(flips_.odd ? 0x80 : 0)};
  // Blocks are whole elements, of one part or two, and begin with an even one.
  for (std::size_t i = part - 1; i < nbytes; i += 2 * part) {
    out[i] ^= even;
    if (i + part < nbytes) out[i + part] ^= odd;
  }
}

}  // namespace staging
