#include "sim/engine/predict.h"

#include <gtest/gtest.h>
#include <numeric>

#include "sim/engine/checkpoint_cost.h"
#include "sim/engine/engine.h"
#include "tests/engine/tiny_machine.h"

namespace ballast {
namespace {

using tests::tiny_machine;
using tests::tiny_model;

Plan tiny_plan(SyncMode sync) {
  Plan plan = tests::tiny_plan(OptimizerPlacement::kCpu);
  plan.optimizer.sync = sync;
  return plan;
}

Prediction predict_tiny(const Plan& plan, const Machine& machine = tiny_machine()) {
  check(plan, tiny_model());
  return predict(tiny_model(), plan, machine, nullptr);
}

// 4 sequences of 128 tokens a step on one device; the rates are those numbers over the step time.
TEST(Predict, rates_follow_from_the_step_time) {
  const Prediction result = predict_tiny(tiny_plan(SyncMode::kWait));
  ASSERT_TRUE(result.fits) << result.reason;
  EXPECT_TRUE(result.reason.empty());
  EXPECT_TRUE(result.settled);
  const double seconds = result.step_time.seconds();
  EXPECT_DOUBLE_EQ(result.tokens_per_s, 512 / seconds);
  EXPECT_DOUBLE_EQ(result.tokens_per_s_per_device, 512 / seconds);
  const double flops = model_flops_per_step(tiny_model(), 512, 128).count;
  EXPECT_DOUBLE_EQ(result.model_rate.flops_per_s, flops / seconds);
  EXPECT_DOUBLE_EQ(result.mfu, flops / seconds / 1e12);
  EXPECT_GT(result.hardware_rate, result.model_rate);  // norms and the like come on top
}

// Published utilisations refer to the data sheet's 16-bit peak, whatever the products are.
TEST(Predict, mfu_is_a_share_of_the_nominal_peak_where_there_is_one) {
  Machine machine = tiny_machine();
  machine.gpu.nominal_matmul.emplace();
  machine.gpu.nominal_matmul->value = FlopRate::from_tflops(4);
  const Prediction best = predict_tiny(tiny_plan(SyncMode::kWait));
  const Prediction nominal = predict_tiny(tiny_plan(SyncMode::kWait), machine);
  EXPECT_EQ(nominal.step_time, best.step_time);
  EXPECT_DOUBLE_EQ(nominal.mfu, best.mfu / 4);
}

// A framework whose host takes a millisecond for a launch, where no operation of the GPU takes one:
// the step lasts as long as all its launches. Recorded as graphs it is that of a perfect host.
TEST(Predict, a_step_that_its_host_binds_lasts_as_long_as_its_launches_and_graphs_end_that) {
  Plan plan = tiny_plan(SyncMode::kWait);
  plan.optimizer.placement = OptimizerPlacement::kGpu;
  Stack stack;
  stack.constants.launch = Duration::from_us(1000);
  const auto step = [&](const Stack& as) {
    return predict(tiny_model(), plan, tiny_machine(), as, nullptr);
  };
  const Prediction bound = step(stack);
  Duration host;
  for (size_t i = 0; i < bound.costs.ops.size(); ++i) host += bound.costs.ops[i].host;
  ASSERT_GT(host, step(Stack{}).step_time * 5);
  EXPECT_GE(bound.step_time, host);
  EXPECT_LT(bound.step_time, host * 1.1);
  plan.cuda_graphs = true;
  EXPECT_EQ(step(stack).step_time, step(Stack{}).step_time);
}

TEST(Predict, the_longest_path_sums_to_the_step_and_shares_sum_to_one) {
  const Prediction result = predict_tiny(tiny_plan(SyncMode::kSpeculate));
  Duration sum = result.longest_path.waiting;
  for (const KindTime& kind : result.longest_path.by_kind) sum += kind.time;
  EXPECT_EQ(sum, result.step_time);
  EXPECT_GE(result.longest_path.waiting.ps, 0);
  EXPECT_DOUBLE_EQ(std::accumulate(result.provenance.begin(), result.provenance.end(), 0.0), 1.0);
  EXPECT_EQ(result.provenance[static_cast<size_t>(Provenance::kRoofline)], 1.0);
  for (const LaneUse& use : result.lanes) EXPECT_LE(use.share, 1.0 + 1e-9);
}

// Speculation hides the optimizer behind the backward and the next forward, so it is no slower
// than waiting; only it can roll back, which costs at least the forward that is repeated.
TEST(Predict, speculation_is_no_slower_than_waiting_and_alone_can_roll_back) {
  const Prediction wait = predict_tiny(tiny_plan(SyncMode::kWait));
  const Prediction speculate = predict_tiny(tiny_plan(SyncMode::kSpeculate));
  EXPECT_LE(speculate.step_time, wait.step_time);
  EXPECT_FALSE(wait.rollback_time.has_value());
  ASSERT_TRUE(speculate.rollback_time.has_value());
  Duration forward;
  for (size_t i = 0; i < static_cast<size_t>(speculate.graph.commit); ++i) {
    const Op& op = speculate.graph.step.ops[i];
    if (kind_of(op.lane) == LaneKind::kCompute) forward += speculate.costs.ops[i].alone;
  }
  EXPECT_GT(forward.ps, 0);
  EXPECT_GE(*speculate.rollback_time, forward);
}

// Recompute adds work for the hardware, none for the model.
TEST(Predict, recompute_counts_as_hardware_work_only) {
  Plan plan = tiny_plan(SyncMode::kWait);
  const Prediction keep = predict_tiny(plan);
  plan.activations->fate.fill(ActivationFate::kRecompute);
  plan.activations->fate[static_cast<size_t>(ModuleKind::kFc2)] = ActivationFate::kKeep;
  const Prediction recompute = predict_tiny(plan);
  const auto work = [](const Prediction& p, FlopRate rate) {
    return rate.flops_per_s * p.step_time.seconds();
  };
  EXPECT_GT(work(recompute, recompute.hardware_rate), 1.1 * work(keep, keep.hardware_rate));
  EXPECT_NEAR(work(recompute, recompute.model_rate), work(keep, keep.model_rate), 1.0);
}

// The peaks do not depend on the machine; a GPU a MiB smaller than they are cannot hold them.
TEST(Predict, a_plan_that_exceeds_memory_is_infeasible_with_numbers_and_a_remedy) {
  const Plan plan = tiny_plan(SyncMode::kWait);
  const Bytes needed = predict_tiny(plan).peaks[0].arena;
  Machine machine = tiny_machine();
  machine.gpu.memory.value = needed;
  EXPECT_TRUE(predict_tiny(plan, machine).fits);
  machine.gpu.reserved.value = {1 << 20};
  const Prediction result = predict_tiny(plan, machine);
  EXPECT_FALSE(result.fits);
  EXPECT_EQ(result.step_time.ps, 0);
  EXPECT_TRUE(result.timeline.spans.empty());
  EXPECT_FALSE(result.peaks.empty());
  EXPECT_NE(result.reason.find("GPU memory"), std::string::npos) << result.reason;
  EXPECT_NE(result.reason.find("1.00 MiB too much"), std::string::npos) << result.reason;
  EXPECT_NE(result.reason.find(';'), std::string::npos);
}

// 2 GiB of activations in 1 GiB: the sentence, word for word.
TEST(Predict, the_reason_names_the_largest_holder) {
  PlacePeak peak;
  peak.place = Place::kHbm;
  peak.arena = {int64_t{2} << 30};
  peak.holders = {{Category::kActivations, {int64_t{1} << 30}}, {Category::kWeights, {1}}};
  EXPECT_EQ(reason_not_to_fit({peak}, tiny_plan(SyncMode::kWait), tiny_machine()),
            "GPU memory: 2.00 GiB needed, 1.00 GiB usable, 1.00 GiB too much; activations fill "
            "1.00 GiB of it; recompute or offload activations, or use a smaller micro_batch");
  peak.place = Place::kDram;
  EXPECT_EQ(reason_not_to_fit({peak}, tiny_plan(SyncMode::kWait), tiny_machine()), "");
  peak.arena = {int64_t{5} << 30};
  PlacePeak gpu;
  gpu.place = Place::kHbm;
  gpu.arena = {int64_t{3} << 30};
  const std::string both =
      reason_not_to_fit({gpu, peak}, tiny_plan(SyncMode::kWait), tiny_machine());
  EXPECT_EQ(both.find("GPU memory: 3.00 GiB needed, 1.00 GiB usable, 2.00 GiB too much, and CPU "
                      "memory 1.00 GiB too much; "),
            0u)
      << both;
  EXPECT_NE(reason_not_to_fit({peak}, tiny_plan(SyncMode::kWait), tiny_machine())
                .find("CPU memory: 5.00 GiB needed, 4.00 GiB usable"),
            std::string::npos);
  peak.place = Place::kNvme;
  EXPECT_NE(reason_not_to_fit({peak}, tiny_plan(SyncMode::kWait), tiny_machine()).find("NVMe"),
            std::string::npos);
}

TEST(Predict, more_devices_than_the_machine_has_are_infeasible) {
  Plan plan = tiny_plan(SyncMode::kWait);
  plan.devices = plan.data = 2;
  const Prediction result = predict_tiny(plan);
  EXPECT_FALSE(result.fits);
  EXPECT_NE(result.reason.find("2 devices"), std::string::npos);
}

// A faster link cannot make a step slower, and Adam ten times slower must show.
TEST(Predict, the_step_follows_the_machine) {
  const Plan plan = tiny_plan(SyncMode::kWait);
  const Duration base = predict_tiny(plan).step_time;
  Machine machine = tiny_machine();
  for (Curve* curve : {&machine.link.host_to_device, &machine.link.device_to_host}) {
    for (Curve::Point& point : curve->points) point.rate *= 4;
  }
  machine.link.both_total.value.bytes_per_s *= 4;
  EXPECT_LT(predict_tiny(plan, machine).step_time, base);
  machine = tiny_machine();
  for (auto& [name, curve] : machine.cpu.adam) curve.points[0].rate /= 10;
  EXPECT_GT(predict_tiny(plan, machine).step_time, base);
}

// Master weights and two moments, 12 bytes a parameter, 16 where gradients wait as well: at 1 GB/s
// a nanosecond a byte, every tenth step.
// One step that begins with empty lanes.
Timeline from_rest(const Prediction& prediction) {
  SimulateOptions options;
  options.max_steps = options.record_steps = 1;
  return simulate(prediction.graph.step, prediction.graph, prediction.costs, options);
}

TEST(CheckpointCost, the_state_at_the_rate_of_the_disk_spread_over_the_period) {
  Plan plan = tiny_plan(SyncMode::kWait);
  Machine machine = tiny_machine();
  EXPECT_FALSE(checkpoint_cost(tiny_model(), plan, machine));
  plan.checkpoint_period_steps = 10;
  const int64_t bytes = 12 * parameter_count(tiny_model());
  EXPECT_EQ(checkpoint_cost(tiny_model(), plan, machine)->total.count, bytes);
  EXPECT_FALSE(checkpoint_cost(tiny_model(), plan, machine)->time);
  machine.nvme.emplace().write = tests::flat(1e9);
  const CheckpointCost cost = *checkpoint_cost(tiny_model(), plan, machine);
  EXPECT_NEAR(cost.time->seconds(), static_cast<double>(bytes) * 1e-9, 1e-11);
  EXPECT_NEAR(cost.time_per_step->seconds(), static_cast<double>(bytes) * 1e-10, 1e-11);
  plan.optimizer.sync = SyncMode::kDelay;
  EXPECT_EQ(checkpoint_cost(tiny_model(), plan, machine)->total.count, bytes / 3 * 4);
}

// Of four devices each writes a quarter of what they share; what all hold is written by one.
TEST(CheckpointCost, each_part_of_the_state_is_written_once) {
  Plan plan = tiny_plan(SyncMode::kWait);
  plan.checkpoint_period_steps = 1;
  plan.devices = plan.data = 4;
  const int64_t bytes = 12 * parameter_count(tiny_model());
  const auto device_bytes = [&] {
    return checkpoint_cost(tiny_model(), plan, tiny_machine())->device.count;
  };
  plan.zero_stage = 1;
  EXPECT_EQ(device_bytes(), bytes / 4);
  plan.zero_group = 2;
  EXPECT_EQ(device_bytes(), bytes / 2);
  plan.zero_stage = 0;
  EXPECT_EQ(device_bytes(), bytes);
}

// Speculation lets the update of a step run beside the next one's forward: a step from a standing
// start has none beside it, and is longer by that. With a write that takes no time, a checkpoint
// costs the copy and that.
TEST(CheckpointCost, lanes_that_drained_fill_anew) {
  Machine machine = tiny_machine();
  machine.nvme.emplace().write = tests::flat(1e9);
  for (const SyncMode sync : {SyncMode::kWait, SyncMode::kSpeculate, SyncMode::kDelay}) {
    Plan plan = tiny_plan(sync);
    plan.checkpoint_period_steps = 10;
    const Prediction prediction = predict_tiny(plan, machine);
    Duration first_step;
    for (const Span& span : from_rest(prediction).spans) {
      first_step = std::max(first_step, Duration{span.end.ps});
    }
    const BackgroundCheckpoint beside = background_checkpoint(
        *checkpoint_cost(tiny_model(), plan, machine), prediction, plan, machine, Duration{});
    EXPECT_EQ(beside.refill, std::max(first_step - prediction.step_time, Duration{}));
    if (sync == SyncMode::kSpeculate) EXPECT_GT(beside.refill.ps, 0);
    const double costs = (beside.copy + beside.refill).seconds();
    EXPECT_NEAR(*beside.overhead, costs / (10 * prediction.step_time.seconds()), 1e-12);
  }
}

}  // namespace
}  // namespace ballast
