// How fast plans are bounded, simulated and searched.
//
//   search_bench                two small searches, seconds: so that it never rots
//   search_bench --real         the large ones of docs/autotune.md, with times and counts
//   search_bench --real NAME    one of them
//
// Wall times are of this machine and its load; counts are exact.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <sys/resource.h>
#include <vector>

#include "autotune/bounds/cell_bound.h"
#include "autotune/bounds/layer_costs.h"
#include "autotune/search/search.h"
#include "autotune/space/layout.h"
#include "profiles/load.h"
#include "sim/engine/cost.h"
#include "sim/engine/predict.h"
#include "sim/graph/build.h"

namespace ballast {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Case {
  const char* name;
  const char* model;
  const char* machine;
  int64_t devices;
  int64_t sequence_length;
  int64_t global_batch;
  bool megatron;  // Calculon's space: degrees, recompute and ZeRO, nothing offloaded
  bool small;
};

constexpr Case kCases[] = {
    {"gpt2-xl", "gpt2-xl", "gh200-96gb-480gb", 1, 1024, 8, false, true},
    {"llama-8b-pipelines", "llama-3-8b", "hgx-a100-80gb", 4, 2048, 16, true, true},
    {"gpt-13b-gh200", "gpt-13b", "gh200-96gb-480gb", 1, 1024, 8, false, false},
    {"50b-16-gh200", "gpt-50b", "gh200-nvl2-96gb-240gb", 16, 2048, 64, false, false},
    {"gpt3-64", "gpt3-175b", "selene-a100-80gb", 64, 2048, 512, true, false},
    {"gpt3-1024", "gpt3-175b", "selene-a100-80gb", 1024, 2048, 2048, true, false},
    {"405b-1024", "llama-3.1-405b", "dgx-h100-80gb", 1024, 8192, 2048, true, false},
};

Model model_named(const std::string& name) {
  if (name != "gpt-50b") return load_model(name);
  Model model = load_model("gpt-22b");  // layers of 6144, as many as make 50B
  model.layers = 110;
  model.name = name;
  return model;
}

Plan base_plan(const Case& tried) {
  Plan plan;
  plan.devices = plan.data = tried.devices;
  plan.global_batch = tried.global_batch;
  plan.sequence_length = tried.sequence_length;
  plan.optimizer.undo = UndoKind::kExact;
  if (tried.megatron) {
    plan.optimizer.placement = OptimizerPlacement::kGpu;
    plan.optimizer.sync = SyncMode::kWait;
    plan.optimizer.gpu_buckets = 0;
    plan.weights.flow_share = 0;
    plan.zero_stage = 1;
  }
  return plan;
}

void search_case(const Case& tried) {
  const Model model = model_named(tried.model);
  const Machine machine = load_machine(tried.machine);
  const Plan base = base_plan(tried);
  KnobSet layouts = knobs_of(KnobSearch::kLayout);
  OpenKnobs open = OpenKnobs::all();
  if (tried.megatron) {
    layouts.remove(KnobId::kSequence).remove(KnobId::kContext).remove(KnobId::kPlacement);
    open = {};
    open.add(KnobId::kMicroBatch).add(KnobId::kActivations);
  }
  const auto begin = Clock::now();
  const SearchSpace space{layouts_of(model, base, layouts), open};
  SearchOptions options;
  options.deadline_s = 120;
  const SearchResult found = search(model, space, machine, nullptr, options);
  const double seconds = since(begin);
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  std::printf("%-20s %7.2f s %6lld layouts %12lld plans %6lld simulated %s %5ld MiB", tried.name,
              seconds, static_cast<long long>(found.layouts),
              static_cast<long long>(found.considered), static_cast<long long>(found.simulated),
              found.complete() ? "optimum " : "deadline", use.ru_maxrss / 1024);
  if (found.best) {
    std::printf("  %.4g s: %s", found.best->step_time.seconds(),
                layout_name(found.best->plan).c_str());
  }
  std::printf("\n");
  std::fflush(stdout);
}

// Llama-3-70B, tensor 8, pipeline 4, data 2, 16 micro-batches.
void one_plan() {
  const Model model = load_model("llama-3-70b");
  const Machine machine = load_machine("dgx-h100-80gb");
  Plan plan;
  plan.devices = 64;
  plan.tensor = 8;
  plan.pipeline = 4;
  plan.data = 2;
  plan.zero_stage = 1;
  plan.global_batch = 32;
  plan.micro_batch = 1;
  plan.sequence_length = 4096;
  plan.activations = ActivationPlan{};
  plan.optimizer.placement = OptimizerPlacement::kGpu;
  plan.optimizer.sync = SyncMode::kWait;
  plan.optimizer.gpu_buckets = 0;
  plan.weights.flow_share = 0;
  const CostModel costs(machine, Plan{}, Stack{}, nullptr);
  LayerProfiles layers(model, costs);
  layers.prepare({plan}, 1);
  constexpr int kRepeats = 1000;
  StepFloors floors(costs);
  const StepFloor floor = floors.of(plan, space_of(model, plan, OpenKnobs{}));
  const Usable usable{machine.gpu.memory.value, machine.cpu.memory.value, Bytes{}};
  auto begin = Clock::now();
  Duration bound;
  for (int i = 0; i < kRepeats; ++i) {
    bound = cell_time(model, plan, layers.of(plan), floor, usable);
  }
  const double bounding = since(begin) / kRepeats;
  std::vector<double> times;
  Duration step;
  for (int i = 0; i < 21; ++i) {
    begin = Clock::now();
    step = step_time_of(build(model, plan), plan, costs);
    times.push_back(since(begin));
  }
  std::nth_element(times.begin(), times.begin() + 10, times.end());
  std::printf(
      "one plan             bounded in %.1f us, simulated in %.2f ms; bound %.4g s of %.4g s\n",
      bounding * 1e6, times[10] * 1e3, bound.seconds(), step.seconds());
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) {
  using namespace ballast;
  const bool real = argc > 1 && std::string(argv[1]) == "--real";
  const std::string name = argc > 2 ? argv[2] : "";
  if (name.empty()) one_plan();
  for (const Case& tried : kCases) {
    if (name.empty() ? tried.small != real : name == tried.name) search_case(tried);
  }
}
