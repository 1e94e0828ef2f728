// Wall time and memory of predicting pipelines of many devices, from plan to prediction.
//
//   pipeline_bench            a few stages of each, well under a second: so that it never rots
//   pipeline_bench --real     as published:
//     gpt-1t        1 trillion parameters on 3072 A100, tensor 8, pipeline 64, data 6, batch 3072
//                   (arXiv 2104.04473, table 1, last row): 512 micro-batches, 160,362 operations.
//                   Goal: 2 s on one core, 2 GiB.
//     llama-3-70b   64 H100, tensor 8, pipeline 4, data 2, 16 micro-batches. Goal: 5 ms.
//
// For each the least of some runs: building the graph, summing its memory, and all of predict. The
// predicted step is the checksum.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <fmt/format.h>
#include <sys/resource.h>

#include "profiles/load.h"
#include "sim/engine/predict.h"
#include "sim/graph/build.h"

namespace ballast {
namespace {

struct Case {
  std::string model;
  std::string machine;
  Plan plan;
  int runs = 1;
};

struct Degrees {
  int64_t tensor = 1, pipeline = 1, data = 1, micro_batches = 1;
};

Plan plan_of(const Degrees& degrees, int64_t sequence_length) {
  Plan plan;
  plan.devices = degrees.tensor * degrees.pipeline * degrees.data;
  plan.tensor = degrees.tensor;
  plan.pipeline = degrees.pipeline;
  plan.data = degrees.data;
  plan.zero_stage = 0;
  plan.global_batch = degrees.data * degrees.micro_batches;
  plan.micro_batch = 1;
  plan.sequence_length = sequence_length;
  plan.weights.flow_share = 0;
  plan.optimizer.placement = OptimizerPlacement::kGpu;
  plan.optimizer.gpu_buckets = 0;
  plan.optimizer.sync = SyncMode::kWait;
  plan.activations = ActivationPlan{};
  plan.activations->fate.fill(ActivationFate::kRecompute);
  plan.activations->fate[static_cast<size_t>(ModuleKind::kFc2)] = ActivationFate::kKeep;
  return plan;
}

std::vector<Case> cases(const char* size) {
  if (std::strcmp(size, "--real") == 0) {
    return {{"llama-3-70b", "dgx-h100-80gb", plan_of({8, 4, 2, 16}, 4096), 50},
            {"gpt-1t", "selene-a100-80gb", plan_of({8, 64, 6, 512}, 2048), 3}};
  }
  // As many layers a device as the real ones, so that they fit.
  return {{"llama-3-70b", "dgx-h100-80gb", plan_of({8, 4, 1, 4}, 4096), 1},
          {"gpt-1t", "selene-a100-80gb", plan_of({8, 64, 1, 4}, 2048), 1}};
}

template <class Work>
double milliseconds(int runs, Work work) {
  double least = 0;
  for (int run = 0; run < runs; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - begin;
    least = run == 0 ? taken.count() : std::min(least, taken.count());
  }
  return least;
}

void run(const Case& given) {
  const Model model = load_model(given.model);
  const Machine machine = load_machine(given.machine);
  check(given.plan, model);
  Graph graph;
  const double built = milliseconds(given.runs, [&] { graph = build(model, given.plan); });
  const double summed = milliseconds(given.runs, [&] { memory_peaks(graph); });
  Prediction result;
  const double predicted =
      milliseconds(given.runs, [&] { result = predict(model, given.plan, machine, nullptr); });
  if (!result.fits) throw Error("plan", result.reason, "use a machine with more memory");
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  fmt::print("{:12} {:5} {:8} {:10.2f} {:10.2f} {:10.2f} {:9} {:14.6f}\n", given.model,
             given.plan.devices, graph.step.ops.size(), built, summed, predicted,
             usage.ru_maxrss / 1024, result.step_time.seconds());
}

int bench(const char* size) {
  fmt::print("{:12} {:>5} {:>8} {:>10} {:>10} {:>10} {:>9} {:>14}\n", "model", "gpus", "ops",
             "build ms", "memory ms", "predict ms", "peak MiB", "step s");
  for (const Case& given : cases(size)) run(given);
  return 0;
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) {
  try {
    return ballast::bench(argc > 1 ? argv[1] : "");
  } catch (const ballast::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
