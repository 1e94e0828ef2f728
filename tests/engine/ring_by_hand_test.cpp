// Steps of a ring of ranks, written down by hand on the machine of tests/engine/by_hand.h.
#include <gtest/gtest.h>

#include "tests/engine/by_hand.h"

namespace ballast::by_hand {
namespace {

// Exchanges are free, norms take 1 ms and Adam 2; attention takes what its FLOPs take.
std::optional<Duration> time_beside_attention(const Op& op) {
  switch (op.kind) {
    case OpKind::kAttention:
      return std::nullopt;
    case OpKind::kCollective:
      return Duration{};
    case OpKind::kSumOfSquares:
      return us(1000);
    case OpKind::kAdam:
      return us(2000);
    default:
      return time_of(op);
  }
}

// One layer, 2 sequences of 64 tokens: two products of 8 columns over both are 2 * 2 * 64 * 64 * 8
// = 131,072 FLOPs forward, which take 16 ms alone; the five of the backward 40 ms.
Case ring(int64_t ranks, ContextBalance balance) {
  Case given{model_of(1), plan_of(OptimizerPlacement::kGpu), without_link()};
  given.machine.gpu.matmul[DType::kBf16].value = {131'072 / 16e-3};
  given.machine.gpu.attention_efficiency.value = 1;
  given.plan.sequence_length = 64;
  given.plan.devices = given.plan.context = ranks;
  given.plan.context_balance = balance;
  given.plan.zero_stage = 0;
  given.plan.optimizer.bucket_bytes = {int64_t{1} << 40};
  return given;
}

// 4 + 8 ms of products, 3 ms of the step, and attention of 16 + 40 ms: alone all of it, of a zigzag
// of four a quarter, 14 ms, without one the last rank's 7/16, 24.5 ms, and with helpers 5/16, 17.5
// ms; of eight with helpers 9/64, 7.875 ms. Of two nobody helps.
TEST(ByHand, a_ring_takes_as_long_as_its_busiest_rank_attends) {
  const Duration beside = kForward + kBackward + us(3000);
  const auto step = [](int64_t ranks, ContextBalance balance) {
    return step_of(ring(ranks, balance), time_beside_attention);
  };
  EXPECT_EQ(step(1, ContextBalance::kZigzag), beside + us(56'000));
  EXPECT_EQ(step(1, ContextBalance::kNone), beside + us(56'000));
  EXPECT_EQ(step(2, ContextBalance::kZigzag), beside + us(28'000));
  EXPECT_EQ(step(2, ContextBalance::kNone), beside + us(42'000));
  EXPECT_EQ(step(4, ContextBalance::kZigzag), beside + us(14'000));
  EXPECT_EQ(step(4, ContextBalance::kNone), beside + us(24'500));
  EXPECT_EQ(step(1, ContextBalance::kHelpers), beside + us(56'000));
  EXPECT_EQ(step(2, ContextBalance::kHelpers), beside + us(42'000));
  EXPECT_EQ(step(4, ContextBalance::kHelpers), beside + us(17'500));
  EXPECT_EQ(step(8, ContextBalance::kHelpers), beside + us(7'875));
}

// 32 tokens a rank: of three ranks 96, whose attention takes (96 / 64)^2 * 56 = 126 ms alone, of
// five 160 and 350 ms. With helpers each has its share of an odd number, as it has of a zigzag.
TEST(ByHand, an_odd_number_of_ranks_with_helpers_has_the_mean) {
  const auto step = [](int64_t ranks, ContextBalance balance) {
    Case given = ring(ranks, balance);
    given.plan.sequence_length = 32 * ranks;
    return step_of(given, time_beside_attention);
  };
  const Duration beside = kForward + kBackward + us(3000);
  for (const ContextBalance balance : {ContextBalance::kHelpers, ContextBalance::kZigzag}) {
    EXPECT_EQ(step(3, balance), beside + us(126'000 / 3));
    EXPECT_EQ(step(5, balance), beside + us(350'000 / 5));
  }
  EXPECT_EQ(step(3, ContextBalance::kNone), beside + us(126'000 * 5 / 9));
}

// Two sequences of 1,024 tokens and two heads are 32 blocks of 128 queries, two for each of 16
// multiprocessors. Each of four ranks has the queries of 8: half of the multiprocessors compute a
// quarter, which takes half as long as all of it alone.
TEST(ByHand, a_rank_of_a_ring_fills_the_multiprocessors_with_its_own_queries) {
  const auto step = [](int64_t ranks, ContextBalance balance) {
    Case given = ring(ranks, balance);
    given.plan.sequence_length = 1024;
    given.machine.gpu.matmul[DType::kBf16].value = {256 * 131'072 / 16e-3};
    given.machine.gpu.multiprocessors = 16;
    return step_of(given, time_beside_attention);
  };
  const Duration beside = kForward + kBackward + us(3000);
  EXPECT_EQ(step(1, ContextBalance::kZigzag), beside + us(56'000));
  EXPECT_EQ(step(2, ContextBalance::kZigzag), beside + us(28'000));
  EXPECT_EQ(step(4, ContextBalance::kZigzag), beside + us(28'000));
  EXPECT_EQ(step(4, ContextBalance::kNone), beside + us(49'000));
}

// Where the forward's ring takes 30 ms, what follows attention waits for it, whatever a rank
// attends for in 4 or 7 ms; the backward's is free, and takes a quarter of 40 ms or 7/16.
TEST(ByHand, a_ring_that_takes_longer_than_attention_hides_what_the_busiest_rank_has_more) {
  const auto time = [](const Op& op) -> std::optional<Duration> {
    const auto* work = std::get_if<CollectiveWork>(&op.work);
    const bool is_ring = work != nullptr && work->kind == CollectiveKind::kSendReceive;
    if (is_ring && op.phase == Phase::kForward) return us(30'000);
    return time_beside_attention(op);
  };
  const Duration beside = kForward + kBackward + us(3000) + us(30'000);
  EXPECT_EQ(step_of(ring(4, ContextBalance::kZigzag), time), beside + us(10'000));
  EXPECT_EQ(step_of(ring(4, ContextBalance::kNone), time), beside + us(17'500));
  EXPECT_EQ(step_of(ring(4, ContextBalance::kHelpers), time), beside + us(12'500));
}

// The same at 10 us a byte. 32 tokens of a rank have 1,024 bytes of keys and values, 512 of queries
// and 256 of a statistic a head: three rounds of a zigzag, 3,072 bytes; with helpers one of
// 1024 + 512 + 256 and one of 1,024, 2,816 bytes. The backward's exchanges are free.
TEST(ByHand, a_ring_of_helpers_takes_what_its_busiest_rank_sends) {
  const auto time = [](const Op& op) -> std::optional<Duration> {
    const auto* work = std::get_if<CollectiveWork>(&op.work);
    const bool is_ring = work != nullptr && work->kind == CollectiveKind::kSendReceive;
    if (is_ring && op.phase == Phase::kForward) return us(10 * work->bytes.count);
    return time_beside_attention(op);
  };
  const Duration beside = kForward + kBackward + us(3000);
  EXPECT_EQ(step_of(ring(4, ContextBalance::kZigzag), time), beside + us(30'720) + us(10'000));
  EXPECT_EQ(step_of(ring(4, ContextBalance::kHelpers), time), beside + us(28'160) + us(12'500));
}

}  // namespace
}  // namespace ballast::by_hand
