// Passes of their own that a framework makes around a layer's kernels, and of its gradients.
//
// A llama of width C = 8 with 2 heads of 4, a gated feed-forward of F = 32 and 2 layers; two
// sequences of 4 tokens: 8 tokens, so that T C = 64 values and T F = 256.
#include <algorithm>
#include <gtest/gtest.h>
#include <set>

#include "tests/graph/tiny_plans.h"

namespace ballast {
namespace {

constexpr int64_t kWidth = 64;   // T C
constexpr int64_t kInner = 256;  // T F

Plan plan_on_gpu() {
  Plan plan = tiny::plan();
  plan.optimizer.placement = OptimizerPlacement::kGpu;
  return plan;
}

Graph graph_of(const StackFacts& facts, const Plan& plan = plan_on_gpu()) {
  return build(tiny::model(), plan, facts);
}

// Bytes that operations of a kind move in a phase, in layer 1.
int64_t moved(const Graph& graph, OpKind kind, Phase phase, ModuleKind module) {
  int64_t sum = 0;
  for (const Op& op : graph.step.ops) {
    const bool counts =
        op.kind == kind && op.phase == phase && op.label.layer == 1 && op.label.module == module;
    if (!counts) continue;
    if (const auto* rows = std::get_if<RowWork>(&op.work)) sum += rows->moved.count;
    if (const auto* attention = std::get_if<AttentionWork>(&op.work)) {
      sum += attention->passed.count;
    }
  }
  return sum;
}

int64_t norm(const StackFacts& facts, Phase phase, ModuleKind module) {
  return moved(graph_of(facts), OpKind::kNorm, phase, module);
}

// Two accesses of 16 bits forward and four backward, unless a stack says more; the sum of the
// residual (six bytes) comes beside.
TEST(LayerFacts, norms_move_what_a_stack_says) {
  StackFacts facts;
  facts.fusion = Fusion::kOnePass;
  EXPECT_EQ(norm(facts, Phase::kForward, ModuleKind::kNorm2), kWidth * (4 + 6));
  EXPECT_EQ(norm(facts, Phase::kBackward, ModuleKind::kNorm2), kWidth * 8);
  facts.norm_bytes = 12;
  facts.norm_backward_bytes = 31;
  EXPECT_EQ(norm(facts, Phase::kForward, ModuleKind::kNorm2), kWidth * (12 + 6));
  EXPECT_EQ(norm(facts, Phase::kBackward, ModuleKind::kNorm2), kWidth * 31);
}

// The second norm with the sum before it; none that the plan makes again anyway.
TEST(LayerFacts, repeated_norms_move_their_forward_once_more) {
  StackFacts facts;
  facts.fusion = Fusion::kOnePass;
  facts.norm_bytes = 12;
  facts.norm_backward_bytes = 28;
  facts.repeats_norms = true;
  EXPECT_EQ(norm(facts, Phase::kBackward, ModuleKind::kNorm1), kWidth * (28 + 12));
  EXPECT_EQ(norm(facts, Phase::kBackward, ModuleKind::kNorm2), kWidth * (28 + 12 + 6));
  Plan plan = plan_on_gpu();
  plan.activations->fate[static_cast<size_t>(ModuleKind::kNorm1)] = ActivationFate::kRecompute;
  EXPECT_EQ(moved(graph_of(facts, plan), OpKind::kNorm, Phase::kBackward, ModuleKind::kNorm1),
            kWidth * 28);
}

// Two halves read and written: 2 F values of 16 bits each way.
TEST(LayerFacts, gradients_of_both_halves_of_a_gate_are_joined) {
  const auto backward = [](bool joins) {
    StackFacts facts;
    facts.joins_gate = joins;
    return moved(graph_of(facts), OpKind::kActivation, Phase::kBackward, ModuleKind::kActivation);
  };
  EXPECT_EQ(backward(true) - backward(false), 2 * kInner * 4);
}

// Queries, keys and values are 8 wide each; rotary embedding is queries and keys, read and written.
TEST(LayerFacts, attention_has_its_passes_beside_its_kernel) {
  const auto beside = [](const StackFacts& facts, Phase phase) {
    return moved(graph_of(facts), OpKind::kAttention, phase, ModuleKind::kCoreAttention);
  };
  StackFacts facts;
  EXPECT_EQ(beside(facts, Phase::kForward), 0) << "all within the kernel";
  facts.fusion = Fusion::kOnePass;
  EXPECT_EQ(beside(facts, Phase::kForward), kWidth * 8);
  facts.query_bytes = 4;
  facts.key_bytes = 12;
  facts.query_backward_bytes = 8;
  facts.key_backward_bytes = 10;
  EXPECT_EQ(beside(facts, Phase::kForward), kWidth * (8 + 4 + 2 * 12));
  EXPECT_EQ(beside(facts, Phase::kBackward), kWidth * (8 + 8 + 2 * 10));
}

// Of two micro-batches the second adds: every product's gradient once, six bytes an element, behind
// the product that made it.
TEST(LayerFacts, later_micro_batches_add_their_gradients_in_a_pass_of_their_own) {
  Plan plan = plan_on_gpu();
  plan.global_batch = 4;
  plan.micro_batch = 2;
  StackFacts facts;
  const Graph before = graph_of(facts, plan);
  facts.accumulate_bytes = 6;
  const Graph graph = graph_of(facts, plan);
  int64_t products = 0;  // elements of their gradients
  for (const Op& op : graph.step.ops) {
    const auto* work = std::get_if<GemmWork>(&op.work);
    if (work == nullptr || op.phase != Phase::kBackwardWeight) continue;
    EXPECT_FALSE(work->accumulate);
    if (op.label.micro_batch == 1) products += work->m * work->n;
  }
  int64_t added = 0;
  for (size_t i = 1; i < graph.step.ops.size(); ++i) {
    const Op& op = graph.step.ops[i];
    const auto* work = std::get_if<RowWork>(&op.work);
    if (work == nullptr || op.phase != Phase::kBackwardWeight) continue;
    EXPECT_EQ(op.label.micro_batch, 1);
    EXPECT_EQ(graph.step.ops[i - 1].kind, OpKind::kGemm);
    EXPECT_EQ(graph.step.ops[i - 1].label, op.label);
    added += work->moved.count;
  }
  EXPECT_GT(products, 0);
  EXPECT_EQ(added, 6 * products);
  EXPECT_EQ(tiny::bytes(graph, TensorKind::kGradient), tiny::bytes(before, TensorKind::kGradient));
}

// Buckets of PyTorch's DDP and the reductions beside the backward: of two ranks, at stage 0. At
// stage 1 both are gone, and so are they on one rank.
TEST(LayerFacts, buckets_may_be_there_at_stage_0_of_several_ranks_alone) {
  StackFacts facts;
  facts.copies_gradients_to_buckets = true;
  facts.reduces_whole = true;
  facts.reduce_bytes = 4;
  const auto graph_at = [&](int64_t ranks, int64_t stage, bool alone) {
    Plan plan = plan_on_gpu();
    plan.devices = plan.data = ranks;
    plan.global_batch = 2 * ranks;
    plan.zero_stage = stage;
    facts.buckets_at_stage_0_alone = alone;
    return graph_of(facts, plan);
  };
  const auto is_laid_out = [](const Graph& graph) {
    return std::any_of(graph.step.ops.begin(), graph.step.ops.end(),
                       [](const Op& op) { return op.kind == OpKind::kPack; });
  };
  const auto reduces_on_compute_lane = [](const Graph& graph) {
    for (const Op& op : graph.step.ops) {
      const auto* work = std::get_if<CollectiveWork>(&op.work);
      const bool reduces = work != nullptr && work->kind == CollectiveKind::kAllReduce;
      if (reduces && kind_of(op.lane) != LaneKind::kCompute) return false;
    }
    return true;
  };
  for (const bool alone : {false, true}) {
    const Graph graph = graph_at(2, 0, alone);
    EXPECT_GT(tiny::elements(graph, TensorKind::kPacked), 0) << alone;
    EXPECT_TRUE(is_laid_out(graph)) << alone;
    EXPECT_FALSE(reduces_on_compute_lane(graph)) << alone;
  }
  EXPECT_FALSE(reduces_on_compute_lane(graph_at(2, 1, false)));
  EXPECT_TRUE(reduces_on_compute_lane(graph_at(2, 1, true)));
  EXPECT_FALSE(is_laid_out(graph_at(2, 1, true)));
  EXPECT_GT(tiny::elements(graph_at(1, 0, false), TensorKind::kPacked), 0);
  EXPECT_EQ(tiny::elements(graph_at(1, 0, true), TensorKind::kPacked), 0);
}

// A framework's sums of gradients are there before the first micro-batch's are made.
TEST(LayerFacts, sums_of_gradients_that_are_added_apart_are_there_all_the_time) {
  StackFacts facts;
  facts.gradients = GradientPrecision::kF32;
  facts.adds_gradients_apart = true;
  int64_t sums = 0;
  for (const Graph graph = graph_of(facts); const Op& op : graph.step.ops) {
    for (const Access& access : op.accesses) {
      const Tensor& tensor = graph.tensors[static_cast<size_t>(access.tensor)];
      if (op.kind != OpKind::kActivation || tensor.kind != TensorKind::kGradient) continue;
      EXPECT_EQ(access.mode, AccessMode::kReadWrite);
      ++sums;
    }
  }
  EXPECT_GT(sums, 0);
}

// Four ranks' shares, or as many as there are modules with weights: each rank's by itself.
TEST(LayerFacts, shares_of_whole_tensors_are_broadcast_rank_by_rank) {
  Plan plan = plan_on_gpu();
  plan.devices = plan.data = 4;
  plan.global_batch = 8;
  plan.zero_stage = 1;
  plan.optimizer.bucket_bytes = Bytes{1 << 20};
  const auto sent = [&](const StackFacts& facts, CollectiveKind kind) {
    std::vector<int64_t> bytes;
    for (const Op& op : graph_of(facts, plan).step.ops) {
      const auto* work = std::get_if<CollectiveWork>(&op.work);
      if (work != nullptr && work->kind == kind) bytes.push_back(work->bytes.count);
    }
    return bytes;
  };
  StackFacts facts;
  const std::vector<int64_t> gathered = sent(facts, CollectiveKind::kAllGather);
  ASSERT_EQ(gathered.size(), 1U) << "one bucket";
  facts.broadcasts_shares = true;
  EXPECT_TRUE(sent(facts, CollectiveKind::kAllGather).empty());
  const std::vector<int64_t> shares = sent(facts, CollectiveKind::kBroadcast);
  ASSERT_EQ(shares.size(), 4U);
  for (const int64_t share : shares) EXPECT_EQ(share, (gathered.front() + 3) / 4);
}

constexpr tiny::Widths kOfSixteen{.layers = 1, .hidden = 16, .head_size = 8};

// Bytes that rows of experts move on their way there and back, and whether each expert has a
// product of its own.
struct ExpertRows {
  int64_t forward = 0, backward = 0, one_by_one = 0, products = 0;
};

ExpertRows rows_of_experts(const StackFacts& facts, int64_t ranks, ProductFormat products) {
  Plan plan = plan_on_gpu();
  plan.devices = plan.data = plan.expert = ranks;
  plan.global_batch *= ranks;
  plan.sequence_length = 16;
  plan.products = products;
  ExpertRows sum;
  const Model model = tiny::mixtral(kOfSixteen);
  for (const Op& op : build(model, plan, facts).step.ops) {
    if (op.kind == OpKind::kPermute || op.kind == OpKind::kCombine) {
      const int64_t bytes = std::get<RowWork>(op.work).moved.count;
      (is_backward(op.phase) ? sum.backward : sum.forward) += bytes;
    }
    const auto* product = std::get_if<GemmWork>(&op.work);
    if (product == nullptr || product->experts == 0) continue;
    sum.one_by_one += product->by_expert ? 1 : 0;
    ++sum.products;
  }
  return sum;
}

// 32 tokens, two experts each: 64 rows of 16 values, read and written before experts and behind.
TEST(LayerFacts, rows_are_sorted_by_expert_where_a_rank_has_several_and_padded_in_8_bits) {
  constexpr int64_t kRows = 64 * 16;
  StackFacts facts;
  const ExpertRows plain = rows_of_experts(facts, 1, ProductFormat::kAsStored);
  EXPECT_EQ(plain.forward, 2 * kRows * 4);
  EXPECT_EQ(plain.one_by_one, 0);
  EXPECT_EQ(plain.products, 6) << "up and down, each with two of its gradients";
  facts.sort_bytes = 8;
  facts.padding_bytes = 6;
  facts.multiplies_by_expert = true;
  const ExpertRows sorted = rows_of_experts(facts, 1, ProductFormat::kAsStored);
  EXPECT_EQ(sorted.forward - plain.forward, kRows * 8);
  EXPECT_EQ(sorted.backward - plain.backward, kRows * 8);
  EXPECT_EQ(sorted.one_by_one, 6);
  const ExpertRows in_codes = rows_of_experts(facts, 1, ProductFormat::kFp8);
  EXPECT_EQ(in_codes.forward - sorted.forward, kRows * 6);
  const ExpertRows of_one = rows_of_experts(facts, 4, ProductFormat::kAsStored);
  EXPECT_EQ(of_one.forward, plain.forward) << "a rank with one expert has nothing to sort";
}

// As above, with as many rows of 2 x 32 values before their activation: each value is clamped in
// passes of its own, and 16 values a row take their expert's bias.
TEST(LayerFacts, clamped_activations_and_biases_of_experts_are_passes_of_their_own) {
  constexpr int64_t kRows = 64;
  Plan plan = plan_on_gpu();
  plan.sequence_length = 16;
  Model model = tiny::mixtral(kOfSixteen);
  const auto bytes = [&](const StackFacts& facts, OpKind kind, bool backward) {
    int64_t sum = 0;
    for (const Op& op : build(model, plan, facts).step.ops) {
      const auto* work = std::get_if<RowWork>(&op.work);
      if (op.kind == kind && work != nullptr && is_backward(op.phase) == backward) {
        sum += work->moved.count;
      }
    }
    return sum;
  };
  StackFacts facts;
  facts.clamp_bytes = 8;
  facts.clamp_backward_bytes = 10;
  facts.expert_bias_bytes = 12;
  facts.expert_bias_backward_bytes = 16;
  const auto more = [&](OpKind kind, bool backward) {
    return bytes(facts, kind, backward) - bytes({}, kind, backward);
  };
  EXPECT_EQ(more(OpKind::kActivation, false), 0) << "nothing is clamped";
  EXPECT_EQ(more(OpKind::kCombine, false), 0) << "no expert has a bias";
  model.activation = ActivationKind::kClampedSwiGlu;
  model.mlp_bias = true;
  EXPECT_EQ(more(OpKind::kActivation, false), kRows * model.fc1_width(0) / 2 * 8);
  EXPECT_EQ(more(OpKind::kActivation, true), kRows * model.fc1_width(0) / 2 * 10);
  EXPECT_EQ(more(OpKind::kCombine, false), kRows * 16 * 12);
  EXPECT_EQ(more(OpKind::kPermute, true), kRows * 16 * 16);
  EXPECT_EQ(more(OpKind::kCombine, true) + more(OpKind::kPermute, false), 0);
}

// The products that a framework gives a bias to, whose gradient they sum: of queries, keys and
// values, and the experts' first one. In 8 bits what rounds the gradients sums them too.
TEST(LayerFacts, products_of_gradients_sum_those_of_biases) {
  const auto modules = [](Model model, ProductFormat products, int64_t percent) {
    StackFacts facts;
    facts.bias_epilogue_percent = percent;
    Plan plan = plan_on_gpu();
    plan.products = products;
    plan.sequence_length = 16;
    model.qkv_bias = model.attention_out_bias = model.mlp_bias = true;
    std::set<ModuleKind> found;
    for (const Op& op : build(model, plan, facts).step.ops) {
      const auto* work = std::get_if<GemmWork>(&op.work);
      if (work == nullptr || !work->sums_bias) continue;
      EXPECT_EQ(op.phase, Phase::kBackwardWeight);
      found.insert(op.label.module);
    }
    return found;
  };
  const Model experts = tiny::mixtral(kOfSixteen);
  EXPECT_EQ(modules(experts, ProductFormat::kAsStored, 127),
            (std::set{ModuleKind::kQkv, ModuleKind::kFc1}));
  EXPECT_TRUE(modules(experts, ProductFormat::kAsStored, 0).empty());
  EXPECT_TRUE(modules(experts, ProductFormat::kFp8, 127).empty());
  Model dense = tiny::model();
  dense.max_positions = 16;
  EXPECT_EQ(modules(dense, ProductFormat::kAsStored, 127), (std::set{ModuleKind::kQkv}));
}

}  // namespace
}  // namespace ballast
