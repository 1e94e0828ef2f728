// Published cases as plans: what stays open takes every legal value and the best is taken, and
// predictions come in the quantities that were published.
#include <gtest/gtest.h>
#include <set>

#include "autotune/calibrate/published_cases.h"
#include "tests/autotune/published.h"

namespace ballast {
namespace {

using calibrated::small_setup;

double metric_of(const CasePrediction& prediction, Metric metric) {
  for (const MetricPrediction& one : prediction.metrics) {
    if (one.metric == metric) return one.predicted.value();
  }
  ADD_FAILURE() << metric_name(metric);
  return 0;
}

std::vector<Completion> all_completions(const CaseSetup& setup) {
  std::vector<Completion> all;
  for (const std::vector<Completion>& group : completions_of(setup)) {
    all.insert(all.end(), group.begin(), group.end());
  }
  return all;
}

// L = 24, h = 2304, s = 2048, V = 51200, B = 512 (1.7B of SC21, table 1): eq. 3 of the paper.
TEST(published_flops, is_equation_3_of_sc21_for_gpt) {
  CaseSetup setup = small_setup();
  Model& model = setup.published.model;
  model.layers = 24;
  model.hidden = 2304;
  model.heads = model.kv_heads = 24;
  model.head_size = 96;
  model.ffn = 4 * 2304;
  model.vocab = 51200;
  setup.published.plan.global_batch = 512;
  setup.published.plan.sequence_length = 2048;
  const double l = 24, h = 2304, s = 2048, v = 51200, b = 512;
  const double with = 96 * b * s * l * h * h * (1 + s / (6 * h) + v / (16 * l * h));
  const double without = 72 * b * s * l * h * h * (1 + s / (6 * h) + v / (12 * l * h));
  EXPECT_NEAR(published_flops(model, setup.published.plan, CountRecompute::kYes).count, with,
              with * 1e-12);
  EXPECT_NEAR(published_flops(model, setup.published.plan, CountRecompute::kNo).count, without,
              without * 1e-12);
}

// One layer of C = 64, 4 heads and 2 key/value heads of 16, F = 128 gated, V = 100, S = 32, for
// one sequence: 64*(64+64) + 64*64 + 3*64*128 = 36864 parameters of matrices, 6400 of the head.
// Without recompute 32 * (6*36864 + 12*64*32 + 6*6400), with 32 * (8*36864 + 16*64*32 + 6*6400).
TEST(published_flops, counts_grouped_heads_and_gated_feed_forwards_by_parameter) {
  CaseSetup setup = small_setup();
  Model& model = setup.published.model;
  model.layers = 1;
  model.hidden = 64;
  model.heads = 4;
  model.kv_heads = 2;
  model.head_size = 16;
  model.ffn = 128;
  model.vocab = 100;
  model.activation = ActivationKind::kSwiGlu;
  setup.published.plan.global_batch = 1;
  setup.published.plan.sequence_length = 32;
  EXPECT_DOUBLE_EQ(published_flops(model, setup.published.plan, CountRecompute::kNo).count,
                   32 * (221184.0 + 24576 + 38400));
  EXPECT_DOUBLE_EQ(published_flops(model, setup.published.plan, CountRecompute::kYes).count,
                   32 * (294912.0 + 32768 + 38400));
}

TEST(nominal_peak, is_the_vendors_and_not_the_achieved_rate) {
  EXPECT_EQ(nominal_peak(load_machine("selene-a100-80gb")).tflops(), 312);
  EXPECT_EQ(nominal_peak(load_machine("gh200-96gb-480gb")).tflops(), 989.4);
  EXPECT_EQ(nominal_peak(load_machine("hgx-h200-quad")).tflops(), 989.4);
  EXPECT_EQ(nominal_peak(load_machine("dgx-2-v100")).tflops(), 125);
  Machine unknown = load_machine("dgx-2-v100");
  unknown.gpu.nominal_matmul.reset();
  EXPECT_THROW(nominal_peak(unknown), Error);
}

// Above what is achieved: a utilisation of the best rate is below 100 %, or at it where the file's
// rate is the vendor's.
TEST(nominal_peak, is_known_of_every_shipped_machine) {
  int machines = 0;
  for (const Shipped& shipped : shipped_machines()) {
    const Machine machine = load_machine(shipped.name);
    const double peak = nominal_peak(machine).tflops();
    for (const DType dtype : {DType::kBf16, DType::kF16}) {
      const auto rate = machine.gpu.matmul.find(dtype);
      if (rate != machine.gpu.matmul.end()) {
        EXPECT_GE(peak, rate->second.value.tflops()) << shipped.name;
      }
    }
    ++machines;
  }
  EXPECT_GE(machines, 15);
}

// 24 sequences on one rank: 1, 2, 4, 8 divide them, 16 and more do not, and 24 is all of them.
TEST(completions_of, open_micro_batch_takes_powers_of_two_and_the_whole_batch) {
  CaseSetup setup = small_setup();
  setup.published.plan.global_batch = 24;
  setup.published.plan.micro_batch.reset();
  std::set<int64_t> sizes;
  for (const Completion& completion : all_completions(setup))
    sizes.insert(completion.plan.micro_batch.value());
  EXPECT_EQ(sizes, (std::set<int64_t>{1, 2, 4, 8, 24}));
}

TEST(completions_of, published_knobs_are_in_every_completion) {
  CaseSetup setup = small_setup();
  setup.published.plan.micro_batch = 2;
  setup.published.plan.activations = activations_of(Recompute::kFull);
  const std::vector<Completion> completions = all_completions(setup);
  ASSERT_EQ(completions.size(), 1u);
  EXPECT_EQ(completions[0].plan.micro_batch, 2);
  EXPECT_EQ(completions[0].plan.activations, activations_of(Recompute::kFull));
}

TEST(completions_of, scores_are_recomputed_where_attention_stores_them) {
  CaseSetup setup = small_setup();
  setup.published.plan.micro_batch = 1;
  setup.published.plan.activations.reset();
  setup.stack.facts.attention = {AttentionKind::kEager, AttentionKind::kFlash};
  size_t eager = 0;
  size_t flash = 0;
  for (const Completion& completion : all_completions(setup)) {
    (completion.attention == AttentionKind::kEager ? eager : flash) += 1;
  }
  EXPECT_EQ(eager, 3u) << "none, selective, full";
  EXPECT_EQ(flash, 2u) << "none, full";
  setup.published.attention = AttentionKind::kFlash;
  EXPECT_EQ(all_completions(setup).size(), 2u) << "the case overrides its stack";
}

// 12 layers over 2 stages: 6 a stage, in chunks of 1, 2, 3 or 6; 8 micro-batches divide by 2.
TEST(completions_of, open_chunks_divide_a_stage_and_stages_of_zero_are_the_stacks) {
  CaseSetup setup = small_setup();
  setup.published.model.layers = 12;
  setup.published.plan.devices = 4;
  setup.published.plan.data = 2;
  setup.published.plan.pipeline = 2;
  setup.published.plan.global_batch = 16;
  setup.published.open.add(KnobId::kVirtualPipeline);
  setup.published.open.add(KnobId::kZeroStage);
  setup.stack.facts.most_zero_stage = 1;
  std::set<int64_t> chunks;
  std::set<int64_t> stages;
  for (const Completion& completion : all_completions(setup)) {
    chunks.insert(completion.plan.virtual_pipeline);
    stages.insert(completion.plan.zero_stage);
  }
  EXPECT_EQ(chunks, (std::set<int64_t>{1, 2, 3, 6}));
  EXPECT_EQ(stages, (std::set<int64_t>{0, 1}));
}

TEST(completions_of, share_of_the_optimizer_on_the_cpu_decides_the_buckets_of_the_gpu) {
  CaseSetup setup = small_setup();
  setup.published.plan.optimizer.placement = OptimizerPlacement::kCpu;
  setup.published.plan.optimizer.bucket_bytes = {1 << 20};
  setup.published.plan.optimizer.gpu_buckets.reset();
  setup.published.optimizer_share_on_cpu = 1.0;
  for (const Completion& completion : all_completions(setup))
    EXPECT_EQ(completion.plan.optimizer.gpu_buckets, 0);
  setup.published.optimizer_share_on_cpu = 0.0;
  const std::vector<Completion> all = all_completions(setup);
  EXPECT_GT(all.front().plan.optimizer.gpu_buckets.value(), 4);
}

TEST(completions_of, run_that_no_plan_allows_is_an_error) {
  CaseSetup setup = small_setup();
  setup.published.plan.micro_batch = 3;  // of 8 sequences
  EXPECT_THROW(completions_of(setup), Error);
}

// Eight sequences of 128 tokens a step on one device.
TEST(predict_case, quantities_of_one_step_agree_with_each_other) {
  CaseSetup setup = small_setup();
  for (int i = 0; i < kMetrics; ++i) {
    setup.published.measured.push_back({static_cast<Metric>(i), 1});
  }
  const CasePrediction prediction = predict_case(setup, setup.stack.constants);
  ASSERT_TRUE(prediction.fits) << prediction.reason;
  const double seconds = metric_of(prediction, Metric::kStepTime);
  EXPECT_DOUBLE_EQ(seconds, prediction.step_time.seconds());
  EXPECT_NEAR(metric_of(prediction, Metric::kTokensPerS) * seconds, 8 * 128, 1e-6);
  EXPECT_DOUBLE_EQ(metric_of(prediction, Metric::kTokensPerDevice),
                   metric_of(prediction, Metric::kTokensPerS));
  const double flops =
      published_flops(setup.published.model, setup.published.plan, CountRecompute::kNo).count /
      seconds;
  EXPECT_NEAR(metric_of(prediction, Metric::kTflopsPerDevice), flops * 1e-12, flops * 1e-20);
  EXPECT_NEAR(metric_of(prediction, Metric::kMfu), 100 * flops / 312e12, 1e-9);
  EXPECT_GT(metric_of(prediction, Metric::kHfu), metric_of(prediction, Metric::kMfu));
  EXPECT_EQ(metric_of(prediction, Metric::kFits), 1);
  EXPECT_GT(metric_of(prediction, Metric::kPeakMemory) * 1e9,
            metric_of(prediction, Metric::kLayerActivations) * 1024 * 1024 * 1024);
}

TEST(predict_case, of_open_knobs_the_fastest_that_fits_is_taken) {
  CaseSetup setup = small_setup();
  setup.published.measured = {{Metric::kStepTime, 1}};
  setup.published.plan.micro_batch.reset();
  setup.published.plan.activations.reset();
  const CasePrediction best = predict_case(setup, setup.stack.constants);
  EXPECT_GT(best.considered, 3);
  for (const Completion& completion : all_completions(setup)) {
    BuiltCompletion built(setup, completion);
    const CasePrediction one = built.predict(setup.stack.constants, BuiltCompletion::Ask::kAll);
    if (one.fits) EXPECT_GE(one.step_time.ps, best.step_time.ps);
  }
}

// Scores of 16 sequences of 8192 tokens with 4 heads are 16*4*8192^2 * 2 bytes = 8.6 GB a layer
// and 34 GB in all, before what a softmax keeps: too much for 24 GB, which flash never needs.
TEST(predict_case, attention_that_does_not_fit_gives_way_to_the_next) {
  CaseSetup setup = small_setup();
  setup.published.measured = {{Metric::kStepTime, 1}};
  setup.published.model.max_positions = 8192;
  setup.published.plan.sequence_length = 8192;
  setup.published.plan.global_batch = 16;
  setup.published.plan.micro_batch = 16;
  setup.stack.facts.attention = {AttentionKind::kEager, AttentionKind::kFlash};
  setup.machine.gpu.memory.value = {24'000'000'000};
  const CasePrediction tight = predict_case(setup, setup.stack.constants);
  ASSERT_TRUE(tight.fits) << tight.reason;
  EXPECT_EQ(tight.completion.attention, AttentionKind::kFlash);
  setup.machine.gpu.memory.value = {800'000'000'000};
  EXPECT_EQ(predict_case(setup, setup.stack.constants).completion.attention, AttentionKind::kEager)
      << "preferred where it fits";
}

TEST(predict_case, what_does_not_fit_says_why_and_a_run_that_was_timed_has_a_time) {
  CaseSetup setup = small_setup();
  setup.published.measured = {{Metric::kStepTime, 1}, {Metric::kFits, 1}};
  setup.machine.gpu.memory.value = {1'010'000'000};  // of which a gigabyte is reserved
  const CasePrediction prediction = predict_case(setup, setup.stack.constants);
  EXPECT_FALSE(prediction.fits);
  EXPECT_NE(prediction.reason.find("GPU memory"), std::string::npos) << prediction.reason;
  setup.published.measured = {{Metric::kStepTime, 1}};
  setup.machine.gpu.memory.value = {100'000'000'000};
  const CasePrediction roomy = predict_case(setup, setup.stack.constants);
  ASSERT_TRUE(roomy.fits);
  EXPECT_GE(*prediction.metrics[0].predicted, *roomy.metrics[0].predicted)
      << "that of the plan which needs least, were there memory";
  EXPECT_EQ(prediction.metrics[1].predicted, 0);
  EXPECT_FALSE(prediction.metrics[1].right());
}

TEST(predict_case, machine_with_too_few_devices_holds_nothing) {
  CaseSetup setup = small_setup();
  setup.published.measured = {{Metric::kFits, 0}};
  setup.machine.devices = 0;
  const CasePrediction prediction = predict_case(setup, setup.stack.constants);
  EXPECT_FALSE(prediction.fits);
  EXPECT_TRUE(prediction.metrics[0].right());
}

TEST(predict_case, rollbacks_lengthen_the_mean_step_in_their_share) {
  CaseSetup setup = small_setup();
  setup.machine = load_machine("gh200-96gb-480gb");
  setup.published.measured = {{Metric::kStepTime, 1}};
  setup.published.plan.optimizer.placement = OptimizerPlacement::kCpu;
  setup.published.plan.optimizer.sync = SyncMode::kSpeculate;
  const double none = predict_case(setup, setup.stack.constants).step_time.seconds();
  setup.published.rollback_rate = 0.1;
  const double some = predict_case(setup, setup.stack.constants).step_time.seconds();
  setup.published.rollback_rate = 1;
  const double always = predict_case(setup, setup.stack.constants).step_time.seconds();
  EXPECT_GT(some, none);
  EXPECT_NEAR(some - none, 0.1 * (always - none), 1e-11);
}

}  // namespace
}  // namespace ballast
