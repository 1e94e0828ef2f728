// Whole steps whose time can be written down by hand, and must come out to the picosecond.
#include "tests/engine/by_hand.h"

#include <gtest/gtest.h>

namespace ballast::by_hand {
namespace {

Op copy_op(LaneKind lane, int64_t bytes) {
  Op op;
  op.kind = OpKind::kCopy;
  op.phase = Phase::kOptimizer;
  op.lane = lane_of(0, lane);
  const bool out = lane == LaneKind::kCopyOut;
  op.work =
      CopyWork{Bytes{bytes}, out ? CopyDirection::kDeviceToHost : CopyDirection::kHostToDevice};
  return op;
}

// When each of two copies that begin together ends.
struct Ends {
  Instant first, second;
  bool operator==(const Ends&) const = default;
};
Ends ends_of(const Op& first, const Op& second, const Machine& machine) {
  Graph graph;
  graph.lanes = kLaneKinds;
  graph.step.ops = {first, second};
  graph.step.edge_begin = {0, 0, 0};
  const CostModel costs(machine, Plan{}, Stack{}, nullptr);
  const Timeline timeline = simulate(graph.step, graph, costs.table(graph.step, graph),
                                     {.max_steps = 1, .record_steps = 1});
  Ends ends;
  for (const Span& span : timeline.spans) (span.op == 0 ? ends.first : ends.second) = span.end;
  return ends;
}

// --- two flows on one link -----------------------------------------------------------------------

// 4 and 12 kB the same way at 4 MB/s. At 2 MB/s each the short one takes 2 ms; the other has 8 kB
// left, at 4 MB/s 2 ms more.
TEST(ByHand, two_copies_one_way_halve_the_link) {
  const Ends ends = ends_of(copy_op(LaneKind::kCopyIn, 4'000), copy_op(LaneKind::kUpload, 12'000),
                            round_machine());
  EXPECT_EQ(ends, (Ends{{us(2000).ps}, {us(4000).ps}}));
}

// 6 kB out and 12 kB in at 4 MB/s each way but 6 MB/s in total. At 3 MB/s the copy out takes 2 ms;
// the copy in has 6 kB left, at 4 MB/s 1.5 ms more.
TEST(ByHand, copies_both_ways_share_what_the_link_moves_in_total) {
  Machine machine = round_machine();
  machine.link.both_total.value = {6e6};
  const Ends ends =
      ends_of(copy_op(LaneKind::kCopyOut, 6'000), copy_op(LaneKind::kCopyIn, 12'000), machine);
  EXPECT_EQ(ends, (Ends{{us(2000).ps}, {us(3500).ps}}));
}

// 12 kB out at 4 MB/s, and an all-to-all of 24 kB between two nodes, half of which leaves at 4
// MB/s: 3 ms each, and 6 together where both cross the link. On wires of its own it crosses none,
// and neither does one inside a node.
TEST(ByHand, an_all_to_all_between_nodes_and_a_copy_halve_a_switch_that_they_share) {
  Machine machine = round_machine();
  machine.network->bandwidth.value = {4e6};
  machine.network->latency.value = {};
  machine.node->latency.value = {};
  machine.node->bandwidth.value = {4e6};
  Op exchange = copy_op(LaneKind::kCopyOut, 0);
  exchange.kind = OpKind::kCollective;
  exchange.lane = lane_of(0, LaneKind::kExpertNetwork);
  const auto ends = [&](int64_t stride) {
    exchange.work = CollectiveWork{CollectiveKind::kAllToAll, Bytes{24'000}, 2, stride};
    const Ends ends = ends_of(copy_op(LaneKind::kCopyOut, 12'000), exchange, machine);
    return std::pair(static_cast<double>(ends.first.ps) / 1e9,
                     static_cast<double>(ends.second.ps) / 1e9);
  };
  constexpr double kStarts = 0.05;  // ms, of the exchange
  const auto expect = [&](int64_t stride, double copy, double all_to_all) {
    EXPECT_NEAR(ends(stride).first, copy, kStarts);
    EXPECT_NEAR(ends(stride).second, all_to_all, kStarts);
  };
  expect(4, 3, 3);
  machine.link.network_share = Sourced<double>{1, false, "a switch"};
  expect(4, 6, 6);
  expect(1, 3, 3);
  machine.link.network_share->value = 0.5;  // 4 and 2 MB/s of 4
  expect(4, 4.5, 4.5);
}

// --- pipelines -----------------------------------------------------------------------------------

// Norms of a stage, which is one bucket, take 1 ms and its Adam 2 ms.
std::optional<Duration> time_with_step(const Op& op) {
  if (op.kind == OpKind::kSumOfSquares) return us(1000);
  if (op.kind == OpKind::kAdam) return us(2000);
  return time_of(op);
}
std::optional<Duration> time_with_free_sends(const Op& op) {
  return op.kind == OpKind::kCollective ? Duration{} : time_with_step(op);
}

struct Shape {
  int64_t layers = 1, stages = 1, chunks = 1, micro_batches = 1;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
};
Case pipeline(const Shape& shape) {
  Case given{model_of(shape.layers), plan_of(OptimizerPlacement::kGpu), without_link()};
  given.plan.devices = given.plan.pipeline = shape.stages;
  given.plan.virtual_pipeline = shape.chunks;
  given.plan.pipeline_schedule = shape.schedule;
  given.plan.optimizer.bucket_bytes = {int64_t{1} << 40};
  given.plan.global_batch = 2 * shape.micro_batches;
  return given;
}

// A layer a stage, m = 4 micro-batches, p = 2 stages, sends free (arXiv 2104.04473, section 2.2.1):
//
//   stage 0   F0 F1 .. B0 B0 F2 B1 B1 F3 B2 B2 .. B3 B3 norm Adam
//   stage 1   .. F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3
//
// (m + p - 1) (4 + 8) = 60 ms, norm 1, Adam 2.
TEST(ByHand, a_pipeline_of_two_stages_idles_for_one_micro_batch) {
  EXPECT_EQ(step_of(pipeline({.layers = 2, .stages = 2, .micro_batches = 4}), time_with_free_sends),
            times(5, kForward + kBackward) + us(3000));
}

// p = 4, m = 8: (8 + 3) 12 = 132 ms, and 3.
TEST(ByHand, a_pipeline_of_four_stages_idles_for_three_micro_batches) {
  EXPECT_EQ(step_of(pipeline({.layers = 4, .stages = 4, .micro_batches = 8}), time_with_free_sends),
            times(11, kForward + kBackward) + us(3000));
}

// A message has 8 tokens of 8 values, 128 B. On a link of 1 MB/s and 1 us a send takes
// s = 8.4 + 1 + 2.9 us (Simple) + 128 us = 140.3 us. With f and b of a stage, ends of blocks:
//
//   stage 1   F0 2f+s          B0 2f+b+s     F1 3f+b+s (was there)   B1 3f+2b+s
//   stage 0   B0 2f+2b+2s      F2 3f+2b+2s   B1 3f+3b+2s (arrives as F2 ends)   F3 4f+3b+2s
//   stage 1   F2 4f+2b+3s      B2 4f+3b+3s   F3 5f+3b+3s             B3 5f+4b+3s
//   stage 0   B2 4f+4b+4s      B3 5f+5b+4s
//
// A round trip of 2 s for every second micro-batch: 5 (f + b) + 4 s.
TEST(ByHand, two_stages_wait_a_round_trip_for_every_second_micro_batch) {
  const Duration send{140'300'000};
  EXPECT_EQ(step_of(pipeline({.layers = 2, .stages = 2, .micro_batches = 4}), time_with_step),
            times(5, kForward + kBackward) + times(4, send) + us(3000));
}

// All forwards, then all backwards: 5 (f + b) as well (arXiv 1811.06965), but a message is waited
// for only where the pipeline fills and where it turns.
//
//   stage 1   F0 2f+s  ... F3 5f+s   B0 5f+b+s  ... B3 5f+4b+s
//   stage 0                          B0 5f+2b+2s ... B3 5f+5b+2s
TEST(ByHand, gpipe_waits_for_two_messages_in_all) {
  const Duration send{140'300'000};
  const Case given = pipeline(
      {.layers = 2, .stages = 2, .micro_batches = 4, .schedule = PipelineSchedule::kGpipe});
  EXPECT_EQ(step_of(given, time_with_free_sends), times(5, kForward + kBackward) + us(3000));
  EXPECT_EQ(step_of(given, time_with_step),
            times(5, kForward + kBackward) + times(2, send) + us(3000));
}

// One micro-batch of N parts through p stages: (N + p - 1) (f + b), of which stages idle
// (p - 1) / (N + p - 1) (arXiv 2102.07988), where a whole one would take p (f + b) of
// N times as long each. Of N = 16 and p = 4 that is 3/19.
TEST(ByHand, parts_fill_a_pipeline_as_micro_batches_do) {
  for (const auto& [stages, parts] : {std::pair<int64_t, int64_t>(2, 4), {4, 4}, {4, 16}}) {
    Case given = pipeline({.layers = stages,
                           .stages = stages,
                           .micro_batches = 1,
                           .schedule = PipelineSchedule::kGpipe});
    given.plan.sequence_length = parts * kAttentionTile;
    given.plan.subsequences = parts;
    given.model.max_positions = given.plan.sequence_length;
    EXPECT_EQ(step_of(given, time_with_free_sends),
              times(parts + stages - 1, kForward + kBackward) + us(3000))
        << stages << " stages, " << parts << " parts";
  }
}

// m micro-batches of N parts are m N units: (m N + p - 1) (f + b) where 1F1B of whole ones takes
// (m + p - 1) N (f + b) (arXiv 2406.03488).
TEST(ByHand, seq1f1b_idles_for_parts_where_1f1b_idles_for_micro_batches) {
  for (const auto& [stages, batches] : {std::pair<int64_t, int64_t>(2, 1), {2, 2}, {4, 2}}) {
    Case given = pipeline({.layers = stages, .stages = stages, .micro_batches = batches});
    given.plan.subsequences = 4;
    given.plan.sequence_length = 4 * kAttentionTile;
    given.model.max_positions = given.plan.sequence_length;
    EXPECT_EQ(step_of(given, time_with_free_sends),
              times(4 * batches + stages - 1, kForward + kBackward) + us(3000))
        << stages << " stages, " << batches << " micro-batches";
  }
}

// Two chunks of a layer a stage: of a stage's 2 layers f + b = 24 ms. Interleaving halves the
// bubble: 4 * 24 + (2 - 1) 24 / 2 = 108 ms (arXiv 2104.04473, section 2.2.2); norm and Adam once.
TEST(ByHand, two_chunks_a_stage_halve_the_bubble) {
  const Case given = pipeline({.layers = 4, .stages = 2, .chunks = 2, .micro_batches = 4});
  EXPECT_EQ(step_of(given, time_with_free_sends),
            times(4, times(2, kForward + kBackward)) + kForward + kBackward + us(3000));
}

// The same with p = 4, v = 2, m = 8, 8 layers: 8 * 24 + 3 * 12 = 228 ms, and 3.
TEST(ByHand, two_chunks_on_four_stages_leave_three_halves_of_a_micro_batch) {
  const Case given = pipeline({.layers = 8, .stages = 4, .chunks = 2, .micro_batches = 8});
  EXPECT_EQ(step_of(given, time_with_free_sends), times(19, kForward + kBackward) + us(3000));
}

// --- a ring all-reduce ---------------------------------------------------------------------------

Case data_parallel(int64_t ranks, int64_t zero_stage, int64_t layers) {
  Case given{model_of(layers), plan_of(OptimizerPlacement::kGpu), without_link()};
  given.plan.devices = given.plan.data = ranks;
  given.plan.global_batch = 2 * ranks;
  given.plan.zero_stage = zero_stage;
  return given;
}

// 4 ranks of one node, 1 MB/s and 1 us from one to the next, all gradients in one bucket:
// 1032 + 3 * 1040 = 4152 parameters, 8304 B. Ring: 2 * 3/4 * 8304 B = 12.456 ms; Simple adds
// 8.4 + 6 (1 + 2.9) = 31.8 us. Forward 8, backward 16, then all of it.
TEST(ByHand, a_ring_all_reduce_of_all_gradients_follows_the_backward) {
  Case given = data_parallel(4, 0, 2);
  given.plan.optimizer.bucket_bytes = {1 << 20};
  EXPECT_EQ(step_of(given), times(2, kForward + kBackward) + Duration{12'487'800'000});
}

// A bucket a layer: 2080 B, 3.12 ms + 31.8 us = 3.1518 ms, less than a layer's backward. Only what
// the last layer and the embedding leave is exposed; that has 2064 B: 3.096 + 0.0318 ms. Without
// overlap all four are.
TEST(ByHand, all_reduces_of_earlier_layers_hide_behind_the_backward) {
  const Duration layer{3'151'800'000};
  const Duration embedding{3'127'800'000};
  Case given = data_parallel(4, 0, 2);
  EXPECT_EQ(step_of(given), times(2, kForward + kBackward) + layer + embedding);
  given.stack.facts.gradient_overlap = Overlap::kNone;
  EXPECT_EQ(step_of(given), times(2, kForward + kBackward) + times(3, layer) + embedding);
}

// --- ZeRO-3 --------------------------------------------------------------------------------------

// Nothing is exchanged outside the layers.
std::optional<Duration> time_of_layers(const Op& op) {
  if (op.kind == OpKind::kCollective && op.label.layer < 0) return Duration{};
  return time_of(op);
}

// 2 ranks, 2080 B a layer: 1040 B at 1 MB/s, and Simple 8.4 + 1 + 2.9 us: g = 1.0523 ms for a
// gather and for a scatter, less than a layer takes. Exposed are three: the first gather of the
// forward; that of the backward, which only the final norm comes before, less 1 ms, as the first
// product, a gradient of weights, needs none; and the last scatter.  48 + 3 g - 1 ms
TEST(ByHand, gathers_that_are_shorter_than_a_layer_hide_behind_the_one_before) {
  EXPECT_EQ(step_of(data_parallel(2, 3, 4), time_of_layers),
            us(47000) + times(3, Duration{1'052'300'000}));
}

// At 0.1 MB/s g = 10.4123 ms, longer than a layer either way: the network never rests but while the
// last layer goes forward, 4 ms, as the gather after it belongs to the backward: 12 g + 4 ms.
//
//   network   g0 g1 g2 g3 .. g3 g2 s3 g1 s2 g0 s1 s0
//   compute   .. F0 F1 F2 F3 .. B3 B2 .. B1 .. B0 ..
TEST(ByHand, gathers_that_are_longer_than_a_layer_set_the_pace) {
  Case given = data_parallel(2, 3, 4);
  given.machine.node->bandwidth.value = {1e5};
  EXPECT_EQ(step_of(given, time_of_layers), times(12, Duration{10'412'300'000}) + kForward);
}

// Without overlap every gather and scatter stands between the layers: 48 + 12 * 1.0523 ms.
TEST(ByHand, without_prefetch_every_gather_is_exposed) {
  Case given = data_parallel(2, 3, 4);
  given.stack.facts.weight_overlap = Overlap::kNone;
  given.stack.facts.gradient_overlap = Overlap::kNone;
  EXPECT_EQ(step_of(given, time_of_layers),
            times(4, kForward + kBackward) + times(12, Duration{1'052'300'000}));
}

// --- ZeRO-Offload --------------------------------------------------------------------------------

// 3 layers: 12 ms forward, 24 backward. Gradients leave beside the backward but those of the first
// layer and of the embedding: 1.04 ms, 1.032 ms. The GPU has summed their squares in no time, and
// behind each the sums leave, 8 bytes a module: 0.012 and 0.002 ms. So 2.086 ms after the backward
// all have been judged. Then Adam of all, the embedding first: 2.064 + 4 * 2.08 = 10.384 ms; each
// bucket goes home beside the next one's Adam, the last one in 1.04 ms more.
TEST(ByHand, a_zero_offload_step_that_waits_for_all_weights) {
  Case given{model_of(3), plan_of(OptimizerPlacement::kCpu)};
  given.stack.facts.weight_overlap = Overlap::kPartial;
  EXPECT_EQ(step_of(given), times(3, kForward + kBackward) + us(2086) + us(10384) + us(1040));
}

// A forward that begins with the first layers that are home waits only for the embedding's Adam
// (2.064), that of layer 0 (2.08) and its way home (1.04). The others come before they are needed.
TEST(ByHand, a_zero_offload_step_whose_forward_begins_with_what_is_home) {
  const Case given{model_of(3), plan_of(OptimizerPlacement::kCpu)};
  EXPECT_EQ(step_of(given),
            times(3, kForward + kBackward) + us(2086) + us(2064) + us(2080) + us(1040));
}

// --- SuperOffload --------------------------------------------------------------------------------

// The GPU steps the last two buckets, layer 0 and the embedding, in no time.
Case super_offload() {
  Case given{model_of(3), plan_of(OptimizerPlacement::kCpu)};
  given.plan.optimizer.sync = SyncMode::kSpeculate;
  given.plan.optimizer.gpu_buckets = 2;
  return given;
}

// The last CPU bucket, layer 1, leaves (1.04), is stepped (2.08) and comes home (1.04) in 4.16 ms,
// while layer 0 goes backward and forward, 12 ms. Nothing but 12 + 24 ms is left.
TEST(ByHand, a_super_offload_step_is_forward_and_backward) {
  EXPECT_EQ(step_of(super_offload()), times(3, kForward + kBackward));
}

// Adam of 24 us a parameter: 24.96 ms a bucket. The head's gradient is there when the forward ends
// and leaves in 1.04 ms; three Adams follow without a pause, 74.88 ms; layer 1 comes home in 1.04
// ms and goes forward, and layer 2, 8 ms. Then the head's gradient is there again.
TEST(ByHand, a_slow_adam_on_the_cpu_binds_a_super_offload_step) {
  Case given = super_offload();
  given.machine.cpu.adam["best"] = tests::flat(1e6 / 24);
  EXPECT_EQ(step_of(given), us(1040) + us(74880) + us(1040) + times(2, kForward));
}

}  // namespace
}  // namespace ballast::by_hand
