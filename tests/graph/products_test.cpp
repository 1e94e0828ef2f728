// Products in fp8: which they are, their memory, and what plans cannot have them.
#include <functional>
#include <gtest/gtest.h>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "sim/base/error.h"
#include "tests/graph/tiny_plans.h"

namespace ballast {
namespace {

// Widths of sixteens: C = 32, two heads of 16, F = 48; sequences of 16 tokens.
Model model_of_sixteens() {
  Model model = tiny::model();
  model.hidden = 32;
  model.head_size = 16;
  model.ffn = 48;
  return model;
}
Plan fp8_plan() {
  Plan plan = tiny::plan();
  plan.sequence_length = 16;
  plan.products = ProductFormat::kFp8;
  return plan;
}

bool is_fp8(const Op& op) {
  const auto* work = std::get_if<GemmWork>(&op.work);
  return work != nullptr && work->format == ProductFormat::kFp8;
}

TensorId codes_of(const Op& op, Role role = Role::kCodes) {
  for (const Access& access : op.accesses) {
    if (access.role == role) return access.tensor;
  }
  return -1;
}

// 2 layers of 4 matrices, forward and twice backward; the head's three products are as stored.
TEST(products, matrices_of_layers_multiply_in_fp8_and_the_head_does_not) {
  const Graph graph = build(model_of_sixteens(), fp8_plan());
  int64_t fp8 = 0, as_stored = 0;
  for (const Op& op : graph.step.ops) {
    if (op.kind != OpKind::kGemm) continue;
    ++(is_fp8(op) ? fp8 : as_stored);
    EXPECT_EQ(is_fp8(op), op.label.module != ModuleKind::kHead) << describe(op);
    EXPECT_EQ(is_fp8(op), codes_of(op) >= 0) << describe(op);
  }
  EXPECT_EQ(fp8, 24);
  EXPECT_EQ(as_stored, 3);
}

// The forward of fc2: 32 tokens x 48 and 48 x 32 values, 1536 codes each: a multiple of 256.
TEST(products, every_product_has_codes_of_its_own_for_as_long_as_it_runs) {
  Plan plan = fp8_plan();
  plan.activations->fate.fill(ActivationFate::kRecompute);
  plan.activations->fate[static_cast<size_t>(ModuleKind::kFc2)] = ActivationFate::kKeep;
  const Graph graph = build(model_of_sixteens(), plan);
  std::set<TensorId> seen;
  int64_t again = 0;
  for (const Op& op : graph.step.ops) {
    if (!is_fp8(op)) continue;
    EXPECT_TRUE(seen.insert(codes_of(op)).second) << describe(op);
    again += op.phase == Phase::kRecompute;
    const Tensor& codes = graph.tensors[static_cast<size_t>(codes_of(op))];
    EXPECT_EQ(codes.bytes(), codes_layout(std::get<GemmWork>(op.work)).whole);
    if (op.label.module == ModuleKind::kFc2 && op.phase == Phase::kForward) {
      EXPECT_EQ(codes.bytes().count, 3072);
    }
  }
  EXPECT_GT(again, 0);
}

// The weight's gradient comes first, and rounds the output's for the input's gradient, too: 8 pairs
// a micro-batch.
TEST(products, both_products_of_a_backward_share_the_codes_of_a_gradient) {
  for (const int64_t sequences : {2, 4}) {
    Plan plan = fp8_plan();
    plan.global_batch = sequences;
    const Graph graph = build(model_of_sixteens(), plan);
    std::set<TensorId> made;
    const Op* before = nullptr;
    for (const Op& op : graph.step.ops) {
      if (!is_fp8(op)) continue;
      const auto& work = std::get<GemmWork>(op.work);
      const TensorId shared = codes_of(op, Role::kGradientCodes);
      if (op.phase == Phase::kBackwardWeight) {
        EXPECT_EQ(work.rounding, Rounding::kForNext);
        EXPECT_TRUE(made.insert(shared).second);
        EXPECT_EQ(graph.tensor(shared).bytes(), gradient_codes_layout(work).whole);
      } else if (op.phase == Phase::kBackwardInput) {
        EXPECT_EQ(work.rounding, Rounding::kSecond);
        ASSERT_NE(before, nullptr);
        EXPECT_EQ(shared, codes_of(*before, Role::kGradientCodes)) << describe(op);
        EXPECT_EQ(op.label, before->label);
      } else {
        EXPECT_EQ(shared, -1);
      }
      before = &op;
    }
    EXPECT_EQ(std::ssize(made), 8 * plan.accumulation());
  }
}

// Of a backward with 32 tokens, 96 columns of output and 32 of input, 2 bytes a value: first the
// gradient of 3,072 values is read twice and written in two orders, 1,024 of the other factor are
// read twice and written once; then only 3,072 of the weight.
TEST(products, what_a_pair_rounds_is_counted_once) {
  GemmWork weight{96, 32, 32, DType::kBf16, false, ProductFormat::kFp8, Rounding::kForNext};
  EXPECT_EQ(rounding_bytes(weight).count, 6 * 3072 + 5 * 1024);
  EXPECT_EQ(rounding_passes(weight), 4);
  GemmWork input{32, 32, 96, DType::kBf16, false, ProductFormat::kFp8, Rounding::kSecond};
  EXPECT_EQ(rounding_bytes(input).count, 5 * 3072);
  EXPECT_EQ(rounding_passes(input), 2);
  EXPECT_EQ(rounding_bytes(weight, 1).count, 5 * (3072 + 1024));
}

// The first product of the step that takes a weight, in the forward of its first micro-batch, makes
// its codes for all: 8 weights, of two micro-batches with recomputation.
TEST(products, kept_codes_of_a_weight_are_made_once_and_taken_by_all_later_products) {
  Plan plan = fp8_plan();
  plan.global_batch = 2 * plan.global_batch;
  plan.weights.keep_codes = true;
  plan.activations->fate.fill(ActivationFate::kRecompute);
  plan.activations->fate[static_cast<size_t>(ModuleKind::kFc2)] = ActivationFate::kKeep;
  const Graph graph = build(model_of_sixteens(), plan);
  std::map<std::pair<int, ModuleKind>, TensorId> made;
  int64_t taken = 0, recomputed = 0;
  for (const Op& op : graph.step.ops) {
    if (!is_fp8(op)) continue;
    const auto& work = std::get<GemmWork>(op.work);
    const TensorId codes = codes_of(op, Role::kWeightCodes);
    if (op.phase == Phase::kBackwardWeight) {
      EXPECT_EQ(codes, -1);
      EXPECT_EQ(work.weight_codes, WeightCodes::kOwn);
      continue;
    }
    const auto [at, is_first] = made.try_emplace({op.label.layer, op.label.module}, codes);
    EXPECT_EQ(codes, at->second) << describe(op);
    EXPECT_EQ(work.weight_codes, is_first ? WeightCodes::kMakes : WeightCodes::kTakes);
    if (is_first) {
      EXPECT_EQ(op.phase, Phase::kForward);
      EXPECT_EQ(op.label.micro_batch, 0);
      EXPECT_EQ(graph.tensor(codes).bytes(), weight_codes_layout(work).whole);
      EXPECT_GE(graph.tensor(codes).bytes().count, 2 * work.n * work.k);
      EXPECT_EQ(graph.tensor(codes).category, Category::kWeights);
    }
    taken += !is_first;
    recomputed += op.phase == Phase::kRecompute;
  }
  EXPECT_EQ(std::ssize(made), 8);
  EXPECT_GT(recomputed, 0);
  // Of each micro-batch and weight a forward and a backward, and what is recomputed.
  EXPECT_EQ(taken + std::ssize(made), 8 * 2 * plan.accumulation() + recomputed);
}

// Latent attention has several weights in one module, of which each has its own.
TEST(products, kept_codes_of_chained_weights_are_apart) {
  Model model = tiny::deepseek_v3({.layers = 2});
  model.hidden = model.query_rank = 32;
  model.kv_rank = model.rope_size = 16;
  model.head_size = 48;
  model.value_size = 16;
  model.ffn = 64;
  model.expert_ffn = 32;
  Plan plan = fp8_plan();
  plan.weights.keep_codes = true;
  ASSERT_NO_THROW(check(plan, model));
  const Graph graph = build(model, plan);
  std::map<TensorId, std::set<std::pair<ModuleKind, ChainPart>>> takers;
  int64_t dense = 0;
  for (const Op& op : graph.step.ops) {
    if (!is_fp8(op) || op.phase == Phase::kBackwardWeight) continue;
    const auto& work = std::get<GemmWork>(op.work);
    EXPECT_EQ(codes_of(op, Role::kWeightCodes) < 0, work.experts > 0) << describe(op);
    if (work.experts > 0) continue;
    const TensorId codes = codes_of(op, Role::kWeightCodes);
    EXPECT_EQ(graph.tensor(codes).bytes(), weight_codes_layout(work).whole) << describe(op);
    takers[codes].emplace(op.label.module, op.label.part);
    ++dense;
  }
  EXPECT_GT(dense, 20);
  for (const auto& [codes, names] : takers) EXPECT_EQ(names.size(), 1U);
}

// Of 32 tokens, 96 outputs and 32 inputs, 2 bytes a value: 1,024 values of the input are read twice
// and written once; the weight's 3,072 are read twice and written in two orders, or not touched.
TEST(products, what_kept_codes_spare_is_not_counted) {
  GemmWork forward{32, 96, 32, DType::kBf16, false, ProductFormat::kFp8};
  forward.weight_codes = WeightCodes::kMakes;
  EXPECT_EQ(rounding_bytes(forward).count, 5 * 1024 + 6 * 3072);
  EXPECT_EQ(rounding_passes(forward), 4);
  EXPECT_EQ(codes_layout(forward).whole.count, 1024);
  forward.weight_codes = WeightCodes::kTakes;
  EXPECT_EQ(rounding_bytes(forward).count, 5 * 1024);
  EXPECT_EQ(rounding_passes(forward), 2);
  GemmWork input{32, 32, 96, DType::kBf16, false, ProductFormat::kFp8, Rounding::kSecond};
  input.weight_codes = WeightCodes::kTakes;
  EXPECT_EQ(rounding_bytes(input).count, 0);
  EXPECT_EQ(rounding_passes(input), 0);
  EXPECT_EQ(codes_layout(input).whole.count, 0);
}

TEST(products, codes_are_kept_of_8_bit_products_without_stages_alone) {
  Plan plan = fp8_plan();
  plan.weights.keep_codes = true;
  check(plan, model_of_sixteens());
  Plan stored = plan;
  stored.products = ProductFormat::kAsStored;
  Plan staged = plan;
  staged.devices = staged.pipeline = 2;
  for (const Plan& refused : {stored, staged}) {
    try {
      check(refused, model_of_sixteens());
      FAIL() << "was not refused";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("weights.keep_codes"), std::string::npos)
          << error.what();
    }
  }
}

// As planned memory they may lie where a value was that is not needed any more.
TEST(products, codes_lie_in_the_arena_of_the_gpu_apart_from_all_that_the_product_touches) {
  const Graph graph = build(model_of_sixteens(), fp8_plan());
  const auto begin = [&](TensorId id) { return graph.arenas.offset[static_cast<size_t>(id)]; };
  const auto end = [&](TensorId id) {
    return begin(id) + graph.tensors[static_cast<size_t>(id)].bytes().count;
  };
  for (const Op& op : graph.step.ops) {
    if (!is_fp8(op)) continue;
    const TensorId codes = codes_of(op);
    EXPECT_EQ(graph.tensors[static_cast<size_t>(codes)].place, Place::kHbm);
    EXPECT_GE(begin(codes), 0);
    EXPECT_LE(end(codes), graph.arenas.size[static_cast<size_t>(Place::kHbm)].count);
    for (const Access& access : op.accesses) {
      if (access.tensor == codes) continue;
      EXPECT_TRUE(end(codes) <= begin(access.tensor) || end(access.tensor) <= begin(codes))
          << describe(op);
    }
  }
}

TEST(products, without_fp8_there_are_no_codes) {
  Plan plan = fp8_plan();
  plan.products = ProductFormat::kAsStored;
  for (const Tensor& tensor : build(model_of_sixteens(), plan).tensors) {
    EXPECT_NE(tensor.kind, TensorKind::kCodes);
  }
}

TEST(products, blocks_of_a_pipeline_multiply_in_fp8_too) {
  Plan plan = fp8_plan();
  plan.devices = plan.pipeline = 2;
  plan.micro_batch = 1;
  plan.zero_stage = 0;
  plan.optimizer.placement = OptimizerPlacement::kGpu;
  const Graph graph = build(model_of_sixteens(), plan);
  int64_t fp8 = 0;
  for (const Program& block : graph.blocks) {
    for (const Op& op : block.ops) fp8 += is_fp8(op);
  }
  EXPECT_GT(fp8, 0);
}

// 32 tokens, 96 columns of q, k and v and 32 summed: 4096 codes, 3072 results of 2 bytes; rounding
// reads 2 bytes of each twice and writes one.
TEST(products, traffic_of_fp8_is_that_of_codes_and_of_rounding) {
  const GemmWork work{32, 96, 32, DType::kBf16, false, ProductFormat::kFp8};
  EXPECT_EQ(product_bytes(work).count, 4096 + 2 * 3072);
  EXPECT_EQ(rounding_bytes(work).count, 5 * 4096);
  EXPECT_EQ(bytes_of(Work{work}).count, 6 * 4096 + 2 * 3072);
  const GemmWork stored{32, 96, 32, DType::kBf16};
  EXPECT_EQ(bytes_of(Work{stored}).count, 2 * (4096 + 3072));
  EXPECT_EQ(rounding_bytes(stored).count, 0);
}

TEST(products, plans_that_cannot_have_fp8_say_why) {
  struct Case {
    std::function<void(Plan&, Model&)> change;
    const char* says;
  };
  const Case cases[] = {
      {[](Plan& p, Model&) { p.dtype = DType::kF16; }, "fp8 of a dtype fp16"},
      {[](Plan& p, Model&) { p.sequence_length = 24; }, "24 tokens"},
      {[](Plan&, Model& m) { m.ffn = 40; }, "40 feed-forward columns"},
      {[](Plan&, Model& m) { m.heads = m.kv_heads = 1, m.head_size = 24; }, "24 columns"}};
  for (const Case& c : cases) {
    Plan plan = fp8_plan();
    Model model = model_of_sixteens();
    c.change(plan, model);
    try {
      check(plan, model);
      ADD_FAILURE() << c.says;
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(c.says), std::string::npos) << text;
      EXPECT_TRUE(text.starts_with("plan, products")) << text;
    }
  }
}

}  // namespace
}  // namespace ballast
