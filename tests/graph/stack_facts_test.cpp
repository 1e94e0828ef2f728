// What a framework keeps in memory, held against the formulas of arXiv 2205.05198 and 1910.02054.
//
// A GPT of width h = 32 with a = 4 heads and a feed-forward width of 4 h, sequences of s = 16
// tokens, b = 2 of them: s b h = 1024, and 5 a s / h = 10.
#include <algorithm>
#include <gtest/gtest.h>

#include "sim/graph/core/edit.h"
#include "tests/graph/tiny_plans.h"

namespace ballast {
namespace {

constexpr int64_t kTokenValues = 16 * 2 * 32;  // s b h
constexpr int64_t kScores = 10;                // 5 a s / h

Model gpt() {
  Model model = tiny::gpt2({.layers = 3,
                            .hidden = 32,
                            .heads = 4,
                            .kv_heads = 4,
                            .head_size = 8,
                            .ffn = 128,
                            .vocab = 64,
                            .positions = 16});
  model.tied_embeddings = false;
  return model;
}

Plan gpt_plan() {
  Plan plan = tiny::plan();
  plan.sequence_length = 16;
  plan.optimizer.placement = OptimizerPlacement::kGpu;
  return plan;
}

StackFacts megatron() {
  StackFacts facts;
  facts.attention = {AttentionKind::kEager};
  facts.dropout = true;
  return facts;
}

// Bytes that the forward of the middle layer writes for a backward. As in the paper, without the
// two statistics of a norm's token (and the sums of exponentials that flash attention keeps).
int64_t saved(const Plan& plan, const StackFacts& facts) {
  const Graph graph = build(gpt(), plan, facts);
  std::vector<bool> written(graph.tensors.size()), kept(graph.tensors.size());
  for (const Op& op : graph.step.ops) {
    for (const Access& access : op.accesses) {
      const auto t = static_cast<size_t>(access.tensor);
      if (op.phase == Phase::kForward && writes(access)) written[t] = true;
      if (op.phase != Phase::kForward && reads(access)) kept[t] = written[t];
    }
  }
  Bytes bytes;
  for (size_t t = 0; t < kept.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    if (!kept[t] || tensor.label.layer != 1 || tensor.category != Category::kActivations) continue;
    if (tensor.kind == TensorKind::kNormStatistics || tensor.kind == TensorKind::kLogSumExp) {
      continue;
    }
    bytes += tensor.bytes();
  }
  return bytes.count;
}

Plan tensor_parallel(int64_t ranks) {
  Plan plan = gpt_plan();
  plan.devices = plan.tensor = ranks;
  return plan;
}

// Equation 1: s b h (34 + 5 a s / h).
TEST(StackFacts, a_layer_with_dropout_and_eager_attention_keeps_what_the_paper_says) {
  EXPECT_EQ(saved(gpt_plan(), megatron()), kTokenValues * (34 + kScores));
}

// Equation 2: s b h (10 + 24 / t + 5 a s / (h t)).
TEST(StackFacts, tensor_parallelism_leaves_ten_bytes_of_a_layer_whole) {
  for (const int64_t t : {2, 4}) {
    EXPECT_EQ(saved(tensor_parallel(t), megatron()), kTokenValues * (10 * t + 24 + kScores) / t);
  }
}

// Equation 4: s b h / t (34 + 5 a s / h).
TEST(StackFacts, sequence_parallelism_splits_them_too) {
  for (const int64_t t : {2, 4}) {
    Plan plan = tensor_parallel(t);
    plan.tensor_sequence = true;
    EXPECT_EQ(saved(plan, megatron()), kTokenValues * (34 + kScores) / t);
  }
}

// Section 5: 34 s b h / t without the scores; section 4.1: 2 s b h where a layer keeps its input.
TEST(StackFacts, selective_recompute_drops_the_scores_and_full_recompute_all_but_the_input) {
  Plan plan = tensor_parallel(2);
  plan.tensor_sequence = true;
  plan.activations->scores = ActivationFate::kRecompute;
  EXPECT_EQ(saved(plan, megatron()), kTokenValues * 34 / 2);
  plan = gpt_plan();
  plan.activations->scores = ActivationFate::kRecompute;
  plan.activations->fate.fill(ActivationFate::kRecompute);
  plan.activations->fate[static_cast<size_t>(ModuleKind::kFc2)] = ActivationFate::kKeep;
  EXPECT_EQ(saved(plan, megatron()), kTokenValues * 2);
}

// Flash attention keeps no scores; without dropout there are no masks of one byte, two of s b h.
TEST(StackFacts, flash_attention_keeps_no_scores_and_no_dropout_no_masks) {
  StackFacts facts = megatron();
  facts.attention = {AttentionKind::kFlash};
  EXPECT_EQ(saved(gpt_plan(), facts), kTokenValues * 34);
  facts.dropout = false;
  EXPECT_EQ(saved(gpt_plan(), facts), kTokenValues * 32);
  facts.attention = {AttentionKind::kEager};  // softmax of 2 bytes alone
  EXPECT_EQ(saved(gpt_plan(), facts), kTokenValues * (32 + kScores * 2 / 5));
}

// Bytes of the first attention of that phase, in units of the scores: 2 sequences of 4 heads.
int64_t moved_by_attention(const StackFacts& facts, Phase phase) {
  constexpr int64_t kSquares = 2 * 4 * 16 * 16;
  for (const Op& op : build(gpt(), gpt_plan(), facts).step.ops) {
    const auto* work = std::get_if<AttentionWork>(&op.work);
    if (work != nullptr && op.phase == phase) return work->moved.count / kSquares;
  }
  return 0;
}

// A fused softmax reads the half of each row that the mask leaves: of 2 bytes a score 2 written and
// 2 read by products, 1 read and 2 written between them; backward 2 and 3 times 2, 1 and 1 and 2.
// Dropout adds 4 and a byte of mask; unfused, scale and mask are passes of the whole square.
TEST(StackFacts, fused_softmax_reads_no_scores_behind_the_mask) {
  StackFacts facts = megatron();
  EXPECT_EQ(moved_by_attention(facts, Phase::kForward), 7 + 5);
  EXPECT_EQ(moved_by_attention(facts, Phase::kBackward), 12 + 5);
  facts.dropout = false;
  EXPECT_EQ(moved_by_attention(facts, Phase::kForward), 7);
  facts.fusion = Fusion::kNone;
  EXPECT_EQ(moved_by_attention(facts, Phase::kForward), 16);
  EXPECT_EQ(moved_by_attention(facts, Phase::kBackward), 18);
}

// Models other than GPT-2 are trained without dropout, whatever the framework.
TEST(StackFacts, a_model_that_is_not_gpt2_drops_nothing_out) {
  Model llama = gpt();
  llama.architecture = "llama";
  const Graph with = build(llama, gpt_plan(), megatron());
  StackFacts facts = megatron();
  facts.dropout = false;
  EXPECT_EQ(tiny::used(with, TensorKind::kMask).size(), 0U);
  EXPECT_EQ(with.step.ops.size(), build(llama, gpt_plan(), facts).step.ops.size());
  EXPECT_GT(tiny::used(build(gpt(), gpt_plan(), megatron()), TensorKind::kMask).size(), 0U);
}

// --- state ---------------------------------------------------------------------------------------

int64_t state(const Graph& graph) {
  int64_t bytes = 0;
  for (const TensorKind kind : {TensorKind::kWeight, TensorKind::kGradient, TensorKind::kMaster,
                                TensorKind::kMoment1, TensorKind::kMoment2}) {
    bytes += tiny::bytes(graph, kind).count;
  }
  return bytes;
}

// Weights 2, gradients 2 or 4, master 4, moments 8 (arXiv 1910.02054, section 3.1).
TEST(StackFacts, a_parameter_has_sixteen_bytes_of_state_and_two_more_with_wide_gradients) {
  const int64_t parameters = parameter_count(gpt());
  StackFacts facts;
  EXPECT_EQ(state(build(gpt(), gpt_plan(), facts)), 16 * parameters);
  facts.gradients = GradientPrecision::kF32;
  EXPECT_EQ(state(build(gpt(), gpt_plan(), facts)), 18 * parameters);
  Plan pipelined = gpt_plan();
  pipelined.devices = pipelined.pipeline = 3;
  EXPECT_EQ(state(build(gpt(), pipelined, facts)), 18 * parameters);
  pipelined.optimizer.moments = DType::kBf16;
  EXPECT_EQ(state(build(gpt(), pipelined, facts)), 14 * parameters);
}

// Weights, gradients and both moments in 2 bytes; a token of 4 stands for each bucket's master.
TEST(StackFacts, state_in_sixteen_bits_takes_eight_bytes_a_parameter) {
  StackFacts facts;
  facts.pure_16_bit = true;
  const Graph graph = build(gpt(), gpt_plan(), facts);
  const auto buckets = static_cast<int64_t>(graph.buckets.size());
  EXPECT_EQ(state(graph), 8 * parameter_count(gpt()) + 4 * buckets);
  Plan two = gpt_plan();
  two.devices = two.data = 2;
  two.global_batch = 4;
  two.zero_stage = 0;
  EXPECT_EQ(state(build(gpt(), two, facts)), 8 * parameter_count(gpt()) + 4 * buckets);
}

TEST(StackFacts, gradients_that_are_copied_to_buckets_lie_twice) {
  Plan plan = gpt_plan();
  plan.devices = plan.data = 2;
  plan.global_batch = 4;
  plan.zero_stage = 0;
  StackFacts facts;
  EXPECT_EQ(tiny::elements(build(gpt(), plan, facts), TensorKind::kPacked), 0);
  facts.copies_gradients_to_buckets = true;
  EXPECT_EQ(tiny::elements(build(gpt(), plan, facts), TensorKind::kPacked), parameter_count(gpt()));
}

// --- the loss ------------------------------------------------------------------------------------

struct Logits {
  int64_t bytes = 0;   // themselves
  int64_t beside = 0;  // copies
};
Logits logits(const StackFacts& facts) {
  const Graph graph = build_plain(gpt(), gpt_plan(), facts);
  Logits found;
  for (const Access& access :
       graph.step.ops[static_cast<size_t>(tiny::first(graph, OpKind::kLoss))].accesses) {
    const Tensor& tensor = graph.tensors[static_cast<size_t>(access.tensor)];
    if (access.role == Role::kOutput) found.bytes += tensor.bytes().count;
    if (access.role == Role::kScratch) found.beside += tensor.bytes().count;
  }
  return found;
}

// 32 tokens of 64 logits: 2048 of 2 bytes. A 32-bit copy in whose place they lie adds 2 a logit;
// two copies beside them 8. In two pieces half of all that exists.
TEST(StackFacts, a_loss_in_32_bits_takes_copies_of_the_logits) {
  StackFacts facts;
  EXPECT_EQ(logits(facts).bytes, 4096);
  EXPECT_EQ(logits(facts).beside, 0);
  facts.loss = LossPrecision::kF32;
  EXPECT_EQ(logits(facts).beside, 4096);
  facts.loss = LossPrecision::kF32Copies;
  EXPECT_EQ(logits(facts).beside, 2048 * 8);
  facts.loss_chunks = 2;
  EXPECT_EQ(logits(facts).bytes, 2048);
  EXPECT_EQ(logits(facts).beside, 1024 * 8);
  facts.loss = LossPrecision::kF32;
  facts.loss_chunks = 1 << 20;
  EXPECT_EQ(logits(facts).beside, 4) << "more pieces than logits: one of them, in 32 bits";
}

// PyTorch's cross_entropy keeps three of them: of 32 bits, or of what the logits are.
TEST(StackFacts, the_loss_of_pytorch_takes_three_copies) {
  StackFacts facts;
  facts.loss = LossPrecision::kTorchF32;
  EXPECT_EQ(logits(facts).beside, 2048 * 12);
  facts.loss = LossPrecision::kTorch;
  EXPECT_EQ(logits(facts).beside, 2048 * 6);
  facts.loss = LossPrecision::kCompiled;
  EXPECT_EQ(logits(facts).beside, 2048 * 2) << "torch.compile leaves their gradient alone";
}

RowWork work_of_loss(const Plan& plan, const StackFacts& facts) {
  for (const Op& op : build(gpt(), plan, facts).step.ops) {
    if (op.kind == OpKind::kLoss) return std::get<RowWork>(op.work);
  }
  return {};
}

// 32 tokens of 64 logits, of 52 bytes each; of two ranks each has half, or gathers the other's.
TEST(StackFacts, a_loss_moves_as_many_bytes_a_logit_as_its_kernels_do) {
  StackFacts facts;
  facts.loss_bytes = 52;
  EXPECT_EQ(work_of_loss(gpt_plan(), facts).moved.count, 2048 * 52);
  EXPECT_EQ(work_of_loss(tensor_parallel(2), facts).moved.count, 1024 * 52);
  facts.gathers_logits = true;
  EXPECT_EQ(work_of_loss(tensor_parallel(2), facts).moved.count, 2048 * 52);
}

// --- gradients -----------------------------------------------------------------------------------

Plan two_ranks(int64_t zero_stage) {
  Plan plan = gpt_plan();
  plan.devices = plan.data = 2;
  plan.global_batch = 8;
  plan.micro_batch = 2;
  plan.zero_stage = zero_stage;
  return plan;
}

int64_t collectives(const Graph& graph, CollectiveKind kind) {
  int64_t found = 0;
  for (const Op& op : graph.step.ops) {
    const auto* work = std::get_if<CollectiveWork>(&op.work);
    found += work != nullptr && work->kind == kind;
  }
  return found;
}

// Two bytes a parameter in each of two micro-batches, until they are added up in four.
TEST(StackFacts, gradients_that_are_added_apart_exist_in_both_types) {
  StackFacts facts;
  facts.gradients = GradientPrecision::kF32;
  const Plan plan = two_ranks(0);
  const int64_t before = tiny::elements(build(gpt(), plan, facts), TensorKind::kPartial);
  facts.adds_gradients_apart = true;
  const Graph graph = build(gpt(), plan, facts);
  EXPECT_EQ(tiny::elements(graph, TensorKind::kPartial) - before, 2 * parameter_count(gpt()));
  EXPECT_EQ(tiny::bytes(graph, TensorKind::kGradient).count, 4 * parameter_count(gpt()));
}

// They are added in one pass of 2 + 4 + 4 bytes or, cast first, in two of 18: for each element of
// each of two micro-batches.
TEST(StackFacts, gradients_that_are_added_apart_move_what_the_framework_says) {
  StackFacts facts;
  facts.gradients = GradientPrecision::kF32;
  facts.adds_gradients_apart = true;
  const auto moved = [&](int64_t bytes) {
    facts.accumulate_bytes = bytes;
    int64_t sum = 0;
    for (const Graph graph = build(gpt(), two_ranks(0), facts); const Op& op : graph.step.ops) {
      for (const Access& access : op.accesses) {
        const bool adds = op.kind == OpKind::kActivation && access.role == Role::kSource;
        if (adds) sum += bytes_of(op.work).count;
      }
    }
    return sum;
  };
  EXPECT_EQ(moved(0), 2 * 10 * parameter_count(gpt()));
  EXPECT_EQ(moved(18), 2 * 18 * parameter_count(gpt()));
}

// Of the last micro-batch the hook that reduces a layer's gradients adds them (nanotron,
// gradient_accumulator.py, get_fp32_accum_hook), before the backward of the layer below.
TEST(StackFacts, gradients_that_are_added_apart_are_reduced_beside_the_last_backward) {
  StackFacts facts;
  facts.gradients = GradientPrecision::kF32;
  facts.adds_gradients_apart = true;
  Model model = gpt();
  model.layers = 2;
  const Graph graph = build(model, two_ranks(0), facts);
  const auto at = [&](OpKind kind, Phase phase, int layer, int micro) {
    const auto found =
        std::find_if(graph.step.ops.begin(), graph.step.ops.end(), [&](const Op& op) {
          return op.kind == kind && op.phase == phase && op.label.layer == layer &&
                 op.label.micro_batch == micro && op.label.module == ModuleKind::kFc2;
        });
    return found - graph.step.ops.begin();
  };
  // What adds is a pass of the module; the last operation of a backward by layer is layer 0's.
  const auto adds = [&](int layer, int micro) {
    const auto found =
        std::find_if(graph.step.ops.rbegin(), graph.step.ops.rend(), [&](const Op& op) {
          return op.kind == OpKind::kActivation && op.phase == Phase::kBackward &&
                 op.label.layer == layer && op.label.micro_batch == micro &&
                 op.label.module == ModuleKind::kFc2;
        });
    return graph.step.ops.rend() - found - 1;
  };
  EXPECT_GT(adds(1, 0), at(OpKind::kGemm, Phase::kBackwardWeight, 0, 0));
  EXPECT_LT(adds(1, 1), at(OpKind::kGemm, Phase::kBackwardWeight, 0, 1));
}

TEST(StackFacts, sharded_steps_reduce_by_scattering_or_all_of_it) {
  StackFacts facts;
  const Graph scattered = build(gpt(), two_ranks(1), facts);
  const auto buckets = static_cast<int64_t>(scattered.buckets.size());
  EXPECT_EQ(collectives(scattered, CollectiveKind::kReduceScatter), buckets);
  facts.reduces_whole = true;
  const Graph whole = build(gpt(), two_ranks(1), facts);
  EXPECT_EQ(collectives(whole, CollectiveKind::kReduceScatter), 0);
  EXPECT_EQ(collectives(whole, CollectiveKind::kAllReduce), buckets);
}

// Bytes that passes over gradients or weights of a kind move in a step, and where the first lies.
struct Passes {
  int64_t moved = 0, count = 0;
  size_t first = 0;
};
Passes passes(const Graph& graph, OpKind kind) {
  Passes result;
  for (size_t i = graph.step.ops.size(); i-- > 0;) {
    const Op& op = graph.step.ops[i];
    if (op.kind != kind) continue;
    result.moved += std::get<BucketWork>(op.work).moved.count;
    ++result.count;
    result.first = i;
  }
  return result;
}

// Of every parameter once a step under stages 0 to 2, of each of two micro-batches under stage 3.
TEST(StackFacts, gradients_are_laid_out_in_passes_of_their_own_before_they_are_reduced) {
  for (const int64_t stage : {0, 1, 2, 3}) {
    StackFacts facts;
    facts.reduce_bytes = 12;
    facts.wide_reduce_bytes = 18;
    const int64_t times = stage == 3 ? 2 : 1;
    const Graph narrow = build(gpt(), two_ranks(stage), facts);
    EXPECT_EQ(passes(narrow, OpKind::kPack).moved, times * 12 * parameter_count(gpt())) << stage;
    // The collective waits for what it reduces: it touches a tensor that the pass changed.
    const Op& pass = narrow.step.ops[passes(narrow, OpKind::kPack).first];
    ASSERT_FALSE(pass.accesses.empty()) << stage;
    const TensorId changed = pass.accesses.front().tensor;
    EXPECT_EQ(pass.accesses.front().mode, AccessMode::kReadWrite) << stage;
    const auto reduced =
        std::find_if(narrow.step.ops.begin(), narrow.step.ops.end(), [&](const Op& op) {
          const auto* work = std::get_if<CollectiveWork>(&op.work);
          return work != nullptr && work->kind != CollectiveKind::kAllGather &&
                 std::any_of(op.accesses.begin(), op.accesses.end(),
                             [&](const Access& access) { return access.tensor == changed; });
        });
    ASSERT_NE(reduced, narrow.step.ops.end()) << stage;
    EXPECT_GT(static_cast<size_t>(reduced - narrow.step.ops.begin()),
              passes(narrow, OpKind::kPack).first);
    facts.reduction = GradientPrecision::kF32;
    EXPECT_EQ(passes(build(gpt(), two_ranks(stage), facts), OpKind::kPack).moved,
              times * 18 * parameter_count(gpt()))
        << stage;
    EXPECT_EQ(passes(build(gpt(), two_ranks(stage), StackFacts{}), OpKind::kPack).count, 0);
  }
}

// FSDP 1 with MixedPrecision(param_dtype=bf16, reduce_dtype=bf16): 32-bit shards, 16 bits on the
// wire. Two micro-batches, N parameters: 8 N each are moved and 2 N each are scattered.
TEST(StackFacts, shards_in_32_bits_that_are_reduced_in_16_are_laid_out_and_sent_in_16) {
  StackFacts facts;
  facts.reduce_bytes = 8;
  facts.wide_reduce_bytes = 18;
  facts.gradients = GradientPrecision::kF32;
  const Graph graph = build(gpt(), two_ranks(3), facts);
  EXPECT_EQ(passes(graph, OpKind::kPack).moved, 2 * 8 * parameter_count(gpt()));
  int64_t scattered = 0;
  for (const Op& op : graph.step.ops) {
    const auto* work = std::get_if<CollectiveWork>(&op.work);
    if (work == nullptr || work->kind != CollectiveKind::kReduceScatter) continue;
    scattered += work->bytes.count;
  }
  EXPECT_EQ(scattered, 2 * 2 * parameter_count(gpt()));
  EXPECT_EQ(tiny::bytes(graph, TensorKind::kGradient).count, 2 * parameter_count(gpt()))
      << "half of them on a rank, in 32 bits";
}

// One where one gather is.
TEST(StackFacts, gathered_weights_are_copied_out_before_they_are_used) {
  StackFacts facts;
  const Graph before = build(gpt(), two_ranks(3), facts);
  EXPECT_EQ(passes(before, OpKind::kUnpack).count, 0);
  facts.gather_bytes = 4;
  const Graph graph = build(gpt(), two_ranks(3), facts);
  int64_t gathered = 0;
  for (const Op& op : graph.step.ops) {
    const auto* work = std::get_if<CollectiveWork>(&op.work);
    if (work != nullptr && work->kind == CollectiveKind::kAllGather) gathered += work->bytes.count;
  }
  EXPECT_EQ(passes(graph, OpKind::kUnpack).moved, 2 * gathered) << "4 bytes for 2 that arrive";
  EXPECT_EQ(passes(graph, OpKind::kUnpack).count, collectives(graph, CollectiveKind::kAllGather));
}

// Of each of two ranks' share under stage 1 and 3, of everything under stage 0.
TEST(StackFacts, what_a_step_reads_of_its_gradients_is_what_a_stack_says) {
  StackFacts facts;
  facts.step_bytes = 72;
  facts.stage3_step_bytes = 60;
  const auto count = static_cast<double>(parameter_count(gpt()));
  const auto moved = [&](int64_t stage) {
    const Graph graph = build(gpt(), two_ranks(stage), facts);
    return static_cast<double>(passes(graph, OpKind::kSumOfSquares).moved) / count;
  };
  EXPECT_EQ(moved(0), 72);
  EXPECT_NEAR(moved(1), 36, 0.4);
  EXPECT_NEAR(moved(3), 30, 0.4);
}

// Of both ranks each tensor by itself, and once more from one piece to the ranks' buffers.
TEST(StackFacts, gathered_weights_are_copied_by_rank_and_tensor_where_a_stack_does_so) {
  StackFacts facts;
  const auto launches_of = [&](int64_t stage) {
    int64_t launches = 0;
    for (const Op& op : build(gpt(), two_ranks(stage), facts).step.ops) {
      if (op.kind == OpKind::kUnpack) launches += std::get<BucketWork>(op.work).launches;
    }
    return launches;
  };
  EXPECT_EQ(launches_of(1), 0);
  facts.copies_gathered_by_tensor = true;
  const Graph graph = build(gpt(), two_ranks(1), facts);
  const auto buckets = static_cast<int64_t>(graph.buckets.size());
  const auto modules = std::count_if(graph.modules.begin(), graph.modules.end(),
                                     [](const Module& module) { return module.count > 0; });
  EXPECT_EQ(launches_of(1), 2 * (2 * modules + buckets)) << "a slice, and its copy";
  EXPECT_EQ(tiny::bytes(graph, TensorKind::kArriving).count, 2 * 2 * parameter_count(gpt()));
  EXPECT_EQ(launches_of(0), 0) << "nothing is gathered";
}

// Of two micro-batches the second scatters, and what both left lies there whole and wide.
TEST(StackFacts, whole_gradients_that_add_up_are_scattered_once_a_step) {
  StackFacts facts;
  facts.reduction = GradientPrecision::kF32;
  const Graph each = build(gpt(), two_ranks(3), facts);
  facts.sums_whole_gradients = true;
  const Graph once = build(gpt(), two_ranks(3), facts);
  EXPECT_EQ(2 * collectives(once, CollectiveKind::kReduceScatter),
            collectives(each, CollectiveKind::kReduceScatter));
  EXPECT_EQ(tiny::bytes(once, TensorKind::kFullGradient).count, 4 * parameter_count(gpt()));
}

// --- stages --------------------------------------------------------------------------------------

int64_t layers_of_first_stage(const StackFacts& facts) {
  Model model = gpt();
  model.layers = 8;
  model.vocab = 1536;  // the head weighs as much as four layers of 12 h^2
  Plan plan = gpt_plan();
  plan.devices = plan.pipeline = 2;
  int64_t last = -1;
  const Graph graph = build(model, plan, facts);
  for (const Tensor& tensor : graph.tensors) {
    const bool first = tensor.device == 0 && tensor.kind == TensorKind::kWeight;
    if (first) last = std::max<int64_t>(last, tensor.label.layer);
  }
  return last + 1;
}

TEST(StackFacts, stages_have_as_many_layers_or_as_much_weight) {
  StackFacts facts;
  EXPECT_EQ(layers_of_first_stage(facts), 4);
  facts.balances_stages = true;
  EXPECT_EQ(layers_of_first_stage(facts), 6);
}

// --- the step on the CPU -------------------------------------------------------------------------

// A pass over the gradients of each of the buckets before its Adam.
TEST(StackFacts, unscaling_is_a_pass_of_its_own_where_a_stack_makes_one) {
  Plan plan = gpt_plan();
  plan.optimizer.placement = OptimizerPlacement::kCpu;
  StackFacts facts;
  EXPECT_EQ(tiny::count(build(gpt(), plan, facts), OpKind::kScale), 0);
  facts.separate_unscale = true;
  const Graph graph = build(gpt(), plan, facts);
  EXPECT_EQ(tiny::count(graph, OpKind::kScale), static_cast<int64_t>(graph.buckets.size()));
  // Who steps before all norms are known has no factor to multiply by.
  plan.optimizer.sync = SyncMode::kSpeculate;
  EXPECT_EQ(tiny::count(build(gpt(), plan, facts), OpKind::kScale), 0);
}

// DeepSpeed's SuperOffload is its stage 3 (runtime/superoffload/superoffload_stage3.py).
TEST(StackFacts, what_speculates_chooses_no_stage_but_that_which_does) {
  using Stages = std::pair<int64_t, int64_t>;
  Plan plan = gpt_plan();
  plan.optimizer.placement = OptimizerPlacement::kCpu;
  StackFacts offloads;
  offloads.speculates_in_stage3 = true;
  StackFacts facts;
  facts.most_zero_stage = 1;
  EXPECT_EQ(zero_stages_of(facts, plan), Stages(0, 1));
  facts.where_offloaded.facts = std::make_shared<const StackFacts>(offloads);
  EXPECT_EQ(zero_stages_of(facts, plan), Stages(0, 3));
  plan.optimizer.sync = SyncMode::kSpeculate;
  EXPECT_EQ(zero_stages_of(facts, plan), Stages(3, 3));
  plan.optimizer.placement = OptimizerPlacement::kGpu;
  EXPECT_EQ(zero_stages_of(facts, plan), Stages(0, 1)) << "who offloads is another";
}

}  // namespace
}  // namespace ballast
