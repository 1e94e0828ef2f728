// Tensor parallelism by two: T = 8 tokens of C = 8 values of 2 bytes are 128 bytes.
#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <set>
#include <utility>

#include "sim/engine/engine.h"
#include "tests/graph/tiny_plans.h"

namespace ballast {
namespace {

constexpr CollectiveWork kSum{CollectiveKind::kAllReduce, {128}, 2, 1};
constexpr CollectiveWork kScatter{CollectiveKind::kReduceScatter, {128}, 2, 1};
constexpr CollectiveWork kGather{CollectiveKind::kAllGather, {128}, 2, 1};

Plan by_two() {
  Plan plan = tiny::plan();
  plan.devices = plan.tensor = 2;
  return plan;
}

TEST(tensor_pass, nothing_moves_on_one_rank) {
  EXPECT_EQ(tiny::count(build(tiny::model(), tiny::plan()), OpKind::kCollective), 0);
}

// A layer: the outputs of attention_out and fc2 forward, the gradients of the inputs of fc1 and qkv
// backward (arXiv 1909.08053, figure 4). Outside: the embedding, the head's input gradient, and of
// each token the largest logit, the sum and the label's logit in 32 bits, 8 * 3 * 4 = 96 bytes.
TEST(tensor_pass, a_layer_has_two_all_reduces_forward_and_two_backward) {
  const Graph graph = build(tiny::model(), by_two());
  const auto forward = tiny::exchanges(graph, Phase::kForward);
  const auto backward = tiny::exchanges(graph, Phase::kBackward);
  EXPECT_EQ(forward.layers, (std::vector<CollectiveWork>{kSum, kSum, kSum, kSum}));
  EXPECT_EQ(backward.layers, (std::vector<CollectiveWork>{kSum, kSum, kSum, kSum}));
  const CollectiveWork loss{CollectiveKind::kAllReduce, {96}, 2, 1};
  EXPECT_EQ(forward.outside, (std::vector<CollectiveWork>{kSum, loss}));
  EXPECT_EQ(backward.outside, (std::vector<CollectiveWork>{kSum}));
  EXPECT_TRUE(tiny::exchanges(graph, Phase::kRecompute).layers.empty());
}

// Forward a gather before qkv and fc1 and a scatter after attention_out and fc2. Backward a scatter
// of both input gradients and a gather of both output gradients; the inputs of qkv and fc1, which
// are kept split, are gathered once more (arXiv 2205.05198, section 4.2.2).
TEST(tensor_pass, split_norms_turn_all_reduces_into_gathers_and_scatters) {
  Plan plan = by_two();
  plan.tensor_sequence = true;
  const Graph graph = build(tiny::model(), plan);
  const auto forward = tiny::exchanges(graph, Phase::kForward).layers;
  const auto backward = tiny::exchanges(graph, Phase::kBackward).layers;
  const auto again = tiny::exchanges(graph, Phase::kRecompute).layers;
  EXPECT_EQ(forward, (std::vector<CollectiveWork>{kGather, kScatter, kGather, kScatter, kGather,
                                                  kScatter, kGather, kScatter}));
  EXPECT_EQ(tiny::count(backward, kScatter), 4);
  EXPECT_EQ(tiny::count(backward, kGather), 4);
  EXPECT_EQ(backward.size(), 8U);
  EXPECT_EQ(again, (std::vector<CollectiveWork>{kGather, kGather, kGather, kGather}));
}

// Ranks that talk about one thing have a lane, and never stand in that of another group. Tensor
// ranks are neighbours; the others lie 2 apart, or 4 and more where sequences are split as well.
TEST(collectives, every_communicator_has_a_lane_of_its_own) {
  for (const int64_t stage : {1, 2, 3}) {
    for (const bool split : {false, true}) {
      Plan plan = by_two();
      plan.data = 2;
      plan.context = split ? 2 : 1;
      plan.devices = 4 * plan.context;
      plan.zero_stage = stage;
      plan.global_batch *= 2;
      std::map<LaneKind, std::set<std::pair<int64_t, int64_t>>> groups;
      for (const Op& op : build(tiny::model(), plan).step.ops) {
        const auto* work = std::get_if<CollectiveWork>(&op.work);
        if (work != nullptr) groups[kind_of(op.lane)].insert({work->ranks, work->stride});
      }
      std::map<LaneKind, std::set<std::pair<int64_t, int64_t>>> expected = {
          {LaneKind::kTensorNetwork, {{2, 1}}}, {LaneKind::kDataNetwork, {{plan.replicas(), 2}}}};
      if (split) expected[LaneKind::kSequenceNetwork] = {{2, 2}};
      EXPECT_EQ(groups, expected) << "stage " << stage << " split " << split;
    }
  }
}

// A bucket that is stepped after weights were gathered would wait for them where it holds part of
// the same module, and hold up the forward.
TEST(collectives, weights_are_gathered_behind_every_step_first_layers_first) {
  Plan plan = tiny::plan();
  plan.devices = plan.data = 2;
  plan.zero_stage = 1;
  plan.global_batch *= 2;
  plan.optimizer.placement = OptimizerPlacement::kGpu;
  const Graph graph = build(tiny::model(), plan);
  std::vector<int32_t> gathered;
  for (const Op& op : graph.step.ops) {
    const auto* work = std::get_if<CollectiveWork>(&op.work);
    if (op.kind == OpKind::kAdam) EXPECT_TRUE(gathered.empty()) << "bucket " << op.label.bucket;
    if (work != nullptr && work->kind == CollectiveKind::kAllGather) {
      gathered.push_back(op.label.bucket);
    }
  }
  EXPECT_EQ(gathered.size(), graph.buckets.size());
  EXPECT_TRUE(std::is_sorted(gathered.rbegin(), gathered.rend()));
}

// Half of every matrix: of a layer's 1040 parameters 16 are of norms, which are whole; of the
// embedding and the head's 16 rows 8. A product has half the FLOPs.
TEST(tensor_pass, a_rank_holds_half_of_every_matrix) {
  const Graph one = build(tiny::model(), tiny::plan());
  const Graph half = build(tiny::model(), by_two());
  EXPECT_EQ(tiny::elements(one, TensorKind::kWeight), 2 * 1040 + 128 + 8 + 128);
  EXPECT_EQ(tiny::elements(half, TensorKind::kWeight), 2 * (512 + 16) + 64 + 8 + 64);
  const auto flops = [](const Graph& graph) {
    double sum = 0;
    for (const Op& op : graph.step.ops) {
      if (op.kind == OpKind::kGemm || op.kind == OpKind::kAttention) sum += flops_of(op.work).count;
    }
    return sum;
  };
  EXPECT_EQ(2 * flops(half), flops(one));
}

// Norms of split tokens touch half the rows.
TEST(tensor_pass, split_norms_have_half_the_tokens) {
  for (const bool split : {false, true}) {
    Plan plan = by_two();
    plan.tensor_sequence = split;
    for (const Op& op : build(tiny::model(), plan).step.ops) {
      if (op.kind != OpKind::kNorm) continue;
      EXPECT_EQ(std::get<RowWork>(op.work).rows, split ? 4 : 8);
    }
  }
}

// Partly overlapping stacks compute the gradient of the input first, and its exchange beside that
// of the weight; fully overlapping ones cut an exchange into a piece a rank: one before or after
// the product, the others beside it. The bytes are the same.
TEST(tensor_pass, overlap_moves_the_same_bytes) {
  const auto moved = [](Overlap overlap) {
    StackFacts facts;
    facts.tensor_overlap = overlap;
    Bytes bytes;
    for (const Op& op : build(tiny::model(), by_two(), facts).step.ops) {
      if (op.kind == OpKind::kCollective) bytes += bytes_of(op.work);
    }
    return bytes;
  };
  EXPECT_EQ(moved(Overlap::kNone), Bytes{10 * 128 + 96});
  EXPECT_EQ(moved(Overlap::kPartial), moved(Overlap::kNone));
  EXPECT_EQ(moved(Overlap::kFull), moved(Overlap::kNone));
}

// A step whose products take 3 ms, exchanges 2 ms and all else nothing.
Duration step_of(const Graph& graph) {
  CostTable costs;
  for (const Op& op : graph.step.ops) {
    OpCost cost;
    if (op.kind == OpKind::kGemm) cost.alone = Duration::from_us(3000);
    if (op.kind == OpKind::kCollective) cost.alone = Duration::from_us(2000);
    costs.ops.push_back(cost);
  }
  return simulate(graph.step, graph, costs, {}).step_time;
}

// Where partly overlapping stacks split norms, what a column-parallel product's weight gradient
// reads is gathered beside the gradient of its input, and that one's scatter runs beside the weight
// gradient (Megatron-LM, core/tensor_parallel/layers.py). Of both layers, in ms:
//   forward   gather 2, qkv 3, out 3, scatter 2, gather 2, fc1 3, fc2 3, scatter 2     = 20
//   backward  fc2: gather 2, 3 + 3; fc1: 3 + 3; out: gather 2, 3 + 3; qkv: 3 + 3       = 28
// Outside: the embedding's scatter 2, the head's gather 2 and product 3, sums of the loss 2; the
// head backward 3 + 3; the embedding's gather 2, of which 1 runs beside the last weight gradient.
TEST(tensor_pass, partly_overlapping_stacks_gather_beside_the_gradient_of_the_input) {
  Plan plan = by_two();
  plan.tensor_sequence = true;
  StackFacts facts;
  facts.tensor_overlap = Overlap::kPartial;
  EXPECT_EQ(step_of(build(tiny::model(), plan, facts)),
            Duration::from_us(1000 * (2 * (20 + 28) + 2 + 5 + 2 + 6 + 2)));
}

}  // namespace
}  // namespace ballast
