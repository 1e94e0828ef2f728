#include "cli/flags/training_flags.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <memory>
#include <optional>
#include <thread>

#include "backend/comm/launch.h"
#include "backend/comm/mpi_ranks.h"
#include "backend/cuda/cuda_runtime.h"
#include "backend/cuda/device_cuda.h"
#include "backend/execute/rank_place.h"
#include "backend/host/bucket_updates.h"
#include "backend/host/device_host.h"
#include "backend/measure/operation_times.h"
#include "backend/measure/profile.h"
#include "backend/train/make_device.h"
#include "cli/terminal/standard_error.h"
#include "sim/base/error.h"
#include "sim/engine/cost.h"
#include "sim/graph/build.h"

namespace ballast {

namespace {

// Throws Error for what a float does not hold: infinity, or nothing at all of a small number.
float as_float(const char* flag, double value) {
  const auto narrow = static_cast<float>(value);
  if (std::isfinite(narrow) && (narrow > 0) == (value > 0)) return narrow;
  throw Error(flag, fmt::format("{} is outside of the numbers that Adam computes with", value),
              "use one from 1e-38 to 1e38");
}

LearningRateSchedule schedule_of(const TrainingFlags& flags, int64_t steps) {
  const double floor = flags.learning_rate_floor.value_or(flags.learning_rate / 10);
  if (floor > flags.learning_rate) {
    throw Error("--min-lr", fmt::format("{} is above --lr {}", floor, flags.learning_rate),
                "the rate falls from --lr to --min-lr: give a smaller one");
  }
  return {.peak = flags.learning_rate,
          .floor = floor,
          .warmup_steps = std::min(flags.warmup_steps, steps),
          .total_steps = steps};
}

}  // namespace

void add_training_flags(VerbParser& parser, TrainingFlags& flags) {
  CLI::App& app = parser.app();
  const auto add = [&](const char* name, auto& value, const char* help, const char* type) {
    return app.add_option(name, value, help)->type_name(type)->group("Training");
  };
  parser.reads(
      add("--data", flags.data,
          "Text file or folder (read as bytes), or token files *.bin [the compiler's C++ headers]",
          "PATH"));
  add("--seed", flags.seed, "Of initial weights and of the order of the data [1]", "NUMBER")
      ->check(whole_number());
  add("--lr", flags.learning_rate, "Peak learning rate, reached after the warm-up [0.001]",
      "NUMBER")
      ->check(above_zero());
  add("--min-lr", flags.learning_rate_floor,
      "Learning rate at which the cosine ends [a tenth of --lr]", "NUMBER")
      ->check(zero_or_more());
  add("--warmup", flags.warmup_steps, "Steps of linear warm-up; a cosine follows [20]", "STEPS")
      ->check(zero_or_more());
  add("--beta1", flags.beta1, "Of Adam: what stays of the mean of gradients [0.9]", "NUMBER")
      ->check(share_below_one());
  add("--beta2", flags.beta2, "Of Adam: what stays of the mean of their squares [0.95]", "NUMBER")
      ->check(share_below_one());
  add("--epsilon", flags.epsilon, "Of Adam: added to the root of that mean [1e-8]", "NUMBER")
      ->check(above_zero());
  add("--clip", flags.clip_norm,
      flags.clip_norm > 0 ? "Largest norm of all gradients; 0 never clips [1]"
                          : "Largest norm of all gradients; 0 never clips, nor rolls back [0]",
      "NUMBER")
      ->check(zero_or_more());
  add("--weight-decay", flags.weight_decay, "Of matrices, decoupled [0.1]", "NUMBER")
      ->check(zero_or_more());
  app.add_flag("--cuda-graphs", flags.captures,
               "On a GPU: record runs of operations in the first steps and launch each as one; "
               "operations of a run are then timed together")
      ->group("Training");
  add("--compute-threads", flags.compute_threads,
      "Threads of the host's compute, which results do not depend on [as profiled]", "COUNT")
      ->check(above_zero());
  add("--nvme", flags.nvme,
      "Folder of the disk for state on NVMe (plan.optimizer.placement=nvme) [$TMPDIR]", "DIR");
  add("--nvme-chunk", flags.nvme_chunk_kb, "What moves to or from it at a time, in KiB [8192]",
      "KIB")
      ->check(above_zero());
  add("--nvme-depth", flags.nvme_depth, "Chunks under way in each direction [4]", "COUNT")
      ->check(above_zero());
  parser.reads(add("--import", flags.import_file,
                   "Begin with these weights: a file of safetensors, or the folder of a model",
                   "PATH"));
}

void add_device_flag(VerbParser& parser, std::string& device, const OtherDevice& other) {
  const bool more = *other.name != '\0';
  const std::string help = std::string(
                               "What runs the plan: host (this machine's CPU), cuda:0 (its "
                               "first GPU; cuda:N another; cuda of several ranks one each)") +
                           (more ? std::string(", ") + other.name + " (" + other.help + ")" : "") +
                           " [host]";
  parser.app()
      .add_option("--device", device, help)
      ->check([name = std::string(other.name)](const std::string& value) {
        if (!name.empty() && value == name) return std::string();
        try {
          cuda_index_of(value);
        } catch (const Error&) {
          return "'" + value + "' is no device: use host" +
                 (name.empty() ? " or cuda:0" : ", cuda:0 or " + name);
        }
        return std::string();
      })
      ->type_name("DEVICE");
}

GemmAlgorithmStore stored_algorithms(const StoreFlag& store) {
  const auto opened = std::make_shared<std::optional<Store>>();
  const auto open = [store, opened]() -> Store& {
    if (!*opened) opened->emplace(open_store(store));
    return **opened;
  };
  return {[open](const std::string& key) { return open().algorithm(key); },
          [open](const std::string& key, const GemmAlgorithm& algorithm) {
            open().append_algorithm(key, algorithm);
          }};
}

void check_launch(const std::string& device) {
  const Launch launch = launch_of_this();
  const bool may_meet_otherwise = launch.by == std::string_view("srun") && !mpi_asks_for_pmi();
  if (!may_meet_otherwise) require_ranks_that_meet(launch);
  if (launch.ranks == 1 || device == "host" || device.starts_with("cuda")) return;
  throw Error(launch.by, "it started several ranks, and " + device + " runs one",
              "add --device host, or start it alone");
}

void require_alone(const std::string& what) {
  const Launch launch = launch_of_this();
  if (launch.ranks == 1) return;
  throw Error(launch.by,
              fmt::format("it started {} ranks, each of which would do {}, beside the others",
                          launch.ranks, what),
              "start it alone");
}

Communicator* ranks_of(const Plan& plan, const std::string& device) {
  check_launch(device);
  const Launch launch = launch_of_this();
  if (launch.ranks == 1) return nullptr;
  if (const int64_t wanted = rank_count(plan); launch.ranks != wanted) {
    const std::string stages =
        plan.pipeline > 1 ? fmt::format(", with {} stages in each", plan.pipeline) : "";
    throw Error(
        launch.by,
        fmt::format("it started {} ranks, and the plan has {}{}", launch.ranks, wanted, stages),
        fmt::format("use {} -n {}, or set plan.devices", launch.by, wanted));
  }
  return &mpi_ranks();
}

Plan plan_of_all_ranks(const Plan& plan, const std::string& device) {
  Communicator* const ranks = ranks_of(plan, device);
  if (ranks == nullptr) return plan;
  return parse_plan(told_by_first(*ranks, plan_json(plan)), "the plan of rank 0");
}

bool is_first_rank() { return rank_of_this().rank == 0; }

void tell_if_busy(const std::optional<MachineLoad>& load) {
  if (!load || launch_of_this().ranks > 1) return;
  const std::string text = busy_text(*load);
  if (!text.empty()) print_to_stderr("note: {}\n", text);
}

TrainerOptions trainer_options(const TrainingFlags& flags, const Machine& machine, int64_t steps) {
  TrainerOptions options;
  options.device = flags.device;
  options.captures = flags.captures;
  options.data = flags.data;
  options.seed = flags.seed.value_or(options.seed);
  options.seed_is_given = flags.seed.has_value();
  options.initial_weights = flags.import_file;
  options.optimizer.learning_rate = schedule_of(flags, steps);
  options.optimizer.clip_norm = flags.clip_norm;
  options.optimizer.weight_decay = as_float("--weight-decay", flags.weight_decay);
  options.optimizer.beta1 = static_cast<float>(flags.beta1);
  options.optimizer.beta2 = static_cast<float>(flags.beta2);
  options.optimizer.epsilon = as_float("--epsilon", flags.epsilon);
  // The profile of another machine may tell of more threads than there are.
  const auto most = static_cast<int64_t>(std::max(std::thread::hardware_concurrency(), 1U));
  options.optimizer_threads = static_cast<int>(std::min(machine.cpu.optimizer_threads, most));
  const int64_t wanted = flags.compute_threads.value_or(machine.gpu.compute_threads);
  options.compute_threads = static_cast<int>(std::min(wanted, most));
  options.disk.folder = flags.nvme.value_or("");
  if (flags.nvme_chunk_kb) {
    // Within what a count holds; what no disk can do is refused where the file is made.
    options.disk.chunk = {std::min(*flags.nvme_chunk_kb, int64_t{1} << 40) * 1024};
  }
  options.disk.depth = flags.nvme_depth.value_or(options.disk.depth);
  return options;
}

void check_nvme(const TrainingFlags& flags, const Plan& plan) {
  if (plan.optimizer.placement == OptimizerPlacement::kNvme) return;
  const char* const given = flags.nvme            ? "--nvme"
                            : flags.nvme_chunk_kb ? "--nvme-chunk"
                            : flags.nvme_depth    ? "--nvme-depth"
                                                  : nullptr;
  if (given == nullptr) return;
  throw Error(given, "the plan keeps no state on NVMe",
              "leave it out, or set plan.optimizer.placement=nvme");
}

void check_compute_threads(const TrainingFlags& flags) {
  if (!flags.compute_threads) return;
  if (flags.device != "host") {
    throw Error("--compute-threads", "it is of --device host, and this is " + flags.device,
                "leave it out");
  }
  check_compute_threads(*flags.compute_threads, host_facts());
}

void set_compute_threads(const TrainingFlags& flags, Machine& machine) {
  Gpu& gpu = machine.gpu;
  if (!flags.compute_threads || *flags.compute_threads == gpu.compute_threads) return;
  if (!gpu.is_host_thread) return;  // a profile of a GPU, which says nothing of the host's threads
  print_to_stderr(
      "note: --compute-threads {}: this machine was profiled with {}, whose rates stand in "
      "for what was not timed with {} (ballast profile --compute-threads {} measures it)\n",
      *flags.compute_threads, gpu.compute_threads, *flags.compute_threads, *flags.compute_threads);
  gpu.compute_threads = *flags.compute_threads;
}

Setting load_case_here(PlanFlags flags, const StoreFlag& store, const std::string& device) {
  const int gpu = cuda_index_of(device);
  if (gpu >= 0) open_cuda_runtime(gpu);  // known before anything is read or measured
  if (flags.machines.empty() && !flags.plan_file) flags.machines = {kHere};
  Setting setting = load_case(flags, store);
  if (gpu < 0 && setting.plan.machine != kHere) {
    throw Error("plan, machine",
                "the plan is for " + setting.plan.machine + ", and this is another",
                "add --machine here, or predict it instead");
  }
  const Capabilities& all = gpu < 0 ? host_capabilities() : cuda_capabilities();
  if (const auto missing = first_missing(setting.model, setting.plan, all)) throw missing->error();
  std::string& adam = setting.plan.optimizer.adam;
  if (is_adam_of_another_program(adam) && !setting.machine.cpu.adam.contains(adam)) {
    print_to_stderr(
        "plan.optimizer.adam={} is another program's Adam: the same step runs here as "
        "'best'\n",
        adam);
    adam = "best";
  }
  return setting;
}

bool is_measured(const Setting& setting, const Measurements& measurements) {
  const Graph graph = build_to_run(setting.model, setting.plan);
  for (const Op& op : graph.step.ops) {
    if (std::holds_alternative<std::monostate>(op.work)) continue;
    if (op.kind == OpKind::kCollective && rank_count(setting.plan) > 1)
      continue;  // see measure_operations
    if (!measurements.contains(cost_key(op))) return false;
  }
  return true;
}

void measure_plan(const Setting& setting, const PlanTiming& timing, const StoreFlag& store,
                  Measurements& measurements) {
  TrainingFlags flags;
  flags.device = timing.device;
  TrainerOptions options = trainer_options(flags, setting.machine, 1);
  options.gemm_algorithms = stored_algorithms(store);
  Measurements fresh;
  for (const OperationTime& time :
       measure_operations(setting.model, setting.plan, timing.seconds, options, timing.must_stop)) {
    // A key does not name the kernel: what the store knows of Adam is of the best one.
    const bool steps = time.op.kind == OpKind::kAdam || time.op.kind == OpKind::kUndo;
    if (steps && setting.plan.optimizer.adam != "best") continue;
    fresh[cost_key(time.op)] = measurement_of(time.op, {time.median, time.deviation});
  }
  open_store(store).append(host_of(setting.machine), fresh);
  measurements = measurements_of(setting.machine, store);  // as the store corrects them
}

}  // namespace ballast
