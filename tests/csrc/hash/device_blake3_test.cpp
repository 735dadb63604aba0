#include "hash/device_blake3.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "hash/blake3.h"
#include "hash/blake3_vectors.h"
#include "hash/gather.h"
#include "support/error.h"
#include "support/scripted_runtime.h"

namespace staging {
namespace {

using testing::blake3_pattern;
using testing::blake3_vectors;
using testing::gather;
using testing::hex;
using testing::ScriptedRuntime;

constexpr std::size_t kMiB = std::size_t{1} << 20;

// Bytes at a chosen offset from a 16-byte boundary, with nothing behind them, so that a
// sanitizer sees a read too far.
class Placed {
 public:
  Placed(const unsigned char* bytes, std::size_t nbytes, std::size_t misalignment)
      : memory_(static_cast<unsigned char*>(
                    ::operator new(nbytes + misalignment + 1, std::align_val_t{16})),
                Free{}),
        data_(memory_.get() + misalignment) {
    std::copy_n(bytes, nbytes, data_);
  }
  const unsigned char* data() const { return data_; }

 private:
  struct Free {
    void operator()(unsigned char* p) const { ::operator delete(p, std::align_val_t{16}); }
  };
  std::unique_ptr<unsigned char, Free> memory_;
  unsigned char* data_;
};

class DeviceBlake3Test : public ::testing::Test {
 protected:
  DeviceBlake3Test() { runtime_.set_eager(true); }

  std::vector<Blake3Digest> digests(const std::vector<StridedBytes>& tensors) {
    const DeviceBlake3 plan(tensors);
    std::vector<kernels::Blake3Node> workspace(plan.workspace_nbytes() / 32);
    std::vector<kernels::Blake3Node> out(tensors.size() + 1);
    std::fill_n(out.back().words, 8, 0xABABABABU);
    launches_before_ = runtime_.calls("launch");
    plan.enqueue(runtime_, 0, nullptr, workspace.data(), out.data());
    EXPECT_EQ(runtime_.calls("launch") - launches_before_, plan.launch_count());
    for (const std::uint32_t word : out.back().words) EXPECT_EQ(word, 0xABABABABU);
    std::vector<Blake3Digest> result(tensors.size());
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      std::memcpy(result[t].data(), out[t].words, 32);
    }
    return result;
  }

  Blake3Digest digest(const unsigned char* data, std::size_t nbytes) {
    const std::int64_t size = static_cast<std::int64_t>(nbytes);
    const std::int64_t stride = 1;
    return digests({{data, 1, {&size, 1}, {&stride, 1}}})[0];
  }

  ScriptedRuntime runtime_;
  std::size_t launches_before_ = 0;
};

TEST_F(DeviceBlake3Test, MatchesTheOfficialVectors) {
  for (const auto& vector : blake3_vectors()) {
    const std::vector<unsigned char> input = blake3_pattern(vector.input_nbytes);
    EXPECT_EQ(hex(digest(input.data(), input.size())), vector.hash) << vector.input_nbytes;
  }
}

TEST_F(DeviceBlake3Test, MatchesTheHostAroundEveryPowerOfTwoOfChunks) {
  const std::vector<unsigned char> input = blake3_pattern(2 * kMiB + 1);
  for (std::size_t nbytes = 1024; nbytes <= 2 * kMiB; nbytes *= 2) {
    for (const std::size_t n : {nbytes - 1, nbytes, nbytes + 1}) {
      EXPECT_EQ(digest(input.data(), n), blake3(input.data(), n)) << n;
    }
  }
}

TEST_F(DeviceBlake3Test, MatchesTheHostAtEveryAlignmentAndTail) {
  const std::vector<unsigned char> input = blake3_pattern(40'000);
  for (std::size_t misalignment = 0; misalignment < 16; ++misalignment) {
    for (const std::size_t n : {1UL, 15UL, 16UL, 17UL, 63UL, 100UL, 1025UL, 32'768UL, 33'333UL}) {
      const Placed placed(input.data(), n, misalignment);
      EXPECT_EQ(digest(placed.data(), n), blake3(input.data(), n))
          << n << " bytes, " << misalignment << " past a boundary";
    }
  }
  for (std::size_t n = 0; n < 300; ++n) {
    const Placed placed(input.data(), n, 0);
    EXPECT_EQ(digest(placed.data(), n), blake3(input.data(), n)) << n;
  }
}

// More than 1024 blocks of 128 KiB: two launches of trees.
TEST_F(DeviceBlake3Test, MatchesTheHostForTreesOfSeveralLevels) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "one thread, and a minute of it under the thread sanitizer";
#endif
  const std::vector<unsigned char> input = blake3_pattern(129 * kMiB + 77);
  EXPECT_EQ(digest(input.data(), input.size()), blake3(input.data(), input.size()));
  EXPECT_EQ(runtime_.calls("launch") - launches_before_, 3U);
}

TEST_F(DeviceBlake3Test, DigestsManyTensorsInOneLaunch) {
  std::mt19937 random(11);
  const std::vector<unsigned char> input = blake3_pattern(300'000);
  std::vector<std::int64_t> sizes;
  for (int i = 0; i < 64; ++i) sizes.push_back(random() % 3000);
  sizes[5] = 0;
  const std::int64_t stride = 1;
  std::vector<StridedBytes> tensors;
  for (const std::int64_t& size : sizes) {
    tensors.push_back({input.data() + random() % 1000, 1, {&size, 1}, {&stride, 1}});
  }
  const std::vector<Blake3Digest> result = digests(tensors);
  EXPECT_EQ(runtime_.calls("launch") - launches_before_, 1U);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    EXPECT_EQ(result[t], blake3(tensors[t].data, static_cast<std::size_t>(sizes[t]))) << t;
  }
}

TEST_F(DeviceBlake3Test, DigestsTensorsOfEverySizeAndLayoutTogether) {
  const std::vector<unsigned char> input = blake3_pattern(kMiB);
  std::mt19937 random(13);
  std::vector<std::vector<std::int64_t>> sizes, strides;
  std::vector<StridedBytes> tensors;
  for (int t = 0; t < 150; ++t) {
    const std::int64_t rows = 1 + random() % 200;
    const std::int64_t columns = 1 + random() % 700;
    if (t % 3 == 0) {  // transposed
      sizes.push_back({columns, rows});
      strides.push_back({4, 4 * columns});
    } else {
      sizes.push_back({rows, columns});
      strides.push_back({4 * columns, 4});
    }
  }
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    tensors.push_back({input.data() + 4 * (random() % 100), 4, sizes[t], strides[t]});
  }
  const std::vector<Blake3Digest> result = digests(tensors);
  EXPECT_LE(runtime_.calls("launch") - launches_before_, 7U);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::vector<unsigned char> bytes = gather(tensors[t]);
    EXPECT_EQ(result[t], blake3(bytes.data(), bytes.size())) << t;
  }
}

TEST_F(DeviceBlake3Test, ReadsAnyStridesInLogicalOrder) {
  const std::vector<unsigned char> input = blake3_pattern(kMiB);
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](unsigned n) { return static_cast<std::int64_t>(random() % n); };
    const std::int64_t element = std::int64_t{1} << below(5);
    const int ndim = static_cast<int>(below(6));
    std::vector<std::int64_t> sizes, strides;
    std::int64_t count = 1;
    for (int d = 0; d < ndim; ++d) {
      sizes.push_back(1 + below(d < 2 ? 12 : 6));
      // Overlaps, expansions and gaps.
      strides.push_back(element * below(40));
      count *= sizes.back();
    }
    ASSERT_LE(count, 40'000);
    const StridedBytes tensor{input.data() + element * below(16), element, sizes, strides};
    const std::vector<unsigned char> bytes = gather(tensor);
    EXPECT_EQ(digests({tensor})[0], blake3(bytes.data(), bytes.size())) << "seed " << seed;
  }
}

TEST_F(DeviceBlake3Test, ReadsStridedTensorsOfSeveralBlocks) {
  const std::vector<unsigned char> input = blake3_pattern(2 * kMiB);
  // 1000 x 211 float16, transposed, and a crop of uint8 rows of 1001 bytes.
  const std::vector<std::int64_t> sizes{211, 1000}, strides{2, 422};
  const std::vector<std::int64_t> crop_sizes{700, 999}, crop_strides{1501, 1};
  const StridedBytes tensors[] = {{input.data(), 2, sizes, strides},
                                  {input.data() + 3, 1, crop_sizes, crop_strides}};
  const std::vector<Blake3Digest> result = digests({tensors[0], tensors[1]});
  for (int t = 0; t < 2; ++t) {
    const std::vector<unsigned char> bytes = gather(tensors[t]);
    EXPECT_EQ(result[t], blake3(bytes.data(), bytes.size())) << t;
  }
}

TEST_F(DeviceBlake3Test, EmptyTensorsNeedNoMemory) {
  const std::vector<std::int64_t> sizes{3, 0, 5}, strides{0, 5, 1};
  EXPECT_EQ(digests({{nullptr, 4, sizes, strides}})[0], blake3(nullptr, 0));
}

TEST(DeviceBlake3, SaysWhatCannotBeIndexed) {
  const std::int64_t many = std::int64_t{1} << 31;
  const std::vector<std::int64_t> sizes{2, many}, strides{1, 2};
  const StridedBytes tensor{nullptr, 1, sizes, strides};
  EXPECT_FALSE(DeviceBlake3::can_index(IndexMap(tensor)));
  EXPECT_THROW(DeviceBlake3({&tensor, 1}), InvalidArgument);
  // The outermost dimension may be as large as it likes.
  const std::vector<std::int64_t> long_sizes{many * 4, 2}, long_strides{4, 2};
  EXPECT_TRUE(DeviceBlake3::can_index(IndexMap({nullptr, 1, long_sizes, long_strides})));
}

}  // namespace
}  // namespace staging
