// How well the prediction holds on this very machine: ten plans of the shipped small GPT that
// differ in the knobs, each predicted and then trained.
//
// Profiles the machine, times each plan's operations one by one, predicts its step, trains it for
// some steps, and prints a table: predicted and measured step time (the median), the error; at its
// end the median error and the rank correlation (Spearman). Takes about two minutes; wants a
// machine on which nothing else runs. Usage: prediction_bench [steps a plan, 12 by default]
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fmt/format.h>
#include <numeric>
#include <string>
#include <vector>

#include "backend/measure/operation_times.h"
#include "backend/measure/profile_host.h"
#include "backend/train/trainer.h"
#include "profiles/load.h"
#include "sim/base/median.h"
#include "sim/engine/cost.h"
#include "sim/engine/predict.h"

namespace ballast {
namespace {

struct NamedPlan {
  std::string name;
  Plan plan;
};

Plan base_plan() {
  Plan plan;
  plan.model = "quickstart-gpt";
  plan.machine = "here";
  plan.global_batch = 8;
  plan.micro_batch = 4;
  plan.sequence_length = 128;
  plan.weights.flow_share = 0;
  plan.activations = ActivationPlan{};
  plan.optimizer.gpu_buckets = 0;
  plan.optimizer.bucket_bytes = {4 << 20};
  return plan;
}

template <class Change>
NamedPlan varied(std::string name, Change change) {
  NamedPlan result{std::move(name), base_plan()};
  change(result.plan);
  return result;
}

template <class Change>
NamedPlan waiting(std::string name, Change change) {
  return varied(std::move(name), [&](Plan& plan) {
    plan.optimizer.sync = SyncMode::kWait;
    change(plan);
  });
}

// Of every module that may have it: what a layer's recomputation starts from stays.
void set_all(Plan& plan, ActivationFate fate) {
  for (int i = 0; i < kModuleKinds; ++i) {
    const auto kind = static_cast<ModuleKind>(i);
    const bool starts_layer = kind == ModuleKind::kFc2 && fate == ActivationFate::kRecompute;
    if (saves_output(kind) && !starts_layer) {
      plan.activations->fate[static_cast<size_t>(i)] = fate;
    }
  }
}

// The slow Adam of `reference` makes visible whether a step waits for it.
std::vector<NamedPlan> plans() {
  return {
      varied("speculate, 4 MiB", [](Plan&) {}),
      waiting("wait, cast on CPU, 8 MiB, reference Adam",
              [](Plan& p) {
                p.optimizer.cast = CastPlacement::kCpu;
                p.optimizer.bucket_bytes = {8 << 20};
                p.optimizer.adam = "reference";
              }),
      waiting("wait, all on GPU, micro-batch 8",
              [](Plan& p) {
                p.optimizer.gpu_buckets = 100;
                p.micro_batch = 8;
              }),
      varied("speculate, exact undo, 2 on GPU, 1 MiB",
             [](Plan& p) {
               p.optimizer.undo = UndoKind::kExact;
               p.optimizer.gpu_buckets = 2;
               p.optimizer.bucket_bytes = {1 << 20};
             }),
      varied("delay, 2 MiB, micro-batch 2",
             [](Plan& p) {
               p.optimizer.sync = SyncMode::kDelay;
               p.optimizer.bucket_bytes = {2 << 20};
               p.micro_batch = 2;
             }),
      varied("speculate, half flows, cast on CPU, micro-batch 1",
             [](Plan& p) {
               p.weights.flow_share = 0.5;
               p.optimizer.cast = CastPlacement::kCpu;
               p.micro_batch = 1;
             }),
      waiting("wait, recompute all, reference Adam",
              [](Plan& p) {
                p.optimizer.adam = "reference";
                set_all(p, ActivationFate::kRecompute);
              }),
      varied("speculate, recompute all, offload fc2, micro-batch 2",
             [](Plan& p) {
               set_all(p, ActivationFate::kRecompute);
               p.activations->fate[static_cast<size_t>(ModuleKind::kFc2)] =
                   ActivationFate::kOffload;
               p.micro_batch = 2;
             }),
      varied("speculate, offload all, reference Adam",
             [](Plan& p) {
               p.optimizer.adam = "reference";
               set_all(p, ActivationFate::kOffload);
             }),
      waiting("wait, offload half, half flows, micro-batch 1",
              [](Plan& p) {
                set_all(p, ActivationFate::kOffload);
                p.activations->offload_share = 0.5;
                p.weights.flow_share = 0.5;
                p.micro_batch = 1;
              }),
  };
}

struct Outcome {
  double predicted_ms = 0;
  double measured_ms = 0;
  double error_percent() const { return 100 * (predicted_ms / measured_ms - 1); }
};

Outcome run(const Model& model, const Plan& plan, const Machine& machine,
            const std::vector<OperationTime>& known, int steps) {
  TrainerOptions options;
  options.optimizer_threads = static_cast<int>(machine.cpu.optimizer_threads);
  options.optimizer.learning_rate.total_steps = steps;
  options.optimizer.clip_norm = 0;  // the first steps would clip, and speculation roll back each
  Measurements measurements;
  const auto add = [&](const OperationTime& time) {
    measurements[cost_key(time.op)] = measurement_of(time.op, {time.median, time.deviation});
  };
  for (const OperationTime& time : known) add(time);
  for (const OperationTime& time : measure_operations(model, plan, 1.0, options)) add(time);
  const Prediction prediction = predict(model, plan, machine, &measurements);
  if (!prediction.fits) throw Error("plan", prediction.reason, "run on a larger machine");

  Trainer trainer(model, plan, options);
  const TrainResult trained = trainer.train(steps, nullptr);
  std::vector<double> times;
  constexpr size_t kWarmUp = 2;
  for (size_t i = kWarmUp; i < trained.step_times.size(); ++i) {
    times.push_back(trained.step_times[i].ms());
  }
  return {prediction.step_time.ms(), median(std::move(times))};
}

// Equal values share the mean of their ranks.
std::vector<double> ranks_of(const std::vector<double>& values) {
  std::vector<double> ranks;
  for (const double value : values) {
    double below = 0;
    double equal = 0;
    for (const double other : values) {
      below += other < value ? 1 : 0;
      equal += other == value ? 1 : 0;
    }
    ranks.push_back(below + (equal + 1) / 2);
  }
  return ranks;
}

double spearman(const std::vector<double>& a, const std::vector<double>& b) {
  const std::vector<double> x = ranks_of(a);
  const std::vector<double> y = ranks_of(b);
  const double mean = (static_cast<double>(x.size()) + 1) / 2;
  double xy = 0, xx = 0, yy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean) * (y[i] - mean);
    xx += (x[i] - mean) * (x[i] - mean);
    yy += (y[i] - mean) * (y[i] - mean);
  }
  return xy / std::sqrt(xx * yy);
}

int bench(int steps) {
  HostProfileOptions options;
  options.on_probe = [](const ProbeReport& report) {
    fmt::print(stderr, "{:2}/{} {}: {}\n", report.index, report.count, report.name, report.result);
  };
  const Profile profile = profile_host(options);
  fmt::print("dram {:.1f} GB/s, hand-over {:.1f} us\n\n",
             profile.machine.cpu.memory_bandwidth.value.gb_per_s(),
             profile.machine.handover.value.us());
  const Model model = load_model("quickstart-gpt");
  std::vector<double> predicted, measured, errors;
  fmt::print("{:56} {:>12} {:>11} {:>8}\n", "plan", "predicted ms", "measured ms", "error");
  for (const NamedPlan& named : plans()) {
    const Outcome outcome = run(model, named.plan, profile.machine, profile.operations, steps);
    fmt::print("{:56} {:12.1f} {:11.1f} {:+7.1f}%\n", named.name, outcome.predicted_ms,
               outcome.measured_ms, outcome.error_percent());
    std::fflush(stdout);
    predicted.push_back(outcome.predicted_ms);
    measured.push_back(outcome.measured_ms);
    errors.push_back(std::abs(outcome.error_percent()));
  }
  fmt::print("\nmedian error {:.1f} %, largest {:.1f} %, Spearman {:.3f}\n", median(errors),
             *std::max_element(errors.begin(), errors.end()), spearman(predicted, measured));
  return 0;
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) {
  try {
    return ballast::bench(std::max(argc > 1 ? std::atoi(argv[1]) : 12, 4));
  } catch (const ballast::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
