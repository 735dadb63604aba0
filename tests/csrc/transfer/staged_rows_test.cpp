#include "transfer/staged_rows.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "support/error.h"
#include "support/scripted_runtime.h"
#include "transfer/cost_override.h"

namespace staging {
namespace {

using testing::ScriptedRuntime;

class StagedRowsTest : public ::testing::Test {
 protected:
  static constexpr std::int64_t kRows = 6;
  static constexpr std::int64_t kCols = 40;
  using Element = std::int32_t;
  static constexpr std::size_t kNbytes = kRows * kCols * sizeof(Element);

  void SetUp() override {
    std::memset(device_, 0, kNbytes);
    std::memset(other_device_, 0, kNbytes);
    runtime_.progress_after_queries(4);
  }
  void TearDown() override {
    runtime_.run_all();
    EXPECT_EQ(runtime_.violations(), std::vector<std::string>());
  }

  static void stage(StagedRows& table, std::int64_t row, std::int64_t start,
                    const std::vector<Element>& values) {
    table.stage(row, start, values.data(), static_cast<std::int64_t>(values.size()));
  }
  void apply(StreamHandle stream) {
    StagedRows* tables[] = {&table_};
    apply_rows(tables, {0, stream});
  }
  Element at(std::int64_t row, std::int64_t col) const { return device_[row * kCols + col]; }

  ScriptedRuntime runtime_{2};
  DeviceContext context_{runtime_, 0};
  StreamHandle a_ = runtime_.create_stream(0);
  StreamHandle b_ = runtime_.create_stream(0);
  Element* device_ = static_cast<Element*>(runtime_.allocate_device(0, kNbytes));
  Element* other_device_ = static_cast<Element*>(runtime_.allocate_device(0, kNbytes));
  StagedRows table_{&context_, device_, kRows, kCols, sizeof(Element)};
  StagedRows other_{&context_, other_device_, kRows, kCols, sizeof(Element)};
};

TEST_F(StagedRowsTest, MemoryOfATableThatIsGoneIsKeptUntilItsApplicationsAreDone) {
  auto owner = std::make_shared<int>();
  const std::weak_ptr<int> memory = owner;
  {
    StagedRows table(&context_, device_, kRows, kCols, sizeof(Element), std::move(owner));
    stage(table, 0, 0, {1, 2});
    StagedRows* tables[] = {&table};
    apply_rows(tables, {0, a_});
  }
  EXPECT_FALSE(memory.expired());
  runtime_.run_all();
  context_.reap();
  EXPECT_TRUE(memory.expired());
}

TEST_F(StagedRowsTest, ManyWritesAreOneLaunchAndOneEvent) {
  stage(table_, 0, 0, {1});
  stage(table_, 1, 0, {1});
  apply(a_);
  stage(table_, 2, 5, {7, 8, 9});
  stage(table_, 0, 39, {4});
  stage(table_, 5, 0, {6});
  runtime_.reset_calls();
  apply(a_);
  EXPECT_EQ(runtime_.calls("launch"), 1U);
  EXPECT_EQ(runtime_.calls("record_event"), 1U);
  EXPECT_EQ(runtime_.calls("copy_async"), 0U);
  runtime_.run_all();
  EXPECT_EQ(at(2, 5), 7);
  EXPECT_EQ(at(2, 7), 9);
  EXPECT_EQ(at(2, 8), 0);
  EXPECT_EQ(at(0, 39), 4);
  EXPECT_EQ(at(5, 0), 6);
  EXPECT_EQ(table_.pending(), 0U);
}

TEST_F(StagedRowsTest, OneWriteIsOneCopy) {
  stage(table_, 3, 1, {5, 6});
  apply(a_);
  EXPECT_EQ(runtime_.calls("copy_async"), 1U);
  EXPECT_EQ(runtime_.calls("launch"), 0U);
  runtime_.run_all();
  EXPECT_EQ(at(3, 1), 5);
  EXPECT_EQ(at(3, 2), 6);
}

TEST_F(StagedRowsTest, NothingStagedIsNothingEnqueued) {
  runtime_.reset_calls();
  apply(a_);
  EXPECT_EQ(runtime_.calls("launch") + runtime_.calls("copy_async"), 0U);
  EXPECT_EQ(runtime_.calls("record_event"), 0U);
}

TEST_F(StagedRowsTest, SeveralTablesShareOneLaunch) {
  stage(table_, 1, 1, {11});
  stage(other_, 2, 2, {22, 23});
  StagedRows* tables[] = {&other_, &table_};
  apply_rows(tables, {0, a_});
  EXPECT_EQ(runtime_.calls("launch"), 1U);
  runtime_.run_all();
  EXPECT_EQ(at(1, 1), 11);
  EXPECT_EQ(other_device_[2 * kCols + 3], 23);
}

TEST_F(StagedRowsTest, OfOverlappingWritesTheLastOneStays) {
  stage(table_, 0, 0, {1, 1, 1, 1, 1, 1});
  stage(table_, 0, 2, {2, 2});
  stage(table_, 0, 3, {3});
  stage(table_, 0, 0, {4});
  apply(a_);
  runtime_.run_all();
  const std::vector<Element> row(device_, device_ + 7);
  EXPECT_EQ(row, std::vector<Element>({4, 1, 2, 3, 1, 1, 0}));
}

TEST_F(StagedRowsTest, WhatIsOutOfBoundsIsRefusedAndNothingIsStaged) {
  EXPECT_THROW(stage(table_, -1, 0, {1}), InvalidArgument);
  EXPECT_THROW(stage(table_, kRows, 0, {1}), InvalidArgument);
  EXPECT_THROW(stage(table_, 0, -1, {1}), InvalidArgument);
  EXPECT_THROW(stage(table_, 0, kCols + 1, {}), InvalidArgument);
  EXPECT_THROW(stage(table_, 0, kCols - 1, {1, 2}), InvalidArgument);
  stage(table_, 0, kCols, {});
  EXPECT_EQ(table_.pending(), 0U);
  EXPECT_EQ(table_.pending_nbytes(), 0U);
}

TEST_F(StagedRowsTest, WhatCouldNotBeEnqueuedStaysStaged) {
  stage(table_, 0, 0, {1});
  stage(table_, 1, 0, {2});
  apply(a_);
  for (const char* method : {"launch", "record_event", "capture_status"}) {
    stage(table_, 2, 0, {3});
    stage(table_, 3, 0, {4});
    runtime_.fail(method);
    EXPECT_THROW(apply(a_), DeviceError) << method;
    EXPECT_EQ(table_.pending(), 2U) << method;
    apply(b_);
    EXPECT_EQ(table_.pending(), 0U);
    runtime_.run_all();
    EXPECT_EQ(at(3, 0), 4);
  }
  context_.trim();
  EXPECT_EQ(context_.ring_stats().in_flight_slots, 0U);
}

TEST_F(StagedRowsTest, UnderCaptureItIsRefusedAndStaysStaged) {
  stage(table_, 0, 0, {1});
  runtime_.begin_capture(0, a_);
  EXPECT_THROW(apply(a_), StateError);
  runtime_.destroy_graph(runtime_.end_capture(0, a_));
  EXPECT_EQ(table_.pending(), 1U);
}

TEST_F(StagedRowsTest, DiscardForgetsWhatWasStaged) {
  stage(table_, 0, 0, {1, 2});
  stage(table_, 1, 0, {3});
  EXPECT_EQ(table_.pending_nbytes(), 3 * sizeof(Element));
  EXPECT_EQ(table_.discard(), 2U);
  apply(a_);
  runtime_.run_all();
  EXPECT_EQ(at(0, 0), 0);
}

TEST_F(StagedRowsTest, ApplicationsOnTwoStreamsKeepTheirOrder) {
  stage(table_, 0, 0, {1});
  apply(a_);
  stage(table_, 0, 0, {2});
  apply(b_);
  EXPECT_FALSE(runtime_.step(0, b_));  // it waits for the other stream
  runtime_.run_all();
  EXPECT_EQ(at(0, 0), 2);
}

TEST_F(StagedRowsTest, AnEmptyApplicationComesAfterTheEarlierOnesToo) {
  stage(table_, 0, 0, {1});
  apply(a_);
  runtime_.reset_calls();
  apply(b_);
  EXPECT_EQ(runtime_.calls("stream_wait_event"), 1U);
  EXPECT_EQ(runtime_.calls("record_event"), 0U);
  apply(a_);
  EXPECT_EQ(runtime_.calls("stream_wait_event"), 1U);
}

TEST_F(StagedRowsTest, LaterWritesDoNotReachAnEarlierApplication) {
  stage(table_, 0, 0, {1});
  apply(a_);
  stage(table_, 0, 0, {2});
  runtime_.run_all();
  EXPECT_EQ(at(0, 0), 1);
}

TEST_F(StagedRowsTest, OnTheHostItWritesAtOnce) {
  std::array<std::int16_t, 12> memory{};
  StagedRows table(nullptr, memory.data(), 3, 4, sizeof(std::int16_t));
  const std::array<std::int16_t, 2> values{5, 6};
  table.stage(1, 2, values.data(), 2);
  table.stage(1, 3, values.data(), 1);
  EXPECT_EQ(memory[6], 0);
  StagedRows* tables[] = {&table};
  apply_rows(tables, {});
  EXPECT_EQ(memory[6], 5);
  EXPECT_EQ(memory[7], 5);
  EXPECT_EQ(table.pending(), 0U);
}

// Elements of every width, short and long rows: against writes that are applied one by one.
class StagedRowsOfWidth : public ::testing::TestWithParam<std::size_t> {};

TEST_P(StagedRowsOfWidth, RandomWritesEqualWritesInTurn) {
  const std::size_t width = GetParam();
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto pick = [&](std::int64_t below) {
      return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(below));
    };
    ScriptedRuntime runtime(1);
    DeviceContext context(runtime, 0);
    const StreamHandle streams[] = {runtime.create_stream(0), runtime.create_stream(0)};
    const std::int64_t rows = 1 + pick(8);
    const std::int64_t cols = 1 + pick(seed % 10 == 0 ? 3000 : 40);
    const std::size_t nbytes = static_cast<std::size_t>(rows * cols) * width;
    auto* device = static_cast<std::byte*>(runtime.allocate_device(0, nbytes + 32));
    std::memset(device, 0x5a, nbytes + 32);
    std::vector<std::byte> expected(device, device + nbytes + 32);
    // The table begins anywhere that its elements are aligned.
    const std::size_t shift = width * (random() % (16 / width));
    StagedRows table(&context, device + shift, rows, cols, width);
    StagedRows* tables[] = {&table};
    for (int round = 0; round < 4; ++round) {
      for (std::int64_t i = pick(30); i > 0; --i) {
        const std::int64_t row = pick(rows);
        const std::int64_t start = pick(cols + 1);
        const std::int64_t count = pick(cols - start + 1);
        std::vector<std::byte> values(static_cast<std::size_t>(count) * width);
        for (std::byte& value : values) value = static_cast<std::byte>(random());
        table.stage(row, start, values.data(), count);
        if (count == 0) continue;
        std::memcpy(expected.data() + shift + static_cast<std::size_t>(row * cols + start) * width,
                    values.data(), values.size());
      }
      apply_rows(tables, {0, streams[pick(2)]});
    }
    runtime.run_all();
    ASSERT_EQ(std::vector<std::byte>(device, device + nbytes + 32), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, StagedRowsOfWidth, ::testing::Values(1, 2, 4, 8, 16));

}  // namespace
}  // namespace staging
