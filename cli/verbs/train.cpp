#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <fmt/format.h>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <system_error>

#include "autotune/complete/complete.h"
#include "backend/measure/profile.h"
#include "backend/train/checkpoint_folder.h"
#include "backend/train/trainer.h"
#include "cli/flags/memory_limit.h"
#include "cli/flags/training_flags.h"
#include "cli/flags/weights_folder.h"
#include "cli/run/metrics_file.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/standard_error.h"
#include "cli/text/prediction.h"
#include "cli/text/tables.h"
#include "cli/tune/choice_progress.h"
#include "sim/base/error.h"
#include "sim/base/median.h"
#include "sim/spec/caveats.h"

namespace ballast {
namespace {

// What the held-out loss is of: so many sequences, and fewer of those that are long.
constexpr int64_t kHeldOutSequences = 64;
constexpr int64_t kHeldOutTokens = int64_t{1} << 20;

struct TrainFlags {
  OutputFlags output;
  PlanFlags plan;
  StoreFlag store;
  TrainingFlags training;
  int64_t steps = 200;
  std::optional<std::string> checkpoint_folder;
  int64_t checkpoint_period = 0;
  std::optional<std::string> checkpoint_overhead;
  bool pauses_for_checkpoints = false;
  bool resume = false;
  bool replace_checkpoints = false;
  std::optional<std::string> export_path;
  std::optional<std::string> max_shard_size;
  std::optional<std::string> metrics_file;
};

// "3.5%" or "0.035"; nothing where it is no share that steps can be slowed by.
std::optional<double> share_of(const std::string& text) {
  char* end = nullptr;
  double value = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  if (end == text.c_str() || (!unit.empty() && unit != "%")) return std::nullopt;
  if (unit == "%") value /= 100;
  if (!(value > 0 && value <= 1)) return std::nullopt;
  return value;
}

void add_checkpoint_flags(CLI::App& app, TrainFlags& flags) {
  app.add_option("--checkpoint", flags.checkpoint_folder,
                 "Keep the last two checkpoints in this folder")
      ->type_name("DIR")
      ->group("Training");
  CLI::Option* period = app.add_option("--checkpoint-period", flags.checkpoint_period,
                                       "Steps between checkpoints [only at the end]")
                            ->check(above_zero())
                            ->type_name("STEPS")
                            ->group("Training");
  app.add_option("--checkpoint-overhead", flags.checkpoint_overhead,
                 "Keep checkpoints as often as costs this share of the steps' time, as measured")
      ->check([](const std::string& text) {
        return share_of(text)
                   ? std::string()
                   : "'" + text + "' is no share above 0 and up to 1: give 3.5% or 0.035";
      })
      ->type_name("SHARE")
      ->excludes(period)
      ->group("Training");
  app.add_flag("--pause-for-checkpoints", flags.pauses_for_checkpoints,
               "Let training rest until a checkpoint is on disk, which needs no copy in memory")
      ->group("Training");
  app.add_flag("--resume", flags.resume, "Go on from the newest checkpoint of --checkpoint")
      ->group("Training");
  app.add_flag("--replace-checkpoints", flags.replace_checkpoints,
               "Begin anew in a folder that holds another run's checkpoints, which then go")
      ->group("Training");
}

bool parse(Words words, TrainFlags& flags) {
  VerbParser parser("train");
  parser.add(flags.plan, VerbParser::Lists::kNo);
  add_device_flag(parser, flags.training.device);
  add_training_flags(parser, flags.training);
  CLI::App& app = parser.app();
  app.add_option("--steps", flags.steps, "Train up to this step [200]")
      ->check(above_zero())
      ->type_name("STEPS")
      ->group("Training");
  add_checkpoint_flags(app, flags);
  parser.writes(app.add_option("--export", flags.export_path,
                               "Write a folder that from_pretrained loads (config.json, weights in "
                               "fp32), or only FILE.safetensors")
                    ->type_name("PATH"),
                {.may_be_folder = true});
  app.add_option(
         "--max-shard-size", flags.max_shard_size,
         "Of one file of weights in the folder of --export; larger ones become several with "
         "an index [5GB]")
      ->check([](const std::string& text) {
        return size_meant(text) ? std::string()
                                : "'" + text + "' is no size: give one like 5GB, 512MB or 2GiB";
      })
      ->type_name("SIZE");
  parser.writes(app.add_option("--metrics", flags.metrics_file, "Write one JSON object a step")
                    ->type_name("FILE"));
  parser.add(flags.store);
  parser.add(flags.output, "");
  return parser.parse(words);
}

// Takes the steps that become final and shows them. Steps are collected several times a second, so
// what one took is known from the last kWindow collections, shared out evenly.
class StepReport {
 public:
  StepReport(const TrainFlags& flags, const Completed& completed, MetricsFile& metrics)
      : steps_(flags.steps),
        tokens_per_step_(static_cast<double>(completed.setting.plan.tokens_per_step())),
        predicted_(completed.prediction.step_time),
        metrics_(metrics),
        progress_("train") {}

  void add(const StepRecord& record) { waiting_.push_back(record); }

  void flush() {
    if (waiting_.empty()) return;
    const Clock::time_point now = Clock::now();
    arrivals_.push_back({now, static_cast<int64_t>(waiting_.size())});
    if (arrivals_.size() > kWindow + 1) arrivals_.pop_front();
    const std::chrono::duration<double> spent = now - arrivals_.front().at;
    int64_t steps = 0;
    for (size_t i = 1; i < arrivals_.size(); ++i) steps += arrivals_[i].steps;
    const double seconds = std::max(spent.count(), 1e-9) / static_cast<double>(steps);
    const std::chrono::duration<double> elapsed = now - start_;
    for (const StepRecord& record : waiting_) {
      const OrderedJson line = {{"step", record.step},
                                {"loss", record.loss},
                                {"gradient_norm", record.gradient_norm},
                                {"learning_rate", record.learning_rate},
                                {"loss_scale", record.loss_scale},
                                {"clipped", record.clipped},
                                {"skipped", record.skipped},
                                {"rolled_back", record.rolled_back},
                                {"step_time_s", seconds},
                                {"tokens_per_s", tokens_per_step_ / seconds},
                                {"elapsed_s", elapsed.count()}};
      metrics_.add(record.step, line.dump());
    }
    const StepRecord last = waiting_.back();
    waiting_.clear();
    if (!is_first_rank()) return;
    progress_.show(
        static_cast<double>(last.step + 1) / static_cast<double>(steps_),
        fmt::format("step {}/{}  loss {:.3f}  {} tokens/s  {} a step, predicted {}", last.step + 1,
                    steps_, last.loss, show_count(tokens_per_step_ / seconds),
                    ballast::show(Duration::from_seconds(seconds)), ballast::show(predicted_)));
  }

 private:
  static constexpr size_t kWindow = 8;
  using Clock = std::chrono::steady_clock;
  struct Arrival {
    Clock::time_point at;
    int64_t steps = 0;  // that arrived then
  };
  int64_t steps_;
  double tokens_per_step_;
  Duration predicted_;
  MetricsFile& metrics_;
  Progress progress_;
  std::vector<StepRecord> waiting_;
  Clock::time_point start_ = Clock::now();
  std::deque<Arrival> arrivals_{{start_, 0}};
};

// None where training stopped before its first step.
Duration step_time_of(const TrainResult& result) {
  return result.step_times.empty() ? Duration{} : median(result.step_times);
}

// What the median of the steps is predicted to be: one that is rolled back, where most of them
// were.
Duration predicted_median(const Prediction& prediction, const TrainResult& result) {
  const bool most = 2 * static_cast<size_t>(result.rollbacks) > result.records.size();
  if (!most || !prediction.rollback_time) return prediction.step_time;
  return prediction.step_time + *prediction.rollback_time;
}

// Mean loss of the first or last steps, which single batches are too noisy for.
double mean_loss(std::span<const StepRecord> records) {
  double sum = 0;
  for (const StepRecord& record : records) sum += record.loss;
  return sum / static_cast<double>(std::max<size_t>(records.size(), 1));
}

struct TrainOutcome {
  TrainResult result;
  int64_t validation_sequences = 0;
  double validation_loss = 0;  // 0 where the run diverged, and is not asked for one
  std::unique_ptr<MetricsFile> metrics;
};

OrderedJson checkpoints_json(const CheckpointSchedule::Report& report) {
  const auto if_any = [&](double value) {
    return report.kept > 0 ? OrderedJson(value) : OrderedJson(nullptr);
  };
  return {{"kept_before_the_end", report.kept},
          {"period_steps", report.period_steps},
          {"put_off", report.put_off},
          {"rest_s", report.resting_seconds},
          {"waited_s", report.waiting_seconds},
          {"write_s", if_any(report.writing_seconds)},
          {"undisturbed_step_s", if_any(report.undisturbed_step)},
          {"overhead_percent", if_any(100 * report.overhead)}};
}

OrderedJson outcome_json(const Completed& completed, const TrainOutcome& outcome) {
  const TrainResult& result = outcome.result;
  OrderedJson memory = OrderedJson::array();
  for (const MemoryUse& use : result.memory) {
    memory.push_back({{"place", to_string(use.place)},
                      {"predicted_bytes", use.planned.count},
                      {"measured_bytes", use.resident.count}});
  }
  return {{"first_step", result.first_step},
          {"next_step", result.next_step},
          {"stopped", result.stopped},
          {"diverged_at_step",
           result.divergence ? OrderedJson(result.divergence->step) : OrderedJson(nullptr)},
          {"newest_checkpoint", result.newest_checkpoint ? OrderedJson(*result.newest_checkpoint)
                                                         : OrderedJson(nullptr)},
          {"checkpoints", checkpoints_json(result.checkpoints)},
          {"rollbacks", result.rollbacks},
          {"last_loss",
           result.records.empty() ? OrderedJson(nullptr) : OrderedJson(result.records.back().loss)},
          {"validation_loss", outcome.validation_loss},
          {"validation_sequences", outcome.validation_sequences},
          {"step_time_s", step_time_of(result).seconds()},
          {"predicted_step_time_s", completed.prediction.step_time.seconds()},
          {"predicted_median_s", predicted_median(completed.prediction, result).seconds()},
          {"memory", memory}};
}

// What those before the end cost, where there was any.
void print_checkpoints(const TrainFlags& flags, const CheckpointSchedule::Report& report) {
  if (report.kept == 0) return;
  const auto seconds = [](double value) { return show(Duration::from_seconds(value)); };
  const double rest = (report.resting_seconds - report.waiting_seconds);
  fmt::print("checkpoints: {}, {} every {} steps; training rested {} for each", report.kept,
             flags.checkpoint_overhead ? "now" : "one", report.period_steps,
             seconds(rest / static_cast<double>(report.kept)));
  if (!flags.pauses_for_checkpoints) {
    fmt::print(", {} to write beside the steps", seconds(report.writing_seconds));
  }
  if (report.undisturbed_step > 0) {
    const std::string bound =
        flags.checkpoint_overhead ? " (bound " + *flags.checkpoint_overhead + ")" : "";
    if (report.overhead > 0) {
      fmt::print("; they cost {} of the steps' time{}", show_percent(100 * report.overhead), bound);
    } else {
      fmt::print("; they cost less than steps differ{}", bound);
    }
  }
  fmt::print("\n");
  if (report.waiting_seconds > 0.01 * report.resting_seconds && report.waiting_seconds > 1e-3) {
    fmt::print("training waited {} for writes that were not over: a longer period would not\n",
               seconds(report.waiting_seconds));
  }
  if (report.put_off > 0) {
    fmt::print("{} checkpoints were put off, as the one before was still being written\n",
               report.put_off);
  }
}

void print_outcome(const Completed& completed, const TrainOutcome& outcome) {
  const TrainResult& result = outcome.result;
  if (result.records.empty()) {
    fmt::print("nothing to do: step {} is reached already\n", result.next_step);
    return;
  }
  const size_t tenth = std::max<size_t>(result.records.size() / 10, 1);
  const std::span<const StepRecord> records = result.records;
  const Duration step = step_time_of(result);
  const Duration predicted = predicted_median(completed.prediction, result);
  fmt::print(
      "steps {} to {}: loss {:.3f} to {:.3f} nats a token{}; held-out {:.3f} ({} sequences)\n",
      result.first_step, result.next_step, mean_loss(records.first(tenth)),
      mean_loss(records.last(tenth)), tenth == 1 ? "" : fmt::format(" (means of {} steps)", tenth),
      outcome.validation_loss, outcome.validation_sequences);
  if (step.ps > 0) {
    const bool rolls_back = predicted != completed.prediction.step_time;
    fmt::print(
        "step time {} (median), predicted {}{}, error {}; {} tokens/s\n", show(step),
        show(predicted),
        rolls_back
            ? fmt::format(" with a rollback ({} without)", show(completed.prediction.step_time))
            : "",
        show_signed_percent(100 * (predicted.seconds() / step.seconds() - 1)),
        show_count(static_cast<double>(completed.setting.plan.tokens_per_step()) / step.seconds()));
  }
  for (const MemoryUse& use : result.memory) {
    fmt::print("{}: {} in use, {} predicted{}\n", memory_name(use.place), show(use.resident),
               show(use.planned),
               completed.setting.plan.pipeline > 1 ? ", of the stage that takes the most"
               : completed.setting.plan.data > 1   ? ", of the first rank"
                                                   : "");
  }
  if (result.rollbacks == 0) return;
  fmt::print("{} steps were rolled back and redone", result.rollbacks);
  // Then guessing costs more than it hides.
  const bool many = 5 * static_cast<size_t>(result.rollbacks) > result.records.size();
  fmt::print("{}\n", many ? ": a larger --clip, or --set plan.optimizer.sync=wait, is faster" : "");
}

// One line, for whoever finds the run ended in the morning.
void print_divergence(const TrainFlags& flags, const TrainResult& result) {
  const Divergence& divergence = *result.divergence;
  std::string kept = "there is no checkpoint to go on from";
  if (result.newest_checkpoint) {
    kept = "the last good checkpoint is " + *result.newest_checkpoint;
  } else if (!flags.checkpoint_folder) {
    kept = "nothing was kept, for there is no --checkpoint DIR";
  }
  print_to_stderr(
      "step {}: {}, and nothing was finite from there on: training ends; {}; use a smaller "
      "--lr or --weight-decay\n",
      divergence.step + 1, divergence.what, kept);
}

void print_where_to_resume(const TrainFlags& flags, const TrainResult& result) {
  if (!result.stopped) return;
  if (flags.checkpoint_folder) {
    fmt::print("stopped after step {}; its checkpoint is in {}: add --resume to go on\n",
               result.next_step, *flags.checkpoint_folder);
  } else {
    fmt::print("stopped after step {}; nothing was kept, for there is no --checkpoint DIR\n",
               result.next_step);
  }
}

TrainerOptions options_of(const TrainFlags& flags, const Setting& setting) {
  TrainerOptions options = trainer_options(flags.training, setting.machine, flags.steps);
  options.gemm_algorithms = stored_algorithms(flags.store);
  options.timed_steps_apart = std::numeric_limits<int32_t>::max();  // nobody is shown operations
  options.ranks = ranks_of(setting.plan, flags.training.device);
  options.checkpoint_folder = flags.checkpoint_folder;
  options.checkpoint_period_steps = flags.checkpoint_period;
  if (flags.checkpoint_overhead) options.checkpoint_overhead = share_of(*flags.checkpoint_overhead);
  options.checkpoints_in_background = !flags.pauses_for_checkpoints;
  options.available_memory = [] { return host_facts().available; };
  options.resume = flags.resume;
  options.replace_checkpoints = flags.replace_checkpoints;
  Model unnamed = setting.model;  // the file of a model may be called otherwise tomorrow
  unnamed.name.clear();
  options.model_record = model_json(unnamed);
  return options;
}

// What is done, and is not what one may take it for.
void print_notes(const TrainFlags& flags, const Setting& setting, const Trainer& trainer) {
  if (!is_first_rank()) return;
  std::vector<std::string> notes = trainer.notes();
  const int64_t planned = setting.plan.checkpoint_period_steps;
  if (flags.checkpoint_period > 0 && planned > 0 && planned != flags.checkpoint_period) {
    notes.push_back(
        fmt::format("checkpoints are {} steps apart, as --checkpoint-period says; the "
                    "plan's checkpoint_period_steps is {}",
                    flags.checkpoint_period, planned));
  }
  if (flags.checkpoint_overhead && planned > 0) {
    notes.push_back(
        fmt::format("checkpoints are as far apart as --checkpoint-overhead {} lets them "
                    "be; the plan's checkpoint_period_steps is {}",
                    *flags.checkpoint_overhead, planned));
  }
  if (flags.training.import_file) {
    const std::string other = other_model_beside(*flags.training.import_file, setting.model);
    if (!other.empty()) notes.push_back(other);
  }
  for (const std::string& note : notes) print_to_stderr("note: {}\n", one_line(note));
}

// The same ones whatever the micro-batch, in whole micro-batches.
int64_t held_out_sequences(const Plan& plan) {
  const int64_t sequences =
      std::clamp(kHeldOutTokens / plan.sequence_length, int64_t{1}, kHeldOutSequences);
  return round_up(sequences, *plan.micro_batch);
}

TrainOutcome run(const TrainFlags& flags, const Completed& completed) {
  const Setting& setting = completed.setting;
  ignore_broken_pipes();  // who no longer reads its progress costs no training
  std::optional<ExportTarget> target;
  if (flags.export_path) {
    std::optional<int64_t> most;
    if (flags.max_shard_size) most = size_meant(*flags.max_shard_size)->count;
    target = export_target(*flags.export_path, setting.plan.model, setting.model, most);
  }
  Trainer trainer(setting.model, setting.plan, options_of(flags, setting));
  print_notes(flags, setting, trainer);
  TrainOutcome outcome;
  outcome.metrics = std::make_unique<MetricsFile>(
      is_first_rank() ? flags.metrics_file : std::nullopt,
      flags.resume ? MetricsFile::Mode::kContinue : MetricsFile::Mode::kNew, trainer.next_step());
  if (!flags.output.json) {
    const std::string& device = flags.training.device;
    fmt::print("{} on {}: {}\n", completed.setting.model.name,
               device == "host" ? "this machine" : device, plan_text(completed.setting.plan));
  }
  const LoadWatch load;
  {
    StepReport report(flags, completed, *outcome.metrics);
    const InterruptWatch watch;
    trainer.set_tick([&] {
      report.flush();
      if (watch.interrupted()) trainer.request_stop();
    });
    outcome.result =
        trainer.train(flags.steps, [&](const StepRecord& record) { report.add(record); });
    report.flush();
  }
  tell_if_busy(load.load());
  if (outcome.result.divergence) return outcome;
  outcome.validation_sequences = held_out_sequences(setting.plan);
  outcome.validation_loss =
      trainer.validation_loss(outcome.validation_sequences / *setting.plan.micro_batch);
  if (target) {
    trainer.export_weights(target->weights, target->most);
    if (is_first_rank()) write_config(*target);
  }
  return outcome;
}

void check_flags(const TrainFlags& flags) {
  const bool folder = flags.checkpoint_folder.has_value();
  if (flags.resume && !folder) {
    throw Error("--resume", "there is no folder to resume from", "add --checkpoint DIR");
  }
  if (flags.checkpoint_period > 0 && !folder) {
    throw Error("--checkpoint-period", "there is no folder for checkpoints",
                "add --checkpoint DIR");
  }
  if (flags.checkpoint_overhead && !folder) {
    throw Error("--checkpoint-overhead", "there is no folder for checkpoints",
                "add --checkpoint DIR");
  }
  if (flags.pauses_for_checkpoints && !folder) {
    throw Error("--pause-for-checkpoints", "there is no folder for checkpoints",
                "add --checkpoint DIR");
  }
  if (flags.max_shard_size && !flags.export_path) {
    throw Error("--max-shard-size", "nothing is exported", "add --export DIR");
  }
  if (flags.replace_checkpoints && (flags.resume || !folder)) {
    throw Error("--replace-checkpoints",
                flags.resume ? "--resume goes on with them" : "there is no folder of checkpoints",
                flags.resume ? "leave one of the two out" : "add --checkpoint DIR");
  }
}

// What the configuration says and nothing here does would train another model without a word.
void check_is_that_model(const Setting& setting) {
  for (const Caveat& caveat : caveats_of(setting.model, setting.plan, setting.stack.facts)) {
    if (caveat.trains_another) throw caveat.error();
  }
}

// Of the run that goes on: what the store has learnt since might choose another micro-batch, whose
// sums are rounded elsewhere. Nothing where no checkpoint says it.
std::optional<int64_t> micro_batch_of_run(const TrainFlags& flags) {
  if (!flags.resume) return std::nullopt;
  const std::optional<CheckpointHeader> header = newest_header(*flags.checkpoint_folder);
  if (!header) return std::nullopt;
  const auto found = header->knobs.find(std::string(knob_of(KnobId::kMicroBatch).path));
  if (found == header->knobs.end()) return std::nullopt;
  const char* const end = found->second.data() + found->second.size();
  int64_t sequences = 0;
  const auto [rest, code] = std::from_chars(found->second.data(), end, sequences);
  return code == std::errc() && rest == end ? std::optional(sequences) : std::nullopt;
}

// With the micro-batch of the run that goes on, unless somebody names one, or it would no longer
// do.
Completed complete_run(const TrainFlags& flags, Setting setting, const Measurements& measurements) {
  const std::optional<int64_t> before = micro_batch_of_run(flags);
  if (before && !setting.plan.micro_batch) {
    Setting same = setting;
    same.plan.micro_batch = before;
    try {
      Completed completed = complete_in_sight(std::move(same), &measurements);
      if (completed.prediction.fits) return completed;
    } catch (const Error&) {  // another batch, say, which it does not divide
    }
  }
  return complete_in_sight(std::move(setting), &measurements);
}

}  // namespace

int run_train(Words words) {
  TrainFlags flags;
  if (!parse(words, flags)) return kDone;
  check_flags(flags);
  check_launch(flags.training.device);
  check_compute_threads(flags.training);
  Setting setting = load_case_here(flags.plan, flags.store, flags.training.device);
  check_nvme(flags.training, setting.plan);
  set_compute_threads(flags.training, setting.machine);
  if (setting.plan.checkpoint_period_steps > 0 && !flags.checkpoint_folder) {
    throw Error("plan.checkpoint_period_steps", "there is no folder for checkpoints",
                "add --checkpoint DIR, or --set plan.checkpoint_period_steps=0");
  }
  check_is_that_model(setting);
  const Measurements measurements = measurements_of(setting.machine, flags.store);
  Completed completed = complete_run(flags, std::move(setting), measurements);
  completed.setting.plan = plan_of_all_ranks(completed.setting.plan, flags.training.device);
  if (!completed.prediction.fits) {
    fmt::print("does not fit: {}\n", completed.prediction.reason);
    return kInfeasible;
  }
  const TrainOutcome outcome = run(flags, completed);
  const bool diverged = outcome.result.divergence.has_value();
  if (flags.output.json) {
    fmt::print("{}\n", outcome_json(completed, outcome).dump(1));
  } else if (!diverged) {
    print_outcome(completed, outcome);
    print_checkpoints(flags, outcome.result.checkpoints);
    print_where_to_resume(flags, outcome.result);
  }
  std::fflush(stdout);
  if (!diverged) {
    outcome.metrics->require_whole();
    return outcome.result.stopped ? kUndecided : kDone;
  }
  print_divergence(flags, outcome.result);
  return kInfeasible;
}

}  // namespace ballast
