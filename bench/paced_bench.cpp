// Agreement of the two clocks on a machine that is not here: GH200-shaped plans, predicted by the
// virtual clock and run by the executor on the paced device.
//
// Counters: predicted and measured step time (of the machine, milliseconds), agreement in percent
// (100 minus the difference), how late the executor was called on average (real microseconds), the
// share of operations that were later than is forgiven, and operations a step. The last run
// forgives nothing: what the delays of this system's threads add up to. A busy machine delays
// threads: run it in a quiet moment. BALLAST_PACED_MEAN_MS is the length of a mean operation in
// real time (default 6), which sets the slow-down.
#include <algorithm>
#include <benchmark/benchmark.h>
#include <cstdlib>

#include "backend/execute/executor.h"
#include "sim/base/median.h"
#include "tests/backend/gh200_plans.h"

namespace ballast {
namespace {

constexpr int kWarmUpSteps = 2;
constexpr int kSteps = 7;

// Real length of a mean operation, milliseconds.
double mean_operation_ms() {
  const char* given = std::getenv("BALLAST_PACED_MEAN_MS");
  return given != nullptr ? std::atof(given) : 6;
}

double slow_down_for(const CostTable& costs) {
  return mean_operation_ms() * static_cast<double>(costs.ops.size()) / costs.ops.sum_alone().ms();
}

Duration median_after_warm_up(std::vector<Duration> times) {
  times.erase(times.begin(), times.begin() + kWarmUpSteps);
  return median(std::move(times));
}

void report(benchmark::State& state, const gh200::Prepared& prepared, double slow_down,
            double measured_ms, const Lateness& lateness) {
  const double predicted_ms = prepared.predicted.step_time.ms();
  const auto operations = static_cast<double>(lateness.operations);
  state.counters["predicted_ms"] = predicted_ms;
  state.counters["measured_ms"] = measured_ms;
  state.counters["agreement_percent"] =
      100 * (1 - std::abs(measured_ms - predicted_ms) / predicted_ms);
  state.counters["late_us"] = lateness.forgiven.us() / operations;
  state.counters["charged_percent"] =
      100 * static_cast<double>(lateness.charged_operations) / operations;
  state.counters["operations"] = static_cast<double>(prepared.graph.step.ops.size());
  state.counters["settled"] = prepared.predicted.settled ? 1 : 0;
  state.counters["slow_down"] = slow_down;
}

void paced(benchmark::State& state, const gh200::NamedPlan& named, Duration forgiven) {
  const gh200::Prepared prepared =
      gh200::prepare(gh200::model(3), named.plan, load_machine("gh200-96gb-480gb"));
  const double slow_down = slow_down_for(prepared.machine.step);
  double measured_ms = 0;
  Lateness lateness;
  for (auto _ : state) {
    PacedDevice device(prepared.graph, prepared.machine,
                       {.slow_down = slow_down, .forgiven = forgiven});
    Executor executor(prepared.graph, device);
    RunOptions options;
    options.last_step = kWarmUpSteps + kSteps - 1;
    const RunResult result = executor.run(options);
    measured_ms = median_after_warm_up(result.step_times).ms() / slow_down;
    lateness = device.lateness();
  }
  report(state, prepared, slow_down, measured_ms, lateness);
}

// Four superchips side by side, each with an executor of its own, against the one that the
// prediction has for all.
void paced_ranks(benchmark::State& state) {
  const gh200::Prepared prepared = gh200::prepare_ranks(gh200::model(3));
  const double slow_down = slow_down_for(prepared.machine.step);
  double measured_ms = 0;
  Lateness lateness;
  for (auto _ : state) {
    const gh200::RanksRun run =
        gh200::run_ranks(prepared, 4, slow_down, kWarmUpSteps + kSteps, PacedOptions{}.forgiven);
    measured_ms = median_after_warm_up(run.step_times).ms() / slow_down;
    lateness = run.lateness;
  }
  report(state, prepared, slow_down, measured_ms, lateness);
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) {
  const auto add = [](const ballast::gh200::NamedPlan& named, ballast::Duration forgiven) {
    benchmark::RegisterBenchmark(named.name.c_str(), ballast::paced, named, forgiven)
        ->Iterations(1)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  };
  const std::vector<ballast::gh200::NamedPlan> plans = ballast::gh200::plans();
  for (const ballast::gh200::NamedPlan& named : plans) add(named, ballast::PacedOptions{}.forgiven);
  benchmark::RegisterBenchmark("ZeRO-3 and superoffload on 4 ranks", ballast::paced_ranks)
      ->Iterations(1)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
  add({plans.front().name + ", no lateness forgiven", plans.front().plan}, {});
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
