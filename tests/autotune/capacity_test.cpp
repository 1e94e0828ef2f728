// What fits: the capacity claims of SuperOffload by bytes a parameter, the order of its parts, and
// searches that end between a model that fits and the next one, which does not.
#include "autotune/studies/capacity.h"

#include <gtest/gtest.h>

#include "autotune/calibrate/published_cases.h"
#include "autotune/complete/complete.h"
#include "autotune/complete/feasibility.h"
#include "autotune/space/space.h"
#include "profiles/load.h"
#include "sim/base/error.h"
#include "sim/engine/predict.h"
#include "sim/graph/build.h"
#include "tests/autotune/support.h"

namespace ballast {
namespace {

struct Cluster {
  std::string machine;
  int64_t chips = 1;
  int64_t zero_stage = 2;
};

// One sequence of 1024 tokens a chip, trained by SuperOffload.
Setting superoffload(const Cluster& cluster) {
  PlanRequest request;
  request.strategy = "superoffload";
  request.knobs[KnobId::kDevices] = cluster.chips;
  request.knobs[KnobId::kZeroStage] = cluster.zero_stage;
  request.knobs[KnobId::kSequenceLength] = 1024;
  request.knobs[KnobId::kGlobalBatch] = cluster.chips;
  return {{}, resolve_plan(request), load_machine(cluster.machine), {}};
}

Setting with_shape(Setting setting, const Shape& shape) {
  setting.model = model_of(gpt_family(), shape, setting.plan.sequence_length);
  return setting;
}

const PlacePeak& peak_at(const Verdict& verdict, Place place) {
  for (const PlacePeak& peak : verdict.peaks) {
    if (peak.place == place) return peak;
  }
  throw Error("test", "no such memory", "");
}

Bytes held(const PlacePeak& peak, Category category) {
  for (const Holder& holder : peak.holders) {
    if (holder.category == category) return holder.bytes;
  }
  return {};
}

// 12 L h^2 for the layers, 51200 h and 1024 h for the embeddings: 55 layers of 6144 are 24.9e9 +
// 0.3e9. A parameter holds 4 bytes of master, 8 of moments and 4 of gradients in CPU memory, and
// the exact undo about 1.13 more: 17.1 bytes are 432e9, of 464e9 that are usable.
TEST(capacity, twenty_five_billion_parameters_fit_one_chip_at_17_bytes_each) {
  const Setting setting = with_shape(superoffload({"gh200-96gb-480gb"}), {55, 6144, 48});
  const auto parameters = static_cast<double>(parameter_count(setting.model));
  EXPECT_NEAR(parameters, 25.2e9, 0.1e9);
  const Verdict verdict = feasibility(setting);
  ASSERT_TRUE(verdict.fits) << verdict.reason;
  const PlacePeak& cpu = peak_at(verdict, Place::kDram);
  EXPECT_NEAR(static_cast<double>(held(cpu, Category::kMaster).count), 4 * parameters, 1e9);
  EXPECT_NEAR(static_cast<double>(held(cpu, Category::kMoments).count), 8 * parameters, 1e9);
  EXPECT_NEAR(static_cast<double>(cpu.arena.count), 17.1 * parameters, 0.3 * parameters);
}

// Without offload: 2 + 2 bytes of weights and gradients and 12 of optimizer a parameter, all on the
// GPU: 16 * 25.2e9 = 403e9 against 102e9.
TEST(capacity, twenty_five_billion_parameters_do_not_fit_the_gpu_alone) {
  Setting setting = with_shape(superoffload({"gh200-96gb-480gb"}), {55, 6144, 48});
  setting.plan.optimizer.placement = OptimizerPlacement::kGpu;
  setting.plan.optimizer.sync = SyncMode::kWait;
  setting.plan.optimizer.gpu_buckets = 0;
  const Verdict verdict = feasibility(setting);
  EXPECT_FALSE(verdict.fits);
  EXPECT_NE(verdict.reason.find("GPU memory"), std::string::npos) << verdict.reason;
  EXPECT_GT(peak_at(verdict, Place::kHbm).arena.count, 16 * 25'000'000'000);
}

// 62 layers of 8192 are 50.3e9 parameters, 12.6e9 for each of four chips: 17.1 bytes of each are
// 215e9 of 224e9. 110 layers of 12288 are 199.9e9, 12.5e9 for each of sixteen.
TEST(capacity, fifty_billion_fit_four_chips_and_two_hundred_billion_sixteen) {
  const std::string nodes = "gh200-nvl2-96gb-240gb";
  const Setting four = with_shape(superoffload({nodes, 4, 3}), {62, 8192, 64});
  EXPECT_NEAR(static_cast<double>(parameter_count(four.model)), 50.3e9, 0.1e9);
  EXPECT_TRUE(feasibility(four).fits) << feasibility(four).reason;
  const Setting sixteen = with_shape(superoffload({nodes, 16, 3}), {110, 12288, 96});
  EXPECT_NEAR(static_cast<double>(parameter_count(sixteen.model)), 199.9e9, 0.2e9);
  EXPECT_TRUE(feasibility(sixteen).fits) << feasibility(sixteen).reason;
  // Half as many chips would hold 25.0e9 each: 428e9 bytes of 224e9.
  const Setting eight = with_shape(superoffload({nodes, 8, 3}), {110, 12288, 96});
  EXPECT_FALSE(feasibility(eight).fits);
}

// The layers' inputs of 13B at a million tokens, an eighth each: 40 * 131072 * 5120 * 2 = 54e9
// bytes, which leave for the CPU with its 13e9 / 8 * 17 = 28e9 of state.
TEST(capacity, million_tokens_of_13b_fit_eight_chips_that_share_the_sequence) {
  Setting setting = superoffload({"gh200-nvl2-96gb-240gb"});
  setting.plan.devices = setting.plan.sequence = 8;
  setting.plan.zero_stage = 3;
  setting.plan.global_batch = 1;
  setting.model = load_model("gpt-13b");
  setting.model.position = PositionKind::kRope;
  setting.model.max_positions = setting.plan.sequence_length = 1 << 20;
  const Verdict verdict = feasibility(setting);
  ASSERT_TRUE(verdict.fits) << verdict.reason;
  // One layer of the forty keeps its input.
  const auto inputs =
      static_cast<double>(held(peak_at(verdict, Place::kDram), Category::kActivations).count);
  EXPECT_NEAR(inputs, 54e9 * 39 / 40, 1.5e9);
}

// GPU memory of every plan that the open knobs leave, memory reused either way; the least of them.
Bytes least_of_all(const Setting& setting) {
  OpenKnobs open;
  open.add(KnobId::kMemoryReuse);
  const Space space = space_of(setting.model, setting.plan, open);
  Bytes least{INT64_MAX};
  for (const Choice& choice : choices_of(space, setting.plan)) {
    for (const MemoryReuse reuse : space.memory_reuse) {
      Plan plan = plan_of(space, setting.plan, choice);
      plan.memory_reuse = reuse;
      const Prediction memory =
          predict_memory(build(setting.model, plan), plan, setting.machine, setting.stack);
      for (const PlacePeak& peak : memory.peaks) {
        if (peak.place == Place::kHbm) least = std::min(least, peak.arena);
      }
    }
  }
  return least;
}

// The least of eight micro-batches may be that of all sequences at once, whose gradients need not
// add up on the GPU: what is lean for one model is not for another, so every plan must be asked.
TEST(feasibility, is_denied_only_where_no_plan_of_the_space_fits) {
  for (const int64_t layers : {2, 4}) {
    for (const int64_t tokens : {16, 64}) {
      Setting setting{tests::small_model(), tests::fixed_plan(), tests::gpu_machine(), {}};
      setting.model.layers = layers;
      Plan& plan = setting.plan;
      plan.sequence_length = tokens;
      plan.global_batch = 4;
      plan.micro_batch.reset();
      plan.activations.reset();
      plan.weights.flow_share.reset();
      plan.optimizer.gpu_buckets.reset();
      plan.optimizer.bucket_bytes = {1 << 20};
      const Bytes least = least_of_all(setting);
      setting.machine.gpu.memory.value = least;
      const Verdict verdict = feasibility(setting);
      EXPECT_TRUE(verdict.fits) << layers << " layers, " << tokens << " tokens: " << verdict.reason;
      EXPECT_EQ(peak_at(verdict, Place::kHbm).arena, least);
      setting.machine.gpu.memory.value = least - Bytes{1};
      EXPECT_FALSE(feasibility(setting).fits);
    }
  }
}

// Tflops of the rows of table 2 (arXiv 2509.21271): 116.2, 128.23, 144.49, 209.36, 238.92.
void expect_published_order(const Stack& stack) {
  Setting setting = with_shape(superoffload({"gh200-96gb-480gb"}), {44, 3072, 32});
  setting.stack = stack;
  setting.plan.dtype = DType::kF16;
  setting.plan.global_batch = 8;
  setting.plan.weights.flow_share = 0;
  OptimizerPlan& optimizer = setting.plan.optimizer;
  const auto predicted = [&] {
    return predict(setting.model, choose(setting), setting.machine, setting.stack, nullptr);
  };
  const auto idle_share = [&](double* step_s) {
    const Prediction prediction = predicted();
    EXPECT_TRUE(prediction.fits) << prediction.reason;
    *step_s = prediction.step_time.seconds();
    for (const LaneUse& use : prediction.lanes) {
      if (kind_of(use.lane) == LaneKind::kCompute) return 1 - use.share;
    }
    return 1.0;
  };
  optimizer.gpu_buckets = 0;
  optimizer.sync = SyncMode::kWait;
  optimizer.cast = CastPlacement::kCpu;
  optimizer.adam = "cpu-adam";
  double zero_offload = 0, grace = 0, cast = 0, speculate = 0, repartition = 0;
  const double idle_before = idle_share(&zero_offload);
  optimizer.adam = "grace-adam";
  idle_share(&grace);
  optimizer.cast = CastPlacement::kGpu;
  idle_share(&cast);
  optimizer.sync = SyncMode::kSpeculate;
  idle_share(&speculate);
  // Of a few counts, as the paper's grid search tries them, the fastest.
  repartition = speculate;
  const auto buckets = std::ssize(build(setting.model, choose(setting)).buckets);
  for (const int64_t share : {16, 8, 4, 2, 1}) {
    optimizer.gpu_buckets = buckets / share;
    const Prediction prediction = predicted();
    if (!prediction.fits || prediction.step_time.seconds() >= repartition) continue;
    repartition = prediction.step_time.seconds();
  }
  // Between them may lie a faster plan, which waits for the CPU a little and recomputes less.
  optimizer.gpu_buckets.reset();
  double any_count = 0;
  const double idle_searched = idle_share(&any_count);
  EXPECT_LT(grace, zero_offload);
  EXPECT_LT(cast, grace);
  EXPECT_LT(speculate, cast);
  EXPECT_LT(repartition, speculate);
  EXPECT_GT(idle_before, 0.35) << "published: 40 to 50 %";
  EXPECT_LE(any_count, repartition);
  EXPECT_LT(idle_searched, 0.05) << "published: near none";
}

TEST(capacity, parts_of_superoffload_help_in_the_published_order) {
  // GELU of several kernels, and of one. A few counts alone may leave the GPU idle, where the CPU
  // is done as the GPU is between two of them: 77 of 308 for 10 and 19 %, 154 for 10 and 0 %.
  Stack stack = load_stack("deepspeed-gh200");
  expect_published_order(stack);
  stack.facts.activation_bytes = stack.facts.activation_backward_bytes = 0;
  expect_published_order(stack);
}

// A machine of 1.25 GB beside the 1 GB that is reserved, and everything on the GPU: 16 bytes a
// parameter leave at most 78M, less the activations. 4 layers of 768 with 51200 + 128 positions are
// 67.8M, and each further layer 7.1M.
TEST(largest_model, neighbours_are_one_layer_apart_and_only_the_smaller_fits) {
  Setting setting = superoffload({"gh200-96gb-480gb"});
  setting.plan.optimizer = {
      .placement = OptimizerPlacement::kGpu, .gpu_buckets = 0, .sync = SyncMode::kWait};
  setting.plan.zero_stage = 0;
  setting.plan.sequence_length = 128;
  setting.machine.gpu.memory.value = {2'250'000'000};
  Family family = gpt_family();
  family.shapes = {{1, 768, 12}, {24, 1024, 16}};
  const LargestModel found = largest_model(setting, family);
  ASSERT_TRUE(found.model.has_value());
  EXPECT_EQ(found.next.layers, found.model->layers + 1);
  EXPECT_TRUE(found.verdict.fits);
  EXPECT_FALSE(found.next_verdict.fits);
  EXPECT_NE(found.next_verdict.reason.find("GPU memory"), std::string::npos);
  EXPECT_LE(16 * parameter_count(*found.model), 1'250'000'000);
  EXPECT_GE(16 * parameter_count(*found.model), 1'000'000'000);
  for (int64_t layers = 1; layers <= found.next.layers; ++layers) {
    const Setting one = {model_of(family, {layers, 768, 12}, 128), setting.plan, setting.machine,
                         setting.stack};
    EXPECT_EQ(feasibility(one).fits, layers <= found.model->layers) << layers;
  }
}

TEST(largest_model, nothing_fits_a_machine_that_is_too_small_and_the_reason_is_kept) {
  Setting setting = superoffload({"gh200-96gb-480gb"});
  setting.machine.cpu.memory.value = {16'100'000'000};  // of which 16e9 are reserved
  setting.machine.gpu.memory.value = {1'100'000'000};   // and here 1e9
  const LargestModel found = largest_model(setting, gpt_family());
  EXPECT_FALSE(found.model.has_value());
  EXPECT_EQ(found.next.hidden, 768);
  EXPECT_FALSE(found.next_verdict.reason.empty());
}

// Of the heads 12, 16, 24, 32, ... only multiples of 32 are left over 32 ranks; layers by 3.
TEST(largest_model, degrees_decide_which_shapes_are_legal) {
  Setting setting = superoffload({"gh200-nvl2-96gb-240gb", 96, 1});
  setting.plan.data = 1;
  setting.plan.tensor = 32;
  setting.plan.pipeline = 3;
  setting.plan.global_batch = 3;
  setting.plan.weights.flow_share = 0;
  setting.plan.optimizer.sync = SyncMode::kWait;
  setting.machine.cpu.memory.value = {40'000'000'000};
  const LargestModel found = largest_model(setting, gpt_family());
  ASSERT_TRUE(found.model.has_value()) << found.next_verdict.reason;
  EXPECT_EQ(found.model->heads % 32, 0);
  EXPECT_EQ(found.model->layers % 3, 0);
  setting.plan.tensor = 7;
  setting.plan.devices = 21;
  EXPECT_THROW(largest_model(setting, gpt_family()), Error);
}

// Layers of a model keep its width, whatever else it is.
TEST(family_of, grows_one_model_by_layers_alone) {
  const Model llama = load_model("llama-2-7b");
  const Model grown = model_of(family_of(llama), {50, llama.hidden, llama.heads}, 1024);
  EXPECT_EQ(grown.layers, 50);
  EXPECT_EQ(grown.ffn, llama.ffn);
  EXPECT_EQ(grown.max_positions, llama.max_positions);
}

// Everything is fixed, so that memory grows by the same bytes a token.
TEST(longest_sequence, ends_between_a_length_that_fits_and_the_next) {
  Setting setting = superoffload({"gh200-96gb-480gb"});
  setting.model = load_model("gpt2");
  setting.plan.global_batch = 1;
  setting.plan.micro_batch = 1;
  setting.plan.weights.flow_share = 0;
  setting.plan.optimizer.gpu_buckets = 0;
  setting.plan.activations = ActivationPlan{};
  setting.machine.gpu.memory.value = {8'000'000'000};
  const LongestSequence found = longest_sequence(setting);
  ASSERT_GT(found.tokens, 0);
  EXPECT_EQ(found.tokens % kSequenceGrain, 0);
  EXPECT_EQ(found.next_tokens, found.tokens + kSequenceGrain);
  EXPECT_TRUE(found.verdict.fits);
  EXPECT_FALSE(found.next_verdict.fits);
  EXPECT_GT(found.tokens, 1024) << "beyond the learned table of gpt2";
  EXPECT_EQ(found.model.position, PositionKind::kRope);
  setting.machine.gpu.memory.value = {4'000'000'000};
  EXPECT_LT(longest_sequence(setting).tokens, found.tokens);
  setting.machine.gpu.memory.value = {1'100'000'000};
  EXPECT_EQ(longest_sequence(setting).tokens, 0);
}

// Two ranks share a sequence, so lengths come in 2048.
TEST(longest_sequence, ranks_that_share_it_make_it_longer_in_their_multiples) {
  Setting setting = superoffload({"gh200-nvl2-96gb-240gb"});
  setting.model = load_model("gpt2");
  setting.plan.global_batch = 1;
  setting.plan.activations = ActivationPlan{};
  setting.machine.gpu.memory.value = {8'000'000'000};
  const int64_t alone = longest_sequence(setting).tokens;
  setting.plan.devices = setting.plan.sequence = 2;
  setting.plan.zero_stage = 3;
  const int64_t shared = longest_sequence(setting).tokens;
  EXPECT_EQ(shared % (2 * kSequenceGrain), 0);
  EXPECT_GT(shared, 3 * alone / 2);
}

// Sixteen parts of whole tiles of attention: lengths come in 2048, and of logits and feed-forward
// only a part is there.
TEST(longest_sequence, parts_make_it_longer_in_their_multiples) {
  Setting setting = superoffload({"gh200-96gb-480gb"});
  setting.model = load_model("gpt2");
  setting.plan.global_batch = 1;
  setting.plan.activations = ActivationPlan{};
  setting.machine.gpu.memory.value = {8'000'000'000};
  const int64_t whole = longest_sequence(setting).tokens;
  setting.plan.subsequences = 16;
  const LongestSequence divided = longest_sequence(setting);
  EXPECT_EQ(divided.tokens % 2048, 0);
  EXPECT_EQ(divided.next_tokens, divided.tokens + 2048);
  EXPECT_GT(divided.tokens, whole);
}

TEST(choose, is_the_fastest_of_the_completions_that_fit) {
  Setting setting = with_shape(superoffload({"gh200-96gb-480gb"}), {12, 768, 12});
  setting.plan.global_batch = 2;
  const Plan chosen = choose(setting);
  const Duration best =
      predict(setting.model, chosen, setting.machine, setting.stack, nullptr).step_time;
  CaseSetup setup;
  setup.published.model = setting.model;
  setup.published.plan = setting.plan;
  setup.machine = setting.machine;
  setup.stack = setting.stack;
  for (const std::vector<Completion>& group : completions_of(setup)) {
    for (const Completion& completion : group) {
      const Prediction one =
          predict(setting.model, completion.plan, setting.machine, setting.stack, nullptr);
      if (one.fits) EXPECT_GE(one.step_time.ps, best.ps);
    }
  }
}

TEST(choose, too_few_devices_give_a_plan_whose_prediction_says_so) {
  Setting setting = with_shape(superoffload({"gh200-96gb-480gb"}), {12, 768, 12});
  setting.plan.devices = setting.plan.data = 2;
  setting.plan.global_batch = 2;
  const Prediction prediction =
      predict(setting.model, choose(setting), setting.machine, setting.stack, nullptr);
  EXPECT_FALSE(prediction.fits);
  EXPECT_NE(prediction.reason.find("2 devices"), std::string::npos);
}

}  // namespace
}  // namespace ballast
