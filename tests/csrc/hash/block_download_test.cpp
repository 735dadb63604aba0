#include "hash/block_download.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "hash/blake3_vectors.h"
#include "support/error.h"
#include "support/scripted_runtime.h"

namespace staging {
namespace {

using testing::blake3_pattern;
using testing::ScriptedRuntime;

class BlockDownloadTest : public ::testing::Test {
 protected:
  void SetUp() override { runtime_.progress_after_queries(1); }  // waits end
  void TearDown() override { EXPECT_EQ(runtime_.violations(), std::vector<std::string>()); }

  ScriptedRuntime runtime_;
  DeviceContext context_{runtime_, 0};
  PinnedPool pool_{runtime_};
  StreamHandle stream_ = runtime_.create_stream(0);
};

TEST_F(BlockDownloadTest, BringsAllBytesInOrder) {
  for (const std::size_t nbytes : {0UL, 1UL, 999UL, 1000UL, 1001UL, 3000UL, 10'500UL}) {
    const std::vector<unsigned char> input = blake3_pattern(nbytes);
    BlockDownload download(context_, pool_, {0, stream_}, input.data(), nbytes, 1000);
    std::vector<unsigned char> output;
    for (auto block = download.next(); !block.empty(); block = download.next()) {
      const auto* begin = reinterpret_cast<const unsigned char*>(block.data());
      output.insert(output.end(), begin, begin + block.size());
    }
    EXPECT_EQ(output, input);
    EXPECT_TRUE(download.next().empty());
  }
}

TEST_F(BlockDownloadTest, LeavesTheBlockThatWasReturnedAlone) {
  const std::vector<unsigned char> input = blake3_pattern(6000);
  BlockDownload download(context_, pool_, {0, stream_}, input.data(), input.size(), 1000);
  for (std::size_t at = 0; at < input.size(); at += 1000) {
    const std::span<const std::byte> block = download.next();
    runtime_.run_all();  // every copy that was enqueued has run
    EXPECT_EQ(std::memcmp(block.data(), input.data() + at, 1000), 0) << at;
  }
}

TEST_F(BlockDownloadTest, HoldsAFewBlocksAndAFewEvents) {
  const std::vector<unsigned char> input = blake3_pattern(100'000);
  BlockDownload download(context_, pool_, {0, stream_}, input.data(), input.size(), 1000);
  while (!download.next().empty()) {
  }
  EXPECT_EQ(pool_.stats().count, 3U);
  EXPECT_LE(context_.events().created(), 4U);
}

TEST_F(BlockDownloadTest, DroppedEarlyItKeepsItsMemoryUntilTheCopiesAreDone) {
  runtime_.progress_after_queries(0);
  const std::vector<unsigned char> input = blake3_pattern(5000);
  {
    BlockDownload dropped(context_, pool_, {0, stream_}, input.data(), input.size(), 1000);
  }
  EXPECT_EQ(pool_.stats().in_flight_count, 3U);
  runtime_.run_all();
  EXPECT_EQ(pool_.stats().in_flight_count, 0U);
}

TEST_F(BlockDownloadTest, ALimitedPoolGivesItFewerAndSmallerBlocks) {
  const std::vector<unsigned char> input = blake3_pattern(100'003);
  // The limit, and how many blocks of what size come of it.
  const std::vector<std::vector<std::size_t>> cases = {{65'536, 3, 16'384},
                                                       {36'864, 2, 16'384},
                                                       {16'384, 2, 8192},
                                                       {8192, 2, 4096},
                                                       {4096, 1, 4096}};
  for (const auto& limited : cases) {
    pool_.trim();
    pool_.set_limit(limited[0]);
    BlockDownload download(context_, pool_, {0, stream_}, input.data(), input.size(), 16'384);
    EXPECT_EQ(pool_.stats().count, limited[1]) << limited[0];
    std::size_t at = 0;
    for (auto block = download.next(); !block.empty(); block = download.next()) {
      runtime_.run_all();  // also a copy into the only block, once it is lent no longer
      EXPECT_EQ(block.size(), std::min(limited[2], input.size() - at)) << limited[0];
      EXPECT_EQ(std::memcmp(block.data(), input.data() + at, block.size()), 0) << at;
      at += block.size();
    }
    EXPECT_EQ(at, input.size());
  }
}

TEST_F(BlockDownloadTest, WhereNotOneBlockFitsItSaysSoAndHoldsNothing) {
  pool_.set_limit(4095);
  const std::vector<unsigned char> input = blake3_pattern(10'000);
  EXPECT_THROW(BlockDownload(context_, pool_, {0, stream_}, input.data(), input.size()),
               OutOfMemory);
  EXPECT_EQ(pool_.stats().count, 0U);
}

TEST_F(BlockDownloadTest, IsRefusedUnderCapture) {
  runtime_.begin_capture(0, stream_);
  const std::vector<unsigned char> input = blake3_pattern(10);
  EXPECT_THROW(BlockDownload(context_, pool_, {0, stream_}, input.data(), 10), StateError);
  runtime_.destroy_graph(runtime_.end_capture(0, stream_));
}

TEST_F(BlockDownloadTest, AFailedCopyIsReported) {
  const std::vector<unsigned char> input = blake3_pattern(5000);
  for (const char* method : {"copy_async", "record_event"}) {
    BlockDownload download(context_, pool_, {0, stream_}, input.data(), input.size(), 1000);
    (void)download.next();
    runtime_.fail(method);
    EXPECT_THROW(download.next(), DeviceError) << method;
  }
}

TEST_F(BlockDownloadTest, ThatCannotBeginKeepsTheBlocksThatAreOnTheirWay) {
  const std::vector<unsigned char> input = blake3_pattern(5000);
  for (const char* method : {"copy_async", "record_event"}) {
    runtime_.progress_after_queries(0);
    runtime_.fail(method, testing::kErrorInvalidValue, /*nth=*/2);
    EXPECT_THROW(BlockDownload(context_, pool_, {0, stream_}, input.data(), input.size(), 1000),
                 DeviceError);
    // A failed record is made up for by a wait, which ran the first copy as well.
    EXPECT_EQ(pool_.stats().in_flight_count, method == std::string("copy_async") ? 1U : 0U);
    runtime_.run_all();
    const PinnedStats stats = pool_.stats();
    EXPECT_EQ(stats.in_flight_count, 0U) << method;
    EXPECT_EQ(stats.count, 0U) << method;
    EXPECT_EQ(stats.lost_nbytes, 0U) << method;
  }
}

}  // namespace
}  // namespace staging
