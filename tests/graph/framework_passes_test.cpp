// Passes that a framework makes in kernels of their own, and what it keeps and holds of them.
//
// A llama of width 32 with 4 heads of 8, 2 of keys and values, and a feed-forward width of 64; 3
// layers; two sequences of 16 tokens: 32 tokens.
#include <algorithm>
#include <gtest/gtest.h>

#include "sim/graph/core/edit.h"
#include "tests/graph/tiny_plans.h"

namespace ballast {
namespace {

constexpr int64_t kTokensOfAll = 2 * 16;
constexpr int64_t kQueries = kTokensOfAll * 4 * 8;
constexpr int64_t kKeys = kTokensOfAll * 2 * 8;

Model grouped() {
  return tiny::llama({.layers = 3,
                      .hidden = 32,
                      .heads = 4,
                      .kv_heads = 2,
                      .head_size = 8,
                      .ffn = 64,
                      .vocab = 64,
                      .positions = 16});
}

Plan on_one_gpu() {
  Plan plan = tiny::plan();
  plan.sequence_length = 16;
  plan.optimizer.placement = OptimizerPlacement::kGpu;
  return plan;
}

// By layer and direction alike.
int64_t passed(const Model& model, const StackFacts& facts, Phase phase) {
  const Graph graph = build(model, on_one_gpu(), facts);
  int64_t bytes = -1;
  for (const Op& op : graph.step.ops) {
    const auto* work = std::get_if<AttentionWork>(&op.work);
    if (work == nullptr || op.phase != phase) continue;
    if (bytes >= 0) EXPECT_EQ(work->passed.count, bytes);
    bytes = work->passed.count;
  }
  return bytes;
}

// Within the products nothing; one pass reads and writes 2 bytes each of queries and keys; several
// move what their stack says. Learned positions turn nothing.
TEST(FrameworkPasses, rotary_positions_pass_beside_the_attention) {
  for (const AttentionKind kind : {AttentionKind::kFlash, AttentionKind::kEager}) {
    StackFacts facts;
    facts.attention = {kind};
    EXPECT_EQ(passed(grouped(), facts, Phase::kForward), 0);
    facts.fusion = Fusion::kOnePass;
    EXPECT_EQ(passed(grouped(), facts, Phase::kForward), 4 * (kQueries + kKeys));
    EXPECT_EQ(passed(grouped(), facts, Phase::kBackward), 4 * (kQueries + kKeys));
    facts.rotary_bytes = 24;
    facts.rotary_backward_bytes = 28;
    EXPECT_EQ(passed(grouped(), facts, Phase::kForward), 24 * (kQueries + kKeys));
    EXPECT_EQ(passed(grouped(), facts, Phase::kBackward), 28 * (kQueries + kKeys));
    Model learned = grouped();
    learned.position = PositionKind::kLearned;
    EXPECT_EQ(passed(learned, facts, Phase::kForward), 0);
    facts.query_bytes = 5;
    facts.query_backward_bytes = 7;
    EXPECT_EQ(passed(learned, facts, Phase::kForward), 5 * kQueries);
    EXPECT_EQ(passed(learned, facts, Phase::kBackward), 7 * kQueries);
  }
}

// YaRN's, where a framework's kernel has no factor for them; not those of latent attention.
TEST(FrameworkPasses, positions_that_scale_queries_and_keys_may_be_passes_of_their_own) {
  StackFacts facts;
  facts.fusion = Fusion::kOnePass;
  facts.yarn_bytes = 24;
  facts.yarn_backward_bytes = 28;
  Model model = grouped();
  EXPECT_EQ(passed(model, facts, Phase::kForward), 4 * (kQueries + kKeys));
  model.yarn = true;
  EXPECT_EQ(passed(model, facts, Phase::kForward), 24 * (kQueries + kKeys));
  EXPECT_EQ(passed(model, facts, Phase::kBackward), 28 * (kQueries + kKeys));
  // Of either direction what is not said is as of others.
  facts.rotary_bytes = facts.rotary_backward_bytes = 20;
  facts.yarn_backward_bytes = 0;
  EXPECT_EQ(passed(model, facts, Phase::kForward), 24 * (kQueries + kKeys));
  EXPECT_EQ(passed(model, facts, Phase::kBackward), 20 * (kQueries + kKeys));
  Model latent = tiny::deepseek_v3({.layers = 1});
  const int64_t as_others = passed(latent, facts, Phase::kForward);
  latent.yarn = true;
  EXPECT_EQ(passed(latent, facts, Phase::kForward), as_others);
}

// A bias of the scores is copied to each of 2 x 4 x 16 x 16 and read again by the product, forward.
// Who turns queries and keys has none.
TEST(FrameworkPasses, a_bias_of_positions_moves_scores_forward) {
  Model model = grouped();
  const auto moved = [&](int64_t score_bytes, Phase phase) {
    StackFacts facts;
    facts.attention = {AttentionKind::kEager};
    facts.score_bytes = score_bytes;
    int64_t sum = 0;
    for (const Op& op : build(model, on_one_gpu(), facts).step.ops) {
      const auto* work = std::get_if<AttentionWork>(&op.work);
      if (work != nullptr && op.phase == phase && op.label.layer == 0) sum += work->moved.count;
    }
    return sum;
  };
  EXPECT_EQ(moved(4, Phase::kForward), moved(0, Phase::kForward));
  model.position = PositionKind::kLearned;
  EXPECT_EQ(moved(4, Phase::kForward) - moved(0, Phase::kForward), 4 * 2 * 4 * 16 * 16);
  EXPECT_EQ(moved(4, Phase::kBackward), moved(0, Phase::kBackward));
}

// Of ranks that split heads or tokens each has its share.
TEST(FrameworkPasses, every_rank_passes_over_its_own_heads_and_tokens) {
  StackFacts facts;
  facts.rotary_bytes = 24;
  facts.query_bytes = 5;
  Plan plan = on_one_gpu();
  plan.devices = 2;
  for (int64_t Plan::* degree : {&Plan::tensor, &Plan::sequence}) {
    Plan split = plan;
    split.*degree = 2;
    const Graph graph = build(grouped(), split, facts);
    for (const Op& op : graph.step.ops) {
      const auto* work = std::get_if<AttentionWork>(&op.work);
      if (work == nullptr || op.phase != Phase::kForward) continue;
      EXPECT_EQ(work->passed.count, (24 * (kQueries + kKeys) + 5 * kQueries) / 2);
    }
  }
}

int64_t moved_by_activation(const Model& model, const StackFacts& facts, Phase phase) {
  for (const Op& op : build(model, on_one_gpu(), facts).step.ops) {
    if (op.kind == OpKind::kActivation && op.phase == phase) {
      return std::get<RowWork>(op.work).moved.count;
    }
  }
  return -1;
}

// Of 64 columns that are read and written, in 16 bits; of a gated network's 128 half as many are
// written, whatever a stack says of GELU.
TEST(FrameworkPasses, gelu_moves_as_many_bytes_as_its_kernels_do) {
  const Model gelu = tiny::gpt2({.layers = 1,
                                 .hidden = 32,
                                 .heads = 4,
                                 .kv_heads = 4,
                                 .head_size = 8,
                                 .ffn = 64,
                                 .positions = 16});
  StackFacts facts;
  EXPECT_EQ(moved_by_activation(gelu, facts, Phase::kForward), kTokensOfAll * (64 + 64) * 2);
  const int64_t gated = kTokensOfAll * (128 + 64) * 2;
  EXPECT_EQ(moved_by_activation(grouped(), facts, Phase::kForward), gated);
  facts.activation_bytes = 46;
  facts.activation_backward_bytes = 92;
  EXPECT_EQ(moved_by_activation(gelu, facts, Phase::kForward), kTokensOfAll * 64 * 46);
  EXPECT_EQ(moved_by_activation(gelu, facts, Phase::kBackward), kTokensOfAll * 64 * 92);
  EXPECT_EQ(moved_by_activation(grouped(), facts, Phase::kForward), gated);
}

// Two norms a layer and one at the end keep 4 + 2 bytes a value, in place of the input's 2: no
// backward of a norm reads that any more.
TEST(FrameworkPasses, a_norm_of_separate_operations_keeps_its_input_in_32_bits) {
  StackFacts facts;
  const int64_t before =
      tiny::bytes(build(grouped(), on_one_gpu(), facts), TensorKind::kNormStatistics).count;
  facts.keeps_wide_norms = true;
  const Graph graph = build(grouped(), on_one_gpu(), facts);
  EXPECT_EQ(tiny::bytes(graph, TensorKind::kNormStatistics).count - before,
            7 * kTokensOfAll * 32 * 6);
  for (const Op& op : graph.step.ops) {
    if (op.kind != OpKind::kNorm || !is_backward(op.phase)) continue;
    EXPECT_TRUE(std::none_of(op.accesses.begin(), op.accesses.end(),
                             [](const Access& access) { return access.role == Role::kInput; }));
  }
  Model layer_norm = grouped();
  layer_norm.norm = NormKind::kLayerNorm;
  EXPECT_EQ(tiny::bytes(build(layer_norm, on_one_gpu(), facts), TensorKind::kNormStatistics).count,
            before)
      << "which is one kernel everywhere";
}

// Keys and values of 2 heads become those of 4: 2 more of each, of 8 values, in every layer, from
// the forward to the backward.
TEST(FrameworkPasses, repeated_keys_and_values_are_kept_for_every_head) {
  StackFacts facts;
  const int64_t before = tiny::elements(build(grouped(), on_one_gpu(), facts), TensorKind::kOutput);
  facts.keeps_repeated_heads = true;
  const Graph graph = build(grouped(), on_one_gpu(), facts);
  EXPECT_EQ(tiny::elements(graph, TensorKind::kOutput) - before, 3 * kTokensOfAll * 2 * 2 * 8);
  for (const Op& op : graph.step.ops) {
    if (op.kind != OpKind::kAttention) continue;
    const auto kept = std::find_if(op.accesses.begin(), op.accesses.end(), [&](const Access& a) {
      const Tensor& tensor = graph.tensors[static_cast<size_t>(a.tensor)];
      return a.role == Role::kStatistics && tensor.kind == TensorKind::kOutput;
    });
    ASSERT_NE(kept, op.accesses.end());
    EXPECT_EQ(writes(*kept), op.phase == Phase::kForward);
  }
  Model all = grouped();
  all.kv_heads = 4;
  EXPECT_EQ(tiny::elements(build(all, on_one_gpu(), facts), TensorKind::kOutput),
            tiny::elements(build(all, on_one_gpu(), StackFacts{}), TensorKind::kOutput));
}

Plan sharded_over_two() {
  Plan plan = on_one_gpu();
  plan.devices = plan.data = 2;
  plan.global_batch = 4;
  plan.micro_batch = 2;
  plan.zero_stage = 3;
  return plan;
}

// As many as there may be, or all that there are; there when the loss is computed, which no
// module's own gather is.
TEST(FrameworkPasses, weights_are_gathered_ahead_as_far_as_a_stack_lets_them) {
  StackFacts facts;
  EXPECT_EQ(tiny::elements(build(grouped(), sharded_over_two(), facts), TensorKind::kArriving), 0);
  const int64_t parameters = parameter_count(grouped());
  for (const int64_t limit : {int64_t{1000}, parameters, 2 * parameters}) {
    facts.live_elements = limit;
    const Graph graph = build(grouped(), sharded_over_two(), facts);
    const std::vector<Tensor> ahead = tiny::used(graph, TensorKind::kArriving);
    ASSERT_EQ(ahead.size(), 1U);
    EXPECT_EQ(ahead.front().elements, std::min(limit, parameters));
    const std::vector<Life> lives = lives_of(graph);
    const OpId loss = tiny::first(graph, OpKind::kLoss);
    for (size_t t = 0; t < graph.tensors.size(); ++t) {
      if (graph.tensors[t].kind != TensorKind::kArriving) continue;
      EXPECT_LT(lives[t].first, loss);
      EXPECT_GT(lives[t].last, loss);
    }
  }
  facts.live_elements = 1000;
  Plan whole = sharded_over_two();
  whole.zero_stage = 1;
  EXPECT_EQ(tiny::elements(build(grouped(), whole, facts), TensorKind::kArriving), 0);
}

// A rank's half of all gradients, from one step to the next; not where the CPU steps them.
TEST(FrameworkPasses, a_buffer_of_gradients_is_there_all_the_time) {
  const auto carried = [](const Plan& plan, bool keeps) {
    StackFacts facts;
    facts.keeps_gradient_buffer = keeps;
    const Graph graph = build(grouped(), plan, facts);
    const std::vector<Life> lives = lives_of(graph);
    int64_t elements = 0;
    for (size_t t = 0; t < graph.tensors.size(); ++t) {
      const bool gradient = graph.tensors[t].kind == TensorKind::kGradient;
      if (gradient && lives[t].carried) elements += graph.tensors[t].elements;
    }
    return elements;
  };
  EXPECT_EQ(carried(sharded_over_two(), true), parameter_count(grouped()) / 2);
  EXPECT_EQ(carried(sharded_over_two(), false), 0);
  Plan on_cpu = sharded_over_two();
  on_cpu.optimizer.placement = OptimizerPlacement::kCpu;
  EXPECT_EQ(carried(on_cpu, true), 0);
  Plan whole = sharded_over_two();
  whole.zero_stage = 1;
  EXPECT_EQ(carried(whole, true), 0);
}

Plan speculating() {
  Plan plan = sharded_over_two();
  plan.optimizer.placement = OptimizerPlacement::kCpu;
  plan.optimizer.gpu_buckets = 0;
  plan.optimizer.sync = SyncMode::kSpeculate;
  return plan;
}

// Each copy to the CPU ends the stay of the one before it, the first that of the last step's last.
TEST(FrameworkPasses, a_gradient_that_was_sent_stays_until_the_next_has_been) {
  StackFacts facts;
  facts.holds_sent_gradients = true;
  const Graph graph = build(grouped(), speculating(), facts);
  const std::vector<Life> lives = lives_of(graph);
  std::vector<TensorId> packed;
  for (const Op& op : graph.step.ops) {
    if (op.kind != OpKind::kCopy || op.lane != lane_of(0, LaneKind::kCopyOut)) continue;
    if (op.label.bucket < 0 || holds_norms(graph, op)) continue;
    ASSERT_EQ(op.accesses.front().role, Role::kSource);
    packed.push_back(op.accesses.front().tensor);
  }
  ASSERT_EQ(packed.size(), graph.buckets.size());
  ASSERT_GT(packed.size(), 2U);
  size_t sent = 0;
  for (const Op& op : graph.step.ops) {
    if (op.kind != OpKind::kCopy || op.lane != lane_of(0, LaneKind::kCopyOut)) continue;
    if (holds_norms(graph, op)) continue;
    const TensorId before = packed[(sent + packed.size() - 1) % packed.size()];
    EXPECT_EQ(op.accesses.back().tensor, before);
    EXPECT_FALSE(writes(op.accesses.back()));
    ++sent;
  }
  EXPECT_TRUE(lives[static_cast<size_t>(packed.back())].carried);
  EXPECT_FALSE(lives[static_cast<size_t>(packed.front())].carried);
  Plan waits = speculating();
  waits.optimizer.sync = SyncMode::kWait;
  for (const Op& op : build(grouped(), waits, facts).step.ops) {
    if (op.kind == OpKind::kCopy) EXPECT_EQ(op.accesses.size(), 2U);
  }
}

int64_t moved_for_norms(DType dtype, int64_t stage, const StackFacts& facts) {
  Plan plan = sharded_over_two();
  plan.dtype = dtype;
  plan.zero_stage = stage;
  int64_t moved = 0;
  for (const Op& op : build(grouped(), plan, facts).step.ops) {
    if (op.kind == OpKind::kSumOfSquares) moved += std::get<BucketWork>(op.work).moved.count;
  }
  return moved;
}

// Both ranks of stage 1 look at a half of the gradients, as those of stage 3 have no more.
TEST(FrameworkPasses, gradients_of_fp16_alone_are_looked_through_for_infinities) {
  StackFacts facts;
  facts.step_bytes = 36;
  facts.stage3_step_bytes = 40;
  facts.overflow_bytes = 30;
  facts.stage3_overflow_bytes = 20;
  for (const int64_t stage : {1, 2, 3}) {
    const int64_t per = stage == 3 ? 40 : 36;
    const int64_t narrow = moved_for_norms(DType::kBf16, stage, facts);
    EXPECT_GT(narrow, 0);
    EXPECT_EQ(narrow % per, 0) << stage;
    EXPECT_EQ(moved_for_norms(DType::kF16, stage, facts), narrow / per * (stage == 3 ? 60 : 66))
        << stage;
  }
}

}  // namespace
}  // namespace ballast
