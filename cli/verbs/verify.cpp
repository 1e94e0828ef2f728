#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/flags/training_flags.h"
#include "cli/report/trace.h"
#include "cli/run/paced.h"
#include "cli/terminal/progress.h"
#include "cli/text/history.h"
#include "cli/text/tables.h"
#include "cli/text/verification.h"
#include "cli/tune/choice_progress.h"
#include "sim/base/atomic_file.h"
#include "sim/engine/cost.h"

namespace ballast {
namespace {

constexpr double kMeasuringSeconds = 3;

struct VerifyFlags {
  OutputFlags output;
  PlanFlags plan;
  StoreFlag store;
  TrainingFlags training;
  int64_t steps = 20;
  std::optional<double> slow_down;
  std::optional<double> tolerance_percent;
  std::optional<std::string> trace;
  bool history = false;
};

bool parse(Words words, VerifyFlags& flags) {
  VerbParser parser("verify");
  parser.add(flags.plan, VerbParser::Lists::kNo);
  // A prediction is of steps that stand: early gradients are large, and clipping rolls them back.
  flags.training.clip_norm = 0;
  add_training_flags(parser, flags.training);
  CLI::App& app = parser.app();
  app.add_option("--steps", flags.steps, "Steps to run [20]")
      ->check(above_zero())
      ->type_name("STEPS");
  add_device_flag(parser, flags.training.device,
                  {"paced", "operations last what the profile of --machine says, slowed down"});
  app.add_option("--slow-down", flags.slow_down,
                 "Paced: real seconds for a second of the machine [a mean operation takes 5 ms]")
      ->check(above_zero())
      ->type_name("FACTOR");
  app.add_option("--tolerance", flags.tolerance_percent,
                 "Exit with 1 if the step time is off by more percent [never]")
      ->check(zero_or_more())
      ->type_name("PERCENT");
  parser.writes(app.add_option("--trace", flags.trace, "Write both timelines into one Chrome trace")
                    ->type_name("FILE"));
  app.add_flag("--history", flags.history,
               "Run nothing: list the runs that the store keeps, of --model and --machine where "
               "they are given, with their errors in time order");
  parser.add(flags.store);
  parser.add(flags.output, "Write the JSON, with both timelines, to this file");
  return parser.parse(words);
}

struct MeasuredRun {
  Graph graph;
  TrainResult result;
  std::optional<MachineLoad> load;  // meanwhile, where it is known
};

OrderedJson load_json(const std::optional<MachineLoad>& load) {
  if (!load) return nullptr;
  return {{"own_cores", load->own}, {"other_cores", load->others}, {"cores", load->cores}};
}

MeasuredRun run(const VerifyFlags& flags, const Setting& setting) {
  TrainerOptions options = trainer_options(flags.training, setting.machine, flags.steps);
  options.gemm_algorithms = stored_algorithms(flags.store);
  options.ranks = ranks_of(setting.plan, flags.training.device);
  Trainer trainer(setting.model, setting.plan, options);
  Progress progress("verify");
  const LoadWatch load;
  MeasuredRun run;
  run.result = trainer.train(flags.steps, [&](const StepRecord& record) {
    progress.show(static_cast<double>(record.step + 1) / static_cast<double>(flags.steps),
                  fmt::format("step {}/{}", record.step + 1, flags.steps));
  });
  run.graph = trainer.graph();
  run.load = load.load();
  return run;
}

void append_to_store(const VerifyFlags& flags, const Setting& setting,
                     const Verification& verification, const OrderedJson& json) {
  VerifyRecord record;
  record.host = host_of(setting.machine);
  record.plan_json = plan_json(setting.plan);
  record.predicted_step = verification.predicted.step_time;
  record.measured_step = verification.measured.step_time;
  record.metrics_json = json.dump();
  open_store(flags.store).append(record);
}

OrderedJson whole_json(const Completed& completed, const StoreFlag& store, const MeasuredRun& run,
                       const OrderedJson& comparison) {
  const Measurements measurements = measurements_of(completed.setting.machine, store);
  OrderedJson json = {{"schema", "ballast.verify/1"},
                      {"model", completed.setting.model.name},
                      {"machine", completed.setting.machine.description},
                      {"steps", run.result.next_step - run.result.first_step},
                      {"machine_load", load_json(run.load)},
                      {"store", store_path(store)},
                      {"plan", OrderedJson::parse(plan_json(completed.setting.plan))}};
  json.update(comparison);
  json["prediction"] =
      prediction_json(judged(completed.setting, completed.prediction, measurements));
  json["timelines"] = {
      {"predicted", timeline_json(completed.prediction.graph, completed.prediction.timeline)},
      {"measured", timeline_json(run.graph, run.result.timeline)}};
  return json;
}

// What the timed operations say, and what was timed before; times operations that are missing.
Completed predict_measured(const VerifyFlags& flags) {
  const std::string& device = flags.training.device;
  const StoreFlag& store = flags.store;
  Setting setting = load_case_here(flags.plan, store, device);
  set_compute_threads(flags.training, setting.machine);
  Measurements measurements = measurements_of(setting.machine, store);
  Completed completed = complete_in_sight(std::move(setting), &measurements);
  if (!completed.prediction.fits || is_measured(completed.setting, measurements)) return completed;
  if (!is_first_rank()) return completed;  // what is predicted and printed is the first one's
  measure_plan(completed.setting, {kMeasuringSeconds, device}, store, measurements);
  return complete_in_sight(std::move(completed.setting), &measurements);
}

Completed predict_elsewhere(const VerifyFlags& flags) {
  Setting setting = load_case(flags.plan, flags.store);
  const Measurements measurements = measurements_of(setting.machine, flags.store);
  return complete_in_sight(std::move(setting), &measurements);
}

MeasuredRun run_elsewhere(const VerifyFlags& flags, const Completed& completed) {
  const Measurements measurements = measurements_of(completed.setting.machine, flags.store);
  return {completed.prediction.graph,
          run_paced(completed, measurements, {flags.steps, flags.slow_down}), std::nullopt};
}

// Whether every exchange between ranks can be predicted from some that were timed here.
bool exchanges_are_timed(const Graph& graph, const Measurements& measurements) {
  return std::all_of(graph.step.ops.begin(), graph.step.ops.end(), [&](const Op& op) {
    return op.kind != OpKind::kCollective ||
           std::any_of(measurements.begin(), measurements.end(),
                       [&](const auto& one) { return one.second.group == cost_group(op); });
  });
}

// What the prediction leaves out, a line each.
std::string left_out_text(const VerifyFlags& flags, const Completed& completed,
                          const TrainResult& result) {
  const Setting& setting = completed.setting;
  const bool paced = flags.training.device == "paced";
  std::string text;
  if (result.rollbacks > 0) {
    text += fmt::format("{} of the steps were rolled back, which the prediction leaves out\n",
                        result.rollbacks);
  }
  const int64_t threads = setting.plan.pipeline * setting.machine.gpu.compute_threads;
  if (!paced && setting.plan.pipeline > 1) {
    text += fmt::format("memory is of the stage that takes the most; {} stages share {} cores{}\n",
                        setting.plan.pipeline, setting.machine.cpu.cores,
                        threads > setting.machine.cpu.cores
                            ? ", and what more threads than cores lose by taking turns the "
                              "prediction leaves out"
                            : "");
  }
  const int64_t ranks = setting.plan.devices / setting.plan.pipeline;
  if (!paced && ranks > 1 &&
      !exchanges_are_timed(completed.prediction.graph,
                           measurements_of(setting.machine, flags.store))) {
    text += fmt::format(
        "what {0} ranks exchange was not timed on this machine, and is predicted as copies; "
        "`ballast profile --ranks {0}` times it\n",
        ranks);
  }
  return text;
}

int print_history(const VerifyFlags& flags) {
  HistoryFilter filter;
  if (!flags.plan.machines.empty()) {
    filter.machine = load_machine_or_here(flags.plan.machines.front(), flags.store).name;
  }
  if (!flags.plan.models.empty()) filter.model = flags.plan.models.front();
  const auto store = open_store_if_present(flags.store);
  std::vector<HistoryEntry> entries;
  if (store) entries = history_of(*store, filter);
  const std::string json = history_json(entries).dump(1) + "\n";
  if (flags.output.out) atomic_write(*flags.output.out, json);
  fmt::print("{}", flags.output.json ? json : history_text(entries));
  return kDone;
}

}  // namespace

int run_verify(Words words) {
  VerifyFlags flags;
  if (!parse(words, flags)) return kDone;
  if (flags.history) return print_history(flags);
  check_launch(flags.training.device);
  check_compute_threads(flags.training);
  const bool paced = flags.training.device == "paced";
  if (!paced && is_first_rank()) try_store(flags.store);
  Completed completed = paced ? predict_elsewhere(flags) : predict_measured(flags);
  if (!paced) {
    completed.setting.plan = plan_of_all_ranks(completed.setting.plan, flags.training.device);
  }
  check_nvme(flags.training, completed.setting.plan);
  if (!completed.prediction.fits) {
    fmt::print("does not fit: {}\n", completed.prediction.reason);
    return kInfeasible;
  }
  const MeasuredRun ran = paced ? run_elsewhere(flags, completed) : run(flags, completed.setting);
  if (!is_first_rank()) return kDone;
  tell_if_busy(ran.load);
  const Verification verification = verification_of(completed.prediction, ran.graph, ran.result);
  const OrderedJson comparison = verification_json(ran.graph, verification);
  if (flags.trace) {
    atomic_write(
        *flags.trace,
        chrome_trace({{"predicted", &completed.prediction.graph, &completed.prediction.timeline},
                      {"measured", &ran.graph, &ran.result.timeline}}));
  }
  if (flags.output.json || flags.output.out) {
    const std::string text = whole_json(completed, flags.store, ran, comparison).dump() + "\n";
    if (flags.output.out) atomic_write(*flags.output.out, text);
    if (flags.output.json) fmt::print("{}", text);
  }
  if (!flags.output.json) {
    fmt::print("{}", verification_text(ran.graph, verification));
    fmt::print("{}", left_out_text(flags, completed, ran.result));
  }
  // What was paced was not measured. Last of all: a store that fails takes nothing else with it.
  if (!paced) append_to_store(flags, completed.setting, verification, comparison);
  const double error = comparison["error_percent"]["step_time_s"];
  const bool off = flags.tolerance_percent && std::abs(error) > *flags.tolerance_percent;
  return off ? kInfeasible : kDone;
}

}  // namespace ballast
