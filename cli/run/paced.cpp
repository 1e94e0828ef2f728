#include "cli/run/paced.h"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

#include "backend/paced/device_paced.h"
#include "cli/terminal/progress.h"
#include "sim/engine/cost.h"
#include "sim/engine/sharing/fair_rates.h"

namespace ballast {
namespace {

const Duration kMeanOperation = Duration::from_us(5000);

double slow_down_of(const CostTable& costs, const PacedRun& run) {
  if (run.slow_down) return *run.slow_down;
  const Duration sum = costs.ops.sum_alone();
  CHECK(sum.ps > 0);
  return kMeanOperation.seconds() * static_cast<double>(costs.ops.size()) / sum.seconds();
}

PacedMachine machine_of(const Completed& completed, const Measurements& measurements) {
  const Graph& graph = completed.prediction.graph;
  const CostModel costs(completed.setting.machine, completed.setting.plan, completed.setting.stack,
                        &measurements);
  return {completed.prediction.costs, costs.table(graph.repair, graph),
          fair_rates(completed.prediction.costs.capacities)};
}

}  // namespace

TrainResult run_paced(const Completed& completed, const Measurements& measurements,
                      const PacedRun& run) {
  const Graph& graph = completed.prediction.graph;
  PacedOptions options;
  options.slow_down = slow_down_of(completed.prediction.costs, run);
  PacedDevice device(graph, machine_of(completed, measurements), options);
  Executor executor(graph, device);
  Progress progress("verify");
  const double operations =
      static_cast<double>(run.steps) * static_cast<double>(graph.step.ops.size());
  const std::string text =
      fmt::format("{} steps, slowed {:.3g} times", run.steps, options.slow_down);
  RunOptions run_options;
  run_options.last_step = static_cast<int32_t>(run.steps) - 1;
  run_options.tick = [&] {
    const double done = static_cast<double>(device.lateness().operations) / operations;
    progress.show(std::min(done, 1.0), text);
  };
  RunResult ran = executor.run(run_options);
  progress.finish(text);

  TrainResult result;
  result.next_step = ran.last_step + 1;
  result.rollbacks = ran.rollbacks;
  for (const Duration time : ran.step_times) {
    result.step_times.push_back(time * (1 / options.slow_down));
  }
  result.timeline = at_full_speed(std::move(ran.timeline), options.slow_down);
  return result;
}

}  // namespace ballast
