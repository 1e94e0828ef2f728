// A GH200-shaped training for the paced device: a few layers of a large model, under all knobs.
#pragma once

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "backend/execute/executor.h"
#include "backend/paced/device_paced.h"
#include "profiles/load.h"
#include "sim/engine/cost.h"
#include "sim/engine/engine.h"
#include "sim/engine/sharing/fair_rates.h"
#include "sim/graph/build.h"
#include "tests/tiny.h"

namespace ballast::gh200 {

// Layers as wide as those of a 7B model, and a short vocabulary.
inline Model model(int64_t layers) {
  return tiny::gpt2({.layers = layers,
                     .hidden = 4096,
                     .heads = 32,
                     .kv_heads = 32,
                     .head_size = 128,
                     .ffn = 16384,
                     .vocab = 4096,
                     .positions = 2048});
}

struct NamedPlan {
  std::string name;
  Plan plan;
};

// Half of the modules' outputs are sent away or computed again, half kept.
inline ActivationPlan mixed_activations() {
  ActivationPlan activations;
  const auto set = [&](ModuleKind kind, ActivationFate fate) {
    activations.fate[static_cast<size_t>(kind)] = fate;
  };
  set(ModuleKind::kNorm1, ActivationFate::kRecompute);
  set(ModuleKind::kNorm2, ActivationFate::kRecompute);
  set(ModuleKind::kActivation, ActivationFate::kRecompute);
  set(ModuleKind::kQkv, ActivationFate::kOffload);
  set(ModuleKind::kFc1, ActivationFate::kOffload);
  return activations;
}

inline Plan superoffload() {
  Plan plan;
  plan.global_batch = 8;
  plan.micro_batch = 4;
  plan.sequence_length = 2048;
  plan.weights.flow_share = 0.5;
  plan.optimizer.bucket_bytes = {64 << 20};
  plan.optimizer.gpu_buckets = 1;
  plan.optimizer.cast = CastPlacement::kGpu;
  plan.optimizer.sync = SyncMode::kSpeculate;
  plan.activations = mixed_activations();
  return plan;
}

// SuperOffload with every knob in use, and plans that differ from it in a few of them.
inline std::vector<NamedPlan> plans() {
  const Plan all = superoffload();
  std::vector<NamedPlan> plans = {{"superoffload, all knobs", all}};
  const auto add = [&](const std::string& name, const Plan& plan) {
    plans.push_back({name, plan});
  };
  Plan plan = all;
  plan.weights.flow_share = 0;
  plan.activations = ActivationPlan{};
  add("superoffload, weights and activations stay", plan);
  plan = all;
  plan.weights.flow_share = 1;
  plan.optimizer.undo = UndoKind::kExact;
  add("superoffload, all weights flow, exact undo", plan);
  plan = all;
  plan.optimizer.sync = SyncMode::kWait;
  plan.optimizer.cast = CastPlacement::kCpu;
  plan.optimizer.gpu_buckets = 0;
  plan.weights.flow_share = 0;
  add("zero-offload", plan);
  plan.optimizer.sync = SyncMode::kDelay;
  add("zero-offload, delayed", plan);
  plan = all;
  plan.optimizer.sync = SyncMode::kWait;
  plan.optimizer.placement = OptimizerPlacement::kGpu;
  plan.optimizer.gpu_buckets = 0;
  plan.weights.flow_share = 0;
  plan.activations = ActivationPlan{};
  add("resident", plan);
  return plans;
}

// A plan's graph, its prediction on a machine, and what the paced device needs to imitate it.
struct Prepared {
  Graph graph;
  PacedMachine machine;
  Timeline predicted;
};

inline Prepared prepare(const Model& model, const Plan& plan, const Machine& machine) {
  Prepared prepared;
  prepared.graph = build(model, plan);
  const CostModel costs(machine, plan, Stack{}, nullptr);
  prepared.machine.step = costs.table(prepared.graph.step, prepared.graph);
  prepared.machine.repair = costs.table(prepared.graph.repair, prepared.graph);
  prepared.machine.rates = fair_rates(prepared.machine.step.capacities);
  prepared.predicted = simulate(prepared.graph.step, prepared.graph, prepared.machine.step);
  return prepared;
}

// SuperOffload on the four superchips of a node: weights, gradients and state split (ZeRO-3), state
// on the CPU.
inline Prepared prepare_ranks(const Model& model) {
  Plan plan = superoffload();
  plan.devices = plan.data = 4;
  plan.global_batch = 4 * superoffload().global_batch;
  plan.zero_stage = 3;
  plan.weights.flow_share = 0;
  plan.optimizer.gpu_buckets = 0;
  return prepare(model, plan, load_machine("jedi-gh200-quad"));
}

// What ranks beside each other took, each on a paced device and an executor of its own.
struct RanksRun {
  std::vector<Timeline> timelines;   // of each rank
  std::vector<Duration> step_times;  // of the slowest rank in each step; real time
  Lateness lateness;                 // of the first rank
};

inline RanksRun run_ranks(const Prepared& prepared, int count, double slow_down, int32_t steps,
                          Duration forgiven) {
  RanksRun run;
  PacedRanks ranks;
  std::vector<RunResult> results(static_cast<size_t>(count));
  {
    std::vector<std::jthread> crew;
    for (int rank = 0; rank < count; ++rank) {
      crew.emplace_back([&, rank] {
        PacedDevice device(
            prepared.graph, prepared.machine,
            {.slow_down = slow_down, .forgiven = forgiven, .ranks = &ranks, .rank = rank});
        RunOptions options;
        options.last_step = steps - 1;
        options.recorded_steps = 100;
        results[static_cast<size_t>(rank)] = Executor(prepared.graph, device).run(options);
        if (rank == 0) run.lateness = device.lateness();
      });
    }
  }
  run.step_times = results.front().step_times;
  for (RunResult& result : results) {
    for (size_t step = 0; step < run.step_times.size(); ++step) {
      run.step_times[step] = std::max(run.step_times[step], result.step_times[step]);
    }
    run.timelines.push_back(std::move(result.timeline));
  }
  return run;
}

}  // namespace ballast::gh200
