// Parts that all stages of a pipeline share (Plan::multiplex), on a machine of round numbers.
#include <algorithm>
#include <gtest/gtest.h>

#include "tests/engine/by_hand.h"

namespace ballast::by_hand {
namespace {

// Tokens of a part of the two sequences of a micro-batch.
constexpr int64_t kTokensOfPart = 2 * kAttentionTile;

// A product of a whole part takes 1 ms, one of a share of its tokens that share of it. Of a
// weight's gradient tokens are summed over.
Duration time_of_share(const Op& op) {
  if (op.label.layer < 0) return {};
  const auto& work = std::get<GemmWork>(op.work);
  const int64_t tokens = op.phase == Phase::kBackwardWeight ? work.k : work.m;
  return {us(1000).ps * tokens / kTokensOfPart};
}

struct SentWeights {
  Duration weights = {};  // of a layer, or of an end of the model
};

// What is exchanged takes no time, but weights.
auto time_when(const SentWeights& sent) {
  return [sent](const Op& op) -> std::optional<Duration> {
    if (op.kind == OpKind::kGemm) return time_of_share(op);
    if (op.kind == OpKind::kSumOfSquares) return us(1000);
    if (op.kind == OpKind::kAdam) return us(2000);
    if (op.kind != OpKind::kCollective) return time_of(op);
    const auto* work = std::get_if<CollectiveWork>(&op.work);
    const bool weights = work != nullptr && work->kind == CollectiveKind::kBroadcast;
    return weights ? sent.weights : Duration{};
  };
}

struct Multiplexed {
  int64_t stages = 2;
  int64_t parts = 4;
  bool multiplex = true;
};

// A layer a stage; as many heads as stages.
Case parts_through(const Multiplexed& shape) {
  const int64_t heads = std::max<int64_t>(2, shape.stages);
  Case given{tiny::llama({.layers = shape.stages,
                          .hidden = 4 * heads,
                          .heads = heads,
                          .kv_heads = heads,
                          .vocab = 129,
                          .positions = shape.parts * kAttentionTile}),
             plan_of(OptimizerPlacement::kGpu), without_link()};
  given.plan.devices = given.plan.pipeline = shape.stages;
  given.plan.optimizer.bucket_bytes = {int64_t{1} << 40};
  given.plan.global_batch = 2;
  given.plan.sequence_length = shape.parts * kAttentionTile;
  given.plan.subsequences = shape.parts;
  given.plan.multiplex = shape.multiplex;
  return given;
}

// N parts pass p stages in N + p - 1 turns of f + b, of which (p - 1) / (N + p - 1) are idle: 3/19
// of 16 parts and 4 stages. Shared by all, the p (p - 1) / 2 turns at either end take
// (p - 1) / 2 each way, in place of p - 1: none is idle, and N (f + b) are left.
TEST(ByHand, parts_that_all_stages_share_leave_no_bubble) {
  for (const auto& [stages, parts] : {std::pair<int64_t, int64_t>(2, 2), {2, 4}, {4, 4}, {4, 16}}) {
    const auto step = [p = stages, n = parts](bool multiplex) {
      return step_of(parts_through({p, n, multiplex}), time_when({}));
    };
    EXPECT_EQ(step(false), times(parts + stages - 1, kForward + kBackward) + us(3000));
    EXPECT_EQ(step(true), times(parts, kForward + kBackward) + us(3000))
        << stages << " stages, " << parts << " parts";
  }
}

// Weights arrive a layer ahead, w each; two stages, a layer each, N = 4. A shared turn begins with
// the weights of what it begins with, and so waits
//
//   forward, left    of the embedding, then of layer 0          2 w
//   forward, right   of layer 1                                 w
//   back, right      of the head and the last norm, of layer 1  2 w
//   back, left       of layer 0                                 w
//
// for the products of head and embedding take no time. Back, the gradient of fc2's weights comes
// first, of half a part in half a millisecond, and needs no weights: 6 w - 2 min(w, 1/2). The
// bubble of f + b = 12 ms is the shorter beyond w = 13/6 ms.
TEST(ByHand, a_shared_turn_waits_for_the_weights_of_what_it_begins_with) {
  const auto step = [](bool multiplex, int64_t w) {
    return step_of(parts_through({2, 4, multiplex}), time_when({us(w)}));
  };
  for (const int64_t w : {100, 500, 2000, 3000}) {
    EXPECT_EQ(step(true, w),
              times(4, kForward + kBackward) + us(6 * w - 2 * std::min<int64_t>(w, 500)) + us(3000))
        << w;
  }
  EXPECT_LT(step(true, 2000), step(false, 2000));
  EXPECT_GT(step(true, 3000), step(false, 3000));
}

}  // namespace
}  // namespace ballast::by_hand
