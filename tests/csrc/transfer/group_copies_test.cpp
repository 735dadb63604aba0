#include "transfer/group_copies.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "support/error.h"
#include "support/scripted_runtime.h"
#include "transfer/cost_override.h"

namespace staging {
namespace {

using testing::CostOverride;
using testing::ScriptedRuntime;
using Part = GroupCopies::Part;

class GroupCopiesTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kMembers = 5;
  static constexpr std::size_t kNbytes = 200;  // of a member: padding lies behind it
  static constexpr std::size_t kStride = 256;
  static constexpr std::size_t kArena = kMembers * kStride;

  explicit GroupCopiesTest(bool keep_tails = true) {
    std::memset(host_, 0, kArena);
    std::memset(device_, 0, kArena);
    group_ = std::make_shared<GroupCopies>(
        context_,
        GroupCopies::Arenas{host_, /*host_is_pinned=*/true, device_, kArena, owner_, owner_},
        keep_tails);
    const std::shared_ptr<CopyOrder> order(group_, &group_->order());
    for (std::uint32_t i = 0; i < kMembers; ++i) {
      group_->add_member(i * kStride, kNbytes);
      members_.push_back(std::make_unique<BufferCopies>(
          context_,
          BufferCopies::Arrays{host_ + i * kStride, true, device_ + i * kStride, kNbytes, owner_,
                               owner_},
          Reuse::kSnapshot, order));
      group_->attach(i, members_.back().get());
    }
    runtime_.progress_after_queries(4);  // a wait gets there in the end
  }
  void TearDown() override {
    runtime_.run_all();
    EXPECT_EQ(runtime_.violations(), std::vector<std::string>());
    members_.clear();
    group_.reset();
    runtime_.free_pinned(host_);
  }

  void write(std::uint32_t member, char value) {
    std::memset(host_ + member * kStride, value, kNbytes);
  }
  // The device's bytes of a member, as text with its runs: "3xa 197x0".
  std::string device(std::uint32_t member) const { return runs(device_ + member * kStride); }
  std::string host(std::uint32_t member) const { return runs(host_ + member * kStride); }
  static std::string runs(const std::byte* bytes) {
    std::string text;
    for (std::size_t i = 0; i < kNbytes;) {
      std::size_t end = i;
      while (end < kNbytes && bytes[end] == bytes[i]) ++end;
      const char value = static_cast<char>(bytes[i]);
      text += std::to_string(end - i) + "x" + (value == 0 ? '0' : value) + " ";
      i = end;
    }
    text.pop_back();
    return text;
  }
  std::vector<Part> whole() const {
    std::vector<Part> parts;
    for (std::uint32_t i = 0; i < kMembers; ++i) parts.push_back({i, kNbytes});
    return parts;
  }
  void upload(StreamHandle stream, const std::vector<Part>& parts) {
    group_->upload({0, stream}, parts);
  }

  ScriptedRuntime runtime_{2};
  DeviceContext context_{runtime_, 0};
  StreamHandle a_ = runtime_.create_stream(0);
  StreamHandle b_ = runtime_.create_stream(0);
  std::byte* host_ = static_cast<std::byte*>(runtime_.allocate_pinned(0, kArena));
  std::byte* device_ = static_cast<std::byte*>(runtime_.allocate_device(0, kArena));
  std::shared_ptr<int> owner_ = std::make_shared<int>(1);
  std::shared_ptr<GroupCopies> group_;
  std::vector<std::unique_ptr<BufferCopies>> members_;
};

TEST_F(GroupCopiesTest, WholeNeighboursAreOneTransferAndOneEvent) {
  for (int i = 0; i < 4; ++i) {  // until there are events enough
    upload(a_, whole());
    runtime_.run_all();
    context_.trim();
  }
  upload(a_, whole());
  for (std::uint32_t i = 0; i < kMembers; ++i) write(i, static_cast<char>('a' + i));
  runtime_.reset_calls();
  upload(a_, whole());
  EXPECT_EQ(runtime_.calls("copy_async"), 1U);
  EXPECT_EQ(runtime_.calls("record_event"), 1U);
  EXPECT_EQ(runtime_.calls("current_device"), 1U);
  EXPECT_EQ(runtime_.calls("capture_status"), 1U);
  EXPECT_EQ(runtime_.calls(), 4U);
  runtime_.run_all();
  EXPECT_EQ(device(0), "200xa");
  EXPECT_EQ(device(4), "200xe");
}

TEST_F(GroupCopiesTest, PrefixesAreOneLaunchAndOneEventAndNothingBehindThemIsTouched) {
  const CostOverride costs(0, CopyMethod::kKernel);
  upload(a_, {{0, 200}, {1, 200}, {2, 200}, {3, 200}, {4, 200}});
  for (std::uint32_t i = 0; i < kMembers; ++i) write(i, static_cast<char>('a' + i));
  runtime_.reset_calls();
  upload(a_, {{0, 3}, {2, 50}, {3, 200}, {4, 7}});
  EXPECT_EQ(runtime_.calls("launch"), 1U);
  EXPECT_EQ(runtime_.calls("record_event"), 1U);
  EXPECT_EQ(runtime_.calls("copy_async") + runtime_.calls("copy_batch_async"), 0U);
  runtime_.run_all();
  EXPECT_EQ(device(0), "3xa 197x0");
  EXPECT_EQ(device(1), "200x0");
  EXPECT_EQ(device(2), "50xc 150x0");
  EXPECT_EQ(device(3), "200xd");
  EXPECT_EQ(device(4), "7xe 193x0");
}

TEST_F(GroupCopiesTest, TheHostArraysMayBeOverwrittenAtOnce) {
  for (const CopyMethod method : {CopyMethod::kCopy, CopyMethod::kBatch}) {
    const CostOverride costs(0, method);
    for (std::uint32_t i = 0; i < kMembers; ++i) write(i, 'o');
    upload(a_, {{0, 200}, {2, 100}});
    for (std::uint32_t i = 0; i < kMembers; ++i) write(i, 'n');
    runtime_.run_all();
    EXPECT_EQ(device(0), "200xo");
    EXPECT_EQ(device(2), "100xo 100x0");
  }
}

TEST_F(GroupCopiesTest, NothingToCopyIsNoCall) {
  runtime_.reset_calls();
  upload(a_, {});
  EXPECT_EQ(runtime_.calls(), 0U);
  upload(a_, {{0, 0}, {3, 0}});
  EXPECT_EQ(runtime_.calls("copy_async") + runtime_.calls("record_event"), 0U);
}

TEST_F(GroupCopiesTest, CopiesOnTwoStreamsKeepTheirOrder) {
  write(0, '1');
  upload(a_, {{0, 200}});
  write(0, '2');
  upload(b_, {{0, 200}});
  EXPECT_FALSE(runtime_.step(0, b_));  // it waits for the other stream
  runtime_.run_all();
  EXPECT_EQ(device(0), "200x2");
}

TEST_F(GroupCopiesTest, AMembersOwnCopyComesAfterTheGroups) {
  write(1, '1');
  upload(a_, whole());
  write(1, '2');
  members_[1]->upload({0, b_}, kNbytes);
  EXPECT_FALSE(runtime_.step(0, b_));
  runtime_.run_all();
  EXPECT_EQ(device(1), "200x2");
}

TEST_F(GroupCopiesTest, TheGroupsCopyComesAfterItsMembersOwn) {
  write(1, '1');
  members_[1]->upload({0, b_}, kNbytes);
  write(1, '2');
  upload(a_, whole());
  EXPECT_FALSE(runtime_.step(0, a_));
  runtime_.run_all();
  EXPECT_EQ(device(1), "200x2");
}

TEST_F(GroupCopiesTest, ItDoesNotWaitForMembersThatItDoesNotName) {
  members_[1]->upload({0, b_}, kNbytes);
  upload(a_, {{0, 200}, {2, 200}});
  EXPECT_TRUE(runtime_.step(0, a_));
}

TEST_F(GroupCopiesTest, WhatWasWaitedForOnceIsNotWaitedForAgain) {
  members_[1]->upload({0, b_}, kNbytes);
  upload(a_, whole());
  EXPECT_EQ(group_->order().members_ahead(), 0U);
  runtime_.reset_calls();
  upload(a_, whole());
  EXPECT_EQ(runtime_.calls("stream_wait_event"), 0U);
}

TEST_F(GroupCopiesTest, WhileADownloadIsInFlightItsMemberIsCopiedInStreamOrder) {
  std::memset(device_ + kStride, 'd', kNbytes);
  for (std::uint32_t i = 0; i < kMembers; ++i) write(i, 'h');
  members_[1]->download({0, a_}, kNbytes);
  EXPECT_TRUE(group_->upload({0, a_}, whole()));
  runtime_.run_all();
  EXPECT_EQ(device(1), "200xd");  // the device's own bytes
  EXPECT_EQ(device(0), "200xh");
  EXPECT_EQ(device(2), "200xh");
}

TEST_F(GroupCopiesTest, DownloadsGuardTheirMembersAndNoOthers) {
  for (std::uint32_t i = 0; i < kMembers; ++i) {
    std::memset(device_ + i * kStride, 'a' + static_cast<int>(i), kNbytes);
  }
  group_->download({0, a_}, std::vector<Part>{{0, 200}, {2, 30}});
  EXPECT_TRUE(members_[0]->host_in_flight());
  EXPECT_TRUE(members_[2]->host_in_flight());
  EXPECT_FALSE(members_[1]->host_in_flight());
  members_[2]->wait_host();
  EXPECT_EQ(host(0), "200xa");
  EXPECT_EQ(host(2), "30xc 170x0");
  EXPECT_EQ(host(1), "200x0");
}

TEST_F(GroupCopiesTest, ADownloadOfManyIsOneOperationAndOneEvent) {
  for (const CopyMethod method : {CopyMethod::kBatch, CopyMethod::kKernel}) {
    const CostOverride costs(0, method);
    group_->download({0, a_}, std::vector<Part>{{0, 20}, {2, 30}, {4, 5}});
    runtime_.run_all();
    runtime_.reset_calls();
    group_->download({0, a_}, std::vector<Part>{{0, 20}, {2, 30}, {4, 5}});
    EXPECT_EQ(runtime_.calls("copy_batch_async") + runtime_.calls("launch"), 1U);
    EXPECT_EQ(runtime_.calls("copy_async"), 0U);
    EXPECT_EQ(runtime_.calls("record_event"), 1U);
    runtime_.run_all();
  }
}

TEST_F(GroupCopiesTest, AnUploadAfterADownloadOfTheGroupIsTheDevicesBytes) {
  std::memset(device_, 'd', kArena);
  for (std::uint32_t i = 0; i < kMembers; ++i) write(i, 'h');
  group_->download({0, a_}, whole());
  upload(b_, whole());
  runtime_.run_all();
  EXPECT_EQ(device(3), "200xd");
}

TEST_F(GroupCopiesTest, UnderCaptureEachMemberIsCapturedAndRefilled) {
  write(0, '1');
  write(3, '1');
  runtime_.begin_capture(0, a_);
  upload(a_, {{0, 200}, {3, 100}});
  EXPECT_THROW(group_->download({0, a_}, whole()), StateError);
  const std::uint64_t graph = runtime_.end_capture(0, a_);
  write(0, '2');
  runtime_.launch_graph(graph, 0, a_);
  runtime_.run_all();
  EXPECT_EQ(device(0), "200x1");
  members_[0]->refill({0, a_}, kNbytes);
  runtime_.launch_graph(graph, 0, a_);
  runtime_.run_all();
  EXPECT_EQ(device(0), "200x2");
  EXPECT_EQ(device(3), "100x1 100x0");
  // A copy of the group comes after the replays so far.
  runtime_.launch_graph(graph, 0, a_);
  write(0, '3');
  upload(b_, whole());
  runtime_.run_all();
  EXPECT_EQ(device(0), "200x3");
  runtime_.destroy_graph(graph);
}

TEST_F(GroupCopiesTest, AFailedCallLeavesNothingInFlightAndTheNextOneWorks) {
  const CostOverride costs(0, CopyMethod::kCopy);
  const std::vector<Part> parts{{0, 20}, {2, 30}, {4, 5}};
  upload(a_, parts);
  runtime_.run_all();
  for (const char* method : {"copy_async", "record_event", "current_device", "capture_status"}) {
    for (const std::size_t nth : {1UL, 2UL, 3UL}) {
      runtime_.clear_failures();
      runtime_.fail(method, testing::kErrorInvalidValue, nth);
      try {
        upload(a_, parts);
      } catch (const DeviceError& error) {
        EXPECT_EQ(error.call(), method);
        EXPECT_EQ(runtime_.pending(0, a_), 0U) << method << " " << nth;
      }
      runtime_.clear_failures();
      write(2, static_cast<char>('0' + nth));
      upload(b_, parts);
      runtime_.run_all();
      EXPECT_EQ(device(2), std::string("30x") + static_cast<char>('0' + nth) + " 170x0");
    }
  }
  context_.trim();
  EXPECT_EQ(context_.ring_stats().in_flight_slots, 0U);
}

TEST_F(GroupCopiesTest, MembersMayOutliveTheGroup) {
  upload(a_, whole());
  std::weak_ptr<GroupCopies> watch = group_;
  group_.reset();
  write(1, '7');
  members_[1]->upload({0, b_}, kNbytes);
  runtime_.run_all();
  EXPECT_EQ(device(1), "200x7");
  EXPECT_FALSE(watch.expired());  // the order of its copies is still needed
  members_.clear();
  EXPECT_TRUE(watch.expired());
}

TEST_F(GroupCopiesTest, TheDevicesArenaIsKeptUntilTheLastCopyIsDone) {
  auto arena = std::make_shared<int>(1);
  const std::weak_ptr<int> kept = arena;
  {
    auto group = std::make_shared<GroupCopies>(
        context_, GroupCopies::Arenas{host_, true, device_, kArena, owner_, std::move(arena)},
        true);
    group->add_member(0, kNbytes);
    BufferCopies member(context_, {host_, true, device_, kNbytes, owner_, owner_}, Reuse::kSnapshot,
                        {group, &group->order()});
    group->attach(0, &member);
    const Part part{0, kNbytes};
    group->upload({0, a_}, {&part, 1});
  }
  context_.reap();
  EXPECT_FALSE(kept.expired());
  runtime_.run_all();
  context_.reap();
  EXPECT_TRUE(kept.expired());
}

TEST_F(GroupCopiesTest, MembersAreLaidOutInOrder) {
  const GroupCopies::Arenas arenas{host_, true, device_, kArena, owner_, owner_};
  GroupCopies group(context_, arenas, true);
  group.add_member(256, 100);
  EXPECT_THROW(group.add_member(256, 10), InvalidArgument);
  EXPECT_THROW(group.add_member(512 + 8, 10), InvalidArgument);
  EXPECT_THROW(group.add_member(1024, kArena), InvalidArgument);
  EXPECT_EQ(group.add_member(512, 0), 1U);
}

TEST_F(GroupCopiesTest, CountsSayWhatWasCopied) {
  upload(a_, {{0, 200}, {1, 100}});
  group_->download({0, a_}, std::vector<Part>{{4, 3}});
  const GroupCounts counts = group_->counts();
  EXPECT_EQ(counts.to_gpu, 1U);
  EXPECT_EQ(counts.to_gpu_nbytes, 300U);
  EXPECT_EQ(counts.to_cpu, 1U);
  EXPECT_EQ(counts.to_cpu_nbytes, 3U);
  EXPECT_EQ(counts.operations, 2U);
  EXPECT_EQ(members_[1]->counts().to_gpu_nbytes, 100U);
}

class GroupCopiesWithoutTails : public GroupCopiesTest {
 protected:
  GroupCopiesWithoutTails() : GroupCopiesTest(/*keep_tails=*/false) {}
};

TEST_F(GroupCopiesWithoutTails, TheArenaIsCopiedWholeWhereThatIsCheaper) {
  const CostOverride costs(0, CopyMethod::kCopy);
  const std::vector<Part> parts{{0, 3}, {1, 50}, {2, 200}, {4, 7}};
  for (std::uint32_t i = 0; i < kMembers; ++i) write(i, static_cast<char>('a' + i));
  upload(a_, parts);
  runtime_.reset_calls();
  upload(a_, parts);
  EXPECT_EQ(runtime_.calls("copy_async"), 2U);  // members 0 to 2, and 4
  runtime_.run_all();
  EXPECT_EQ(device(0), "200xa");  // the host's bytes, behind the prefix, too
  EXPECT_EQ(device(2), "200xc");
  EXPECT_EQ(device(3), "200x0");  // not named: not touched
  EXPECT_EQ(device(4), "7xe 193x0");
}

TEST_F(GroupCopiesWithoutTails, WhereThePartsAreCheaperTheTailsAreKept) {
  // A launch takes all parts at once, so that the bytes between them would only cost.
  const CostOverride costs(0, CopyMethod::kKernel);
  write(0, 'a');
  write(1, 'b');
  upload(a_, {{0, 3}, {1, 50}});
  runtime_.run_all();
  EXPECT_EQ(device(0), "3xa 197x0");
  EXPECT_EQ(device(1), "50xb 150x0");
}

// Random copies of the group and of its members on two streams that run in a random order,
// against arrays that are copied in the order of the calls.
TEST_F(GroupCopiesTest, EveryScheduleIsTheOrderOfTheCalls) {
  runtime_.progress_after_queries(0);  // what is in flight stays so until it is waited for
  for (unsigned seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto pick = [&](std::size_t below) { return random() % below; };
    const CostOverride costs(0, pick(2) == 0 ? CopyMethod::kCopy : CopyMethod::kBatch);
    std::vector<std::byte> host(host_, host_ + kArena);
    std::vector<std::byte> device(device_, device_ + kArena);
    const auto prefix = [&](std::uint32_t member, std::size_t nbytes, bool to_device) {
      const std::size_t at = member * kStride;
      std::memcpy((to_device ? device : host).data() + at, (to_device ? host : device).data() + at,
                  nbytes);
    };
    for (int step = 0; step < 40; ++step) {
      const StreamRef stream{0, pick(2) == 0 ? a_ : b_};
      const auto member = static_cast<std::uint32_t>(pick(kMembers));
      const std::size_t nbytes = pick(2) == 0 ? kNbytes : pick(kNbytes + 1);
      std::vector<Part> parts;
      for (std::uint32_t i = 0; i < kMembers; ++i) {
        if (pick(2) == 0) parts.push_back({i, pick(2) == 0 ? kNbytes : pick(kNbytes + 1)});
      }
      switch (pick(6)) {
        case 0:
        case 1: {  // the host writes, as its guard lets it
          runtime_.progress_after_queries(1);
          members_[member]->wait_host();
          runtime_.progress_after_queries(0);
          const auto value = static_cast<std::byte>(random());
          std::memset(host_ + member * kStride, static_cast<int>(value), nbytes);
          std::memset(host.data() + member * kStride, static_cast<int>(value), nbytes);
          break;
        }
        case 2:
          group_->upload(stream, parts);
          for (const Part& part : parts) prefix(part.member, part.nbytes, true);
          break;
        case 3:
          group_->download(stream, parts);
          for (const Part& part : parts) prefix(part.member, part.nbytes, false);
          break;
        case 4:
          members_[member]->upload(stream, nbytes);
          prefix(member, nbytes, true);
          break;
        default:
          members_[member]->download(stream, nbytes);
          prefix(member, nbytes, false);
          break;
      }
      for (std::size_t i = pick(4); i > 0; --i) runtime_.step(0, pick(2) == 0 ? a_ : b_);
    }
    runtime_.run_all();
    for (std::uint32_t i = 0; i < kMembers; ++i) {
      const std::size_t at = i * kStride;
      ASSERT_EQ(std::memcmp(host_ + at, host.data() + at, kNbytes), 0) << "host of " << i;
      ASSERT_EQ(std::memcmp(device_ + at, device.data() + at, kNbytes), 0) << "device of " << i;
    }
  }
}

}  // namespace
}  // namespace staging
