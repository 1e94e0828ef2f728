#include "cli/text/goodput.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/text/tables.h"
#include "sim/base/error.h"
#include "sim/engine/checkpoint_cost.h"

namespace ballast {
namespace {

constexpr int kRuns = 400;
constexpr uint64_t kSeed = 1;

// For which training rests at a checkpoint; nothing where neither flag nor machine tells.
std::optional<Duration> checkpoint_time(const GoodputFlags& flags, const Setting& setting) {
  if (flags.checkpoint_s) return Duration::from_seconds(*flags.checkpoint_s);
  Plan plan = setting.plan;
  if (plan.checkpoint_period_steps == 0) plan.checkpoint_period_steps = 1;
  return checkpoint_cost(setting.model, plan, setting.machine)->time;
}

// To a hundredth of a percent: what is lost is little where devices are few.
std::string share(double value) { return fmt::format("{:.2f} %", 100 * value); }

}  // namespace

void check(const GoodputFlags& flags, const Setting& setting) {
  if (!flags.failures_per_device_year || checkpoint_time(flags, setting)) return;
  throw Error(
      "--failures-per-device-year",
      "machine " + setting.machine.name + " describes no disk that checkpoints are written to",
      "say with --checkpoint-seconds how long one takes");
}

std::optional<LongPrediction> predict_goodput(const GoodputFlags& flags,
                                              const Predicted& predicted) {
  const Prediction& prediction = predicted.prediction;
  if (!flags.failures_per_device_year || !prediction.fits) return std::nullopt;
  const Plan& plan = predicted.setting.plan;
  LongPrediction result;
  result.failures = {*flags.failures_per_device_year, Duration::from_seconds(flags.detection_s),
                     Duration::from_seconds(flags.restart_s)};
  result.checkpoint_is_given = flags.checkpoint_s.has_value();
  LongRun& run = result.run;
  run.devices = plan.devices;
  run.step_time = prediction.step_time;
  run.checkpoint = checkpoint_time(flags, predicted.setting).value();
  run.days = flags.days;
  run.period_steps = plan.checkpoint_period_steps;
  result.period_is_chosen = run.period_steps == 0;
  if (result.period_is_chosen) {
    run.period_steps = 1;
    run.period_steps = best_period_steps(run, result.failures);
  }
  result.goodput = simulate_goodput(run, result.failures, kRuns, kSeed);
  result.tokens = prediction.tokens_per_s * result.goodput.kept * flags.days * kSecondsOfDay;
  if (flags.redundant_stages) {
    const RedundantStages stages = redundant_stages(prediction, plan);
    const Bytes beyond =
        prediction.gpu_peak + stages.memory - usable(predicted.setting.machine, Place::kHbm);
    result.redundant = {stages,
                        simulate_redundant_goodput(run, result.failures, stages, kRuns, kSeed),
                        {std::max<int64_t>(0, beyond.count)}};
  }
  return result;
}

namespace {

std::string redundant_text(const LongPrediction::Redundant& redundant) {
  const auto& [stages, goodput, gpu_lacks] = redundant;
  const std::string indent(16, ' ');
  std::string text = fmt::format(
      "redundant stages    goodput {}; {} slower, {} repeated, {} down, {} checkpoints; {} of {} "
      "failures read a checkpoint\n",
      share(goodput.kept), share(goodput.slowed), share(goodput.repeated), share(goodput.down),
      share(goodput.checkpoints), show_count(goodput.restarts), show_count(goodput.failures));
  text += fmt::format(
      "{}each of {} stages keeps its successor's weights, {} of GPU memory{}, and is sent as much "
      "a step\n",
      indent, stages.stages, show(stages.memory),
      gpu_lacks.count > 0 ? ", which is " + show(gpu_lacks) + " too much" : "");
  return text + fmt::format(
                    "{}and computes its forward, {} a step, in bubbles of {}: the step takes {} "
                    "longer; nothing here trains so\n",
                    indent, show(stages.forward), show(stages.idle), show(stages.longer));
}

}  // namespace

std::string goodput_text(const LongPrediction& predicted) {
  const auto& [run, failures, period_is_chosen, checkpoint_is_given, goodput, tokens, redundant] =
      predicted;
  const double between = mean_time_between(failures, run.devices);
  std::string text = fmt::format(
      "over {:g} days    goodput {} (eight runs of ten: {} to {}): steps that stay; {} repeated, "
      "{} "
      "down, {} checkpoints\n",
      run.days, share(goodput.kept), share(goodput.low), share(goodput.high),
      share(goodput.repeated), share(goodput.down), share(goodput.checkpoints));
  const std::string indent(16, ' ');
  text += fmt::format(
      "{}{} billion tokens; {} failures, one in {:.3g} hours ({:g} a device and year)\n", indent,
      show_count(tokens * 1e-9),
      goodput.failures < 1 ? fmt::format("{:.2g}", goodput.failures) : show_count(goodput.failures),
      between / 3600, failures.per_device_year);
  text += fmt::format("{}a checkpoint every {} steps{}, for which training rests {} ({})\n", indent,
                      run.period_steps, period_is_chosen ? " (the period that keeps most)" : "",
                      show(run.checkpoint),
                      checkpoint_is_given ? "--checkpoint-seconds" : "at the rate of the NVMe");
  text += fmt::format(
      "{}assumed: a failure is noticed after {} (--detection-seconds), a restart takes {} "
      "(--restart-seconds)\n",
      indent, show(failures.detection), show(failures.restart));
  return redundant ? text + redundant_text(*redundant) : text;
}

nlohmann::ordered_json goodput_json(const LongPrediction& predicted) {
  const auto& [run, failures, period_is_chosen, checkpoint_is_given, goodput, tokens, redundant] =
      predicted;
  nlohmann::ordered_json json = {
      {"days", run.days},
      {"failures_per_device_year", failures.per_device_year},
      {"mean_time_between_failures_s", mean_time_between(failures, run.devices)},
      {"detection_s", failures.detection.seconds()},
      {"restart_s", failures.restart.seconds()},
      {"checkpoint_s", run.checkpoint.seconds()},
      {"period_steps", run.period_steps},
      {"period_is_chosen", period_is_chosen},
      {"failures", goodput.failures},
      {"kept", goodput.kept},
      {"kept_of_eight_in_ten", {goodput.low, goodput.high}},
      {"repeated", goodput.repeated},
      {"down", goodput.down},
      {"checkpoints", goodput.checkpoints},
      {"tokens", tokens}};
  if (!redundant) return json;
  const RedundantStages& stages = redundant->stages;
  const RedundantGoodput& with = redundant->goodput;
  json["redundant_stages"] = {{"stages", stages.stages},
                              {"gpu_bytes", stages.memory.count},
                              {"gpu_lacks_bytes", redundant->gpu_lacks.count},
                              {"bytes_a_step", stages.traffic.count},
                              {"forward_s", stages.forward.seconds()},
                              {"idle_s", stages.idle.seconds()},
                              {"step_longer_s", stages.longer.seconds()},
                              {"failures", with.failures},
                              {"restarts", with.restarts},
                              {"kept", with.kept},
                              {"slowed", with.slowed},
                              {"repeated", with.repeated},
                              {"down", with.down},
                              {"checkpoints", with.checkpoints}};
  return json;
}

}  // namespace ballast
