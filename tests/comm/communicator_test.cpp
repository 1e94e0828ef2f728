// The communicator of threads by itself: values, order of sums, groups with a stride, channels that
// do not wait for each other, and ranks that fail at any moment. Built apart, so that it also runs
// under the thread sanitizer within minutes.
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backend/comm/local_ranks.h"
#include "backend/comm/lone_rank.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

constexpr SumFormat kPlain{kernels::Format::kF32, kernels::Format::kF32};

template <class T>
std::byte* bytes(std::vector<T>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

void on_ranks(LocalRanks& all, int ranks, const std::function<void(Communicator& one)>& work) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { work(all.of(rank)); });
  }
}

// Values whose sum depends on the order in which they are added.
std::vector<float> values_of(int rank, size_t count) {
  std::minstd_rand random(static_cast<unsigned>(rank) + 1);
  std::vector<float> values(count);
  for (float& value : values) {
    const auto drawn = static_cast<float>(random() % 20001) - 10000.0f;
    value = std::ldexp(drawn, static_cast<int>(random() % 40) - 20);
  }
  return values;
}

std::vector<float> sum_of(const std::vector<int>& ranks, size_t count) {
  std::vector<float> sum = values_of(ranks.front(), count);
  for (size_t i = 1; i < ranks.size(); ++i) {
    const std::vector<float> values = values_of(ranks[i], count);
    for (size_t at = 0; at < count; ++at) sum[at] += values[at];
  }
  return sum;
}

TEST(communicator, sums_in_the_order_of_the_ranks) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const size_t count : {1ul, 3ul, 4096ul, 10007ul}) {
      LocalRanks all(ranks);
      std::vector<int> members;
      for (int rank = 0; rank < ranks; ++rank) members.push_back(rank);
      const std::vector<float> expected = sum_of(members, count);
      on_ranks(all, ranks, [&](Communicator& one) {
        std::vector<float> values = values_of(one.rank(), count);
        one.all_reduce(Channel::kData, {ranks, 1}, bytes(values), std::ssize(values), kPlain);
        EXPECT_EQ(std::memcmp(values.data(), expected.data(), count * sizeof(float)), 0);
      });
    }
  }
}

// Texts of any length, none too, on a channel of its own beside another.
TEST(communicator, tells_all_what_each_says) {
  for (const int ranks : {1, 2, 5}) {
    LocalRanks all(ranks);
    const auto text_of = [](int rank) { return std::string(static_cast<size_t>(rank) * 7, 'a'); };
    on_ranks(all, ranks, [&](Communicator& one) {
      std::jthread beside([&] {
        const auto told = told_by_all(one, Channel::kCheckpoint, std::to_string(one.rank()));
        for (int rank = 0; rank < ranks; ++rank) {
          EXPECT_EQ(told[static_cast<size_t>(rank)], std::to_string(rank));
        }
      });
      const auto told = told_by_all(one, Channel::kControl, text_of(one.rank()));
      ASSERT_EQ(std::ssize(told), ranks);
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(told[static_cast<size_t>(rank)], text_of(rank));
      }
    });
  }
}

// Two groups of ranks 0, 2 and 1, 3, and two of 0, 1 and 2, 3, at once.
TEST(communicator, groups_have_a_stride) {
  constexpr size_t kCount = 513;
  LocalRanks all(4);
  on_ranks(all, 4, [&](Communicator& one) {
    for (const RankGroup& group : {RankGroup{2, 2}, RankGroup{2, 1}}) {
      const GroupMembers members = one.members_of(group);
      EXPECT_EQ(members.ranks[static_cast<size_t>(members.self)], one.rank());
      std::vector<float> values = values_of(one.rank(), kCount);
      one.all_reduce(Channel::kData, group, bytes(values), kCount, kPlain);
      EXPECT_EQ(values, sum_of(members.ranks, kCount)) << one.rank() << " by " << group.stride;
    }
  });
}

TEST(communicator, rounds_a_sum_once_to_the_type_of_gradients) {
  LocalRanks all(3);
  const SumFormat wide{kernels::Format::kF32, kernels::Format::kBf16};
  on_ranks(all, 3, [&](Communicator& one) {
    // 1 + 2^-9 twice: bf16 has 8 bits, so rounding after each addition would lose both.
    std::vector<float> values = {one.rank() == 0 ? 1.0f : 0.001953125f};
    one.all_reduce(Channel::kData, {3, 1}, bytes(values), 1, wide);
    EXPECT_EQ(values.front(), 1.0f);
    values = {one.rank() == 0 ? 1.0f : 0.00390625f};
    one.all_reduce(Channel::kData, {3, 1}, bytes(values), 1, wide);
    EXPECT_EQ(values.front(), 1.0078125f);
  });
}

TEST(communicator, gathers_parts_of_any_owner_and_broadcasts) {
  LocalRanks all(3);
  on_ranks(all, 3, [&](Communicator& one) {
    std::vector<int32_t> own = {100 * one.rank(), 100 * one.rank() + 1};
    std::vector<int32_t> whole(4, -1);
    const auto at = [&](size_t i) { return bytes(whole) + i * sizeof(int32_t); };
    const auto from = [&](size_t i) { return bytes(own) + i * sizeof(int32_t); };
    const std::vector<GatheredPart> parts = {{2, from(1), at(0), 4},
                                             {0, from(0), at(1), 4},
                                             {2, from(0), at(2), 4},
                                             {1, from(1), at(3), 4}};
    one.all_gather(Channel::kControl, {3, 1}, parts);
    EXPECT_EQ(whole, (std::vector<int32_t>{201, 0, 200, 101}));
    EXPECT_EQ(told_by_first(one, one.rank() == 0 ? "so it is" : ""), "so it is");
    EXPECT_EQ(told_by_first(one, one.rank() == 0 ? "" : "not heard"), "");
  });
}

// Rank r gives rank q of its group r + 2 q values, itself and nobody but the last any of none.
TEST(communicator, exchanges_parts_of_any_size) {
  LocalRanks all(4);
  on_ranks(all, 4, [&](Communicator& one) {
    for (const RankGroup& group : {RankGroup{4, 1}, RankGroup{2, 2}, RankGroup{2, 1}}) {
      const GroupMembers members = one.members_of(group);
      const size_t ranks = members.ranks.size();
      const auto count = [&](size_t from, size_t to) { return from == to ? 0 : from + 2 * to; };
      const auto self = static_cast<size_t>(members.self);
      std::vector<std::vector<int32_t>> given(ranks);
      std::vector<std::vector<int32_t>> taken(ranks);
      std::vector<ExchangedPart> parts;
      for (size_t other = 0; other < ranks; ++other) {
        given[other].assign(count(self, other), 100 * one.rank() + members.ranks[other]);
        taken[other].assign(count(other, self), -1);
        parts.push_back({bytes(given[other]), std::ssize(given[other]) * 4, bytes(taken[other]),
                         std::ssize(taken[other]) * 4});
      }
      one.all_to_all(Channel::kData, group, parts);
      for (size_t other = 0; other < ranks; ++other) {
        for (const int32_t value : taken[other]) {
          EXPECT_EQ(value, 100 * members.ranks[other] + one.rank());
        }
      }
    }
  });
}

// As the lanes of stages: each has a thread on every rank, which exchanges with the ranks of its
// own group, in no order among the lanes.
TEST(communicator, lanes_of_every_stage_exchange_at_once) {
  constexpr int kRounds = 100;
  constexpr int kStages = 2;
  LocalRanks all(4);
  on_ranks(all, 4, [&](Communicator& one) {
    std::vector<std::jthread> lanes;
    for (int stage = 0; stage < kStages; ++stage) {
      for (const LaneKind kind : {LaneKind::kTensorNetwork, LaneKind::kSequenceNetwork,
                                  LaneKind::kDataNetwork, LaneKind::kCompute}) {
        lanes.emplace_back([&one, stage, kind] {
          const bool near = kind == LaneKind::kTensorNetwork || kind == LaneKind::kCompute;
          const RankGroup group{2, near ? 1 : 2};
          const float sum = 2.0f * static_cast<float>(one.members_of(group).ranks[0]) +
                            static_cast<float>(group.stride);
          for (int i = 0; i < kRounds; ++i) {
            std::vector<float> values(5, static_cast<float>(one.rank()));
            one.all_reduce(channel_of(lane_of(stage, kind)), group, bytes(values), 5, kPlain);
            EXPECT_EQ(values, std::vector<float>(5, sum));
          }
        });
      }
    }
  });
}

// One thread of each rank sums, another one gathers, in no order between the two.
TEST(communicator, channels_do_not_wait_for_each_other) {
  constexpr int kRounds = 200;
  LocalRanks all(3);
  on_ranks(all, 3, [&](Communicator& one) {
    const std::jthread sums([&] {
      for (int i = 0; i < kRounds; ++i) {
        std::vector<float> values = {1.0f, static_cast<float>(one.rank())};
        one.all_reduce(Channel::kData, {3, 1}, bytes(values), 2, kPlain);
        EXPECT_EQ(values, (std::vector<float>{3, 3}));
      }
    });
    for (int i = 0; i < kRounds; ++i) {
      int32_t told = one.rank() == i % 3 ? i : -1;
      one.broadcast(Channel::kControl, {3, 1}, i % 3, std::as_writable_bytes(std::span(&told, 1)));
      EXPECT_EQ(told, i);
    }
  });
}

// Rank 1 fails before, between and after exchanges, while the others are in them or on their way:
// they end, saying which rank and why.
TEST(communicator, a_rank_that_fails_ends_the_others) {
  for (int moment = 0; moment < 40; ++moment) {
    LocalRanks all(4);
    std::atomic<int> ended{0};
    on_ranks(all, 4, [&](Communicator& one) {
      try {
        for (int i = 0; i < 1000; ++i) {
          if (one.rank() == 1 && i == moment) {
            one.fail("its disk is full");
            return;
          }
          std::vector<float> values(64, 1.0f);
          one.all_reduce(Channel::kData, {4, 1}, bytes(values), 64, kPlain);
        }
      } catch (const Error& error) {
        EXPECT_TRUE(std::string(error.what()).starts_with("rank 1: its disk is full"))
            << error.what();
        ++ended;
      }
    });
    EXPECT_EQ(ended, 3);
    EXPECT_EQ(all.failed(), 1);
  }
}

// What is there comes first, and the sum takes its place.
TEST(communicator, a_sum_may_add_to_what_is_there) {
  constexpr int kRanks = 3;
  constexpr size_t kCount = 5000;
  LocalRanks all(kRanks);
  std::vector<float> expected = values_of(kRanks, kCount);
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::vector<float> values = values_of(rank, kCount);
    for (size_t i = 0; i < kCount; ++i) expected[i] += values[i];
  }
  on_ranks(all, kRanks, [&](Communicator& one) {
    std::vector<float> values = values_of(one.rank(), kCount);
    std::vector<float> sum = values_of(kRanks, kCount);
    const SummedPart part{1, bytes(values), bytes(sum), kCount, true};
    one.reduce_scatter(Channel::kData, {kRanks, 1}, {&part, 1}, kPlain);
    if (one.rank() == 1) EXPECT_EQ(sum, expected);
  });
}

TEST(communicator, a_lone_rank_keeps_what_it_has) {
  LoneRank one(4);
  std::vector<float> values = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<float> before = values;
  one.all_reduce(Channel::kData, {4, 1}, bytes(values), 8, kPlain);
  EXPECT_EQ(values, before);
}

}  // namespace
}  // namespace ballast
