#include "cli/host.h"

#include <algorithm>

#include "sim/base/error.h"
#include "sim/engine/cost.h"
#include "sim/graph/build.h"

namespace ballast {

void add_training_flags(VerbParser& parser, TrainingFlags& flags) {
  CLI::App& app = parser.app();
  const auto add = [&](const char* name, auto& value, const char* help, const char* type) {
    return app.add_option(name, value, help)->type_name(type)->group("Training");
  };
  add("--data", flags.data,
      "Text file or folder (read as bytes), or token files *.bin [the compiler's C++ headers]",
      "PATH");
  add("--seed", flags.seed, "Of initial weights and of the order of the data [1]", "NUMBER");
  add("--lr", flags.learning_rate, "Peak learning rate, reached after the warm-up [0.001]",
      "NUMBER")
      ->check(CLI::PositiveNumber);
  add("--warmup", flags.warmup_steps, "Steps of linear warm-up; a cosine follows [20]", "STEPS")
      ->check(CLI::NonNegativeNumber);
  add("--clip", flags.clip_norm,
      flags.clip_norm > 0 ? "Largest norm of all gradients; 0 never clips [1]"
                          : "Largest norm of all gradients; 0 never clips, nor rolls back [0]",
      "NUMBER")
      ->check(CLI::NonNegativeNumber);
  add("--weight-decay", flags.weight_decay, "Of matrices, decoupled [0.1]", "NUMBER")
      ->check(CLI::NonNegativeNumber);
  add("--import", flags.import_file, "Begin with these weights (safetensors)", "FILE");
}

TrainerOptions trainer_options(const TrainingFlags& flags, const Machine& machine, int64_t steps) {
  TrainerOptions options;
  options.data = flags.data;
  options.seed = flags.seed;
  options.initial_weights = flags.import_file;
  options.optimizer.learning_rate = {.peak = flags.learning_rate,
                                     .floor = flags.learning_rate / 10,
                                     .warmup_steps = std::min(flags.warmup_steps, steps),
                                     .total_steps = steps};
  options.optimizer.clip_norm = flags.clip_norm;
  options.optimizer.weight_decay = static_cast<float>(flags.weight_decay);
  options.optimizer_threads = static_cast<int>(machine.cpu.optimizer_threads);
  return options;
}

Case load_case_here(PlanFlags flags, const StoreFlag& store) {
  if (flags.machines.empty() && !flags.plan_file) flags.machines = {kHere};
  Case of = load_case(flags, store);
  if (of.plan.machine != kHere) {
    throw Error("plan, machine", "the plan is for " + of.plan.machine + ", and this is another",
                "add --machine here, or predict it instead");
  }
  if (of.plan.devices != 1) {
    throw Error("plan, devices", "this machine plays one device", "add --devices 1");
  }
  return of;
}

bool is_measured(const Case& of, const Measurements& measurements) {
  const Graph graph = build(of.model, of.plan);
  for (const Op& op : graph.step.ops) {
    if (std::holds_alternative<std::monostate>(op.work)) continue;
    if (!measurements.contains(cost_key(op))) return false;
  }
  return true;
}

void measure_plan(const Case& of, double seconds, const StoreFlag& store,
                  Measurements& measurements) {
  const TrainerOptions options = trainer_options({}, of.machine, 1);
  Measurements fresh;
  for (const OperationTime& time : measure_operations(of.model, of.plan, seconds, options)) {
    // A key does not name the kernel: what the store knows of Adam is of the best one.
    const bool steps = time.op.kind == OpKind::kAdam || time.op.kind == OpKind::kUndo;
    if (steps && of.plan.optimizer.adam != "best") continue;
    fresh[cost_key(time.op)] = measurement_of(time.op, {time.median, time.deviation});
  }
  open_store(store).append(host_of(of.machine), fresh);
  for (auto& [key, measurement] : fresh) measurements[key] = measurement;
}

}  // namespace ballast
