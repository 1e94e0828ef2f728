#include "cli/tune/tune_studies.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "autotune/complete/complete.h"
#include "autotune/studies/studied_knobs.h"
#include "cli/text/tables.h"
#include "cli/tune/tune_output.h"
#include "sim/base/error.h"
#include "sim/base/stop.h"

namespace ballast {
namespace {

constexpr auto kGpu = static_cast<size_t>(Place::kHbm);
constexpr double kSensitivityTolerance = 0.005;

OrderedJson seconds_or_null(const std::optional<Duration>& time) {
  return time ? OrderedJson(time->seconds()) : OrderedJson(nullptr);
}
std::string show_or_dash(const std::optional<Duration>& time) { return time ? show(*time) : "-"; }
std::string show_point(const SensitivityPoint& point) {
  return point.decided ? show_or_dash(point.step_time) : "not decided";
}

std::string label_of(const FrontierPoint& point) {
  return fmt::format("{} device{}, {}", point.devices, point.devices == 1 ? "" : "s",
                     show(point.candidate.memory[kGpu]));
}

// What plans that are compared have in common.
KnobSet what_is_trained() {
  return {KnobId::kModel,          KnobId::kMachine,     KnobId::kDevices,
          KnobId::kSequenceLength, KnobId::kGlobalBatch, KnobId::kDtype};
}

// With the degrees of the best plan, and knobs that are open chosen for it.
Plan start_of(const TuneFlags& flags, const Tuner& tuner, const Plan& best,
              const SearchCache& cache) {
  PlanRequest request;
  request.strategy = flags.ablation_from;
  KnobSet kept = what_is_trained();
  for (const KnobId id :
       {KnobId::kData, KnobId::kTensor, KnobId::kPipeline, KnobId::kVirtualPipeline,
        KnobId::kSequence, KnobId::kContext, KnobId::kExpert}) {
    kept.add(id);
  }
  request.knobs = given_by(best, kept);
  const Setting& base = tuner.base();
  Plan start = resolve_plan(request);
  start.tensor_sequence = best.tensor_sequence;
  start.products = best.products;
  if (best.pipeline > 1) {
    // A pipeline waits for one norm, and its weights stay (autotune/space/layout.h).
    start.zero_stage = best.zero_stage;
    start.optimizer.sync = SyncMode::kWait;
    start.optimizer.gpu_buckets = 0;
    start.weights.flow_share = 0;
  }
  check(start, base.model);
  try {
    Completed completed = complete({base.model, start, base.machine, base.stack},
                                   &tuner.measurements(), cache.interruption());
    if (completed.prediction.fits) return std::move(completed.setting.plan);
  } catch (const Error&) {
    // Nobody waits for the choice, or none of a list is legal.
  }
  if (!start.micro_batch) start.micro_batch = best.micro_batch;
  if (!start.activations) start.activations = best.activations;
  if (!start.optimizer.gpu_buckets) start.optimizer.gpu_buckets = 0;
  if (!start.weights.flow_share) start.weights.flow_share = 0;
  return start;
}

}  // namespace

Frontier study_frontier(const TuneFlags& flags, const TunedPoints& tuned, SearchCache& cache) {
  std::vector<SearchQuestion> questions;
  for (const ObjectivePoint& point : tuned.points) {
    if (point.question) questions.push_back(*point.question);
  }
  const Ask ask = cache.asker(tuned.tuners[*tuned.best]->measurements());
  return frontier_of(questions, flags.frontier_options, ask);
}

OrderedJson frontier_json(const TuneFlags& flags, const Frontier& frontier) {
  OrderedJson json = OrderedJson::array();
  for (const FrontierPoint& point : frontier.points) {
    const Candidate& candidate = point.candidate;
    const Economy economy = economy_of(candidate, flags.request.rates);
    json.push_back(
        {{"devices", point.devices},
         {"gpu_memory_limit_bytes",
          point.memory_limit ? OrderedJson(point.memory_limit->count) : OrderedJson(nullptr)},
         {"label", label_of(point)},
         {"step_time_s", candidate.step_time.seconds()},
         {"tokens_per_s", economy.tokens_per_s},
         {"tokens_per_s_per_device", economy.tokens_per_s_per_device},
         {"memory_bytes", memory_json(candidate.memory)},
         {"cost_per_million_tokens", or_null(economy.cost_per_million_tokens)},
         {"joules_per_token", or_null(economy.joules_per_token)},
         {"plan", OrderedJson::parse(plan_json(candidate.plan))}});
  }
  return json;
}

std::string frontier_text(const TuneFlags& flags, const Frontier& frontier) {
  Table table({{"devices"},
               {"GPU memory"},
               {"CPU memory"},
               {"step"},
               {"tokens/s"},
               {"a device"},
               {"plan", true}});
  for (const FrontierPoint& point : frontier.points) {
    const Candidate& candidate = point.candidate;
    const Plan& plan = candidate.plan;
    const Economy economy = economy_of(candidate, flags.request.rates);
    table.add({std::to_string(point.devices), show(candidate.memory[kGpu]),
               show(candidate.memory[static_cast<size_t>(Place::kDram)]), show(candidate.step_time),
               show_count(economy.tokens_per_s), show_count(economy.tokens_per_s_per_device),
               fmt::format("{}; micro-batch {}; {}", layout_name(plan), *plan.micro_batch,
                           activations_text(plan.activations))});
  }
  std::string text = flags.framework.name == kBallastStack
                         ? "no plan beats these in throughput, GPU memory and devices at once:\n"
                         : "of the plans that were ranked none beats these in throughput, GPU "
                           "memory and devices at once:\n";
  text += table.text();
  if (!frontier.whole) {
    text += fmt::format(
        "more points may lie between and below them: {} searches each, steps of "
        "{:g} % of memory (--frontier-points, --frontier-step-percent)\n",
        flags.frontier_options.most_points, flags.frontier_step_percent);
  }
  return text;
}

SensitivityStudy study_sensitivity(const Tuner& tuner, const Candidate& best, SearchCache& cache) {
  SensitivityQuestion question{tuner.question(""), best};
  question.search.tolerance = kSensitivityTolerance;
  question.search.ranked = SearchQuestion{}.ranked;
  question.search.space.open.remove(KnobId::kBucketBytes);
  for (Plan& layout : question.search.space.layouts) {
    layout.optimizer.bucket_bytes = best.plan.optimizer.bucket_bytes;
  }
  SensitivityStudy study;
  const bool of_ballast = question.search.stack.name == kBallastStack;
  study.searched = fmt::format(
      "all {} layouts with buckets of {}, each {}", question.search.space.layouts.size(),
      show(best.plan.optimizer.bucket_bytes),
      of_ballast ? fmt::format("to within {:g} %", 100 * kSensitivityTolerance) : "by a list");
  const Measurements& measurements = tuner.measurements();
  if (!measurements.empty()) study.searched += "; operations that were timed keep their times";
  study.figures =
      sensitivities(question, &measurements, {}, cache.asker(measurements), cache.interruption());
  return study;
}

OrderedJson sensitivity_json(const SensitivityStudy& study) {
  OrderedJson json = OrderedJson::array();
  for (const Sensitivity& one : study.figures) {
    OrderedJson points = OrderedJson::array();
    for (const SensitivityPoint& point : one.points) {
      points.push_back({{"factor", point.factor},
                        {"value", point.value},
                        {"step_time_s", seconds_or_null(point.step_time)},
                        {"decided", point.decided},
                        {"same_plan_step_time_s", seconds_or_null(point.same_plan)},
                        {"differs", point.differs}});
    }
    OrderedJson switches = nullptr;
    if (one.switches_at) {
      switches = {{"factor", one.switches_at->factor},
                  {"value", one.switches_at->value},
                  {"differs", one.switches_at->differs}};
    }
    json.push_back({{"key", one.figure.key},
                    {"name", one.figure.name},
                    {"unit", one.figure.unit},
                    {"value", one.figure.value},
                    {"elasticity", one.elasticity},
                    {"points", points},
                    {"switches_at", switches}});
  }
  return json;
}

std::string sensitivity_text(const SensitivityStudy& study) {
  if (study.figures.empty()) return "";
  std::vector<Table::Column> columns = {{"figure", true}, {"value"}, {"+1 % gives"}};
  for (const SensitivityPoint& point : study.figures.front().points) {
    columns.push_back({fmt::format("x {:.2g}", point.factor)});
  }
  columns.push_back({"another plan wins at", true});
  Table table(columns);
  for (const Sensitivity& one : study.figures) {
    std::vector<std::string> cells = {one.figure.name,
                                      fmt::format("{:.4g} {}", one.figure.value, one.figure.unit),
                                      fmt::format("{:+.2f} %", one.elasticity)};
    for (const SensitivityPoint& point : one.points) cells.push_back(show_point(point));
    cells.push_back(one.switches_at
                        ? fmt::format("{:.4g} {}: {}", one.switches_at->value, one.figure.unit,
                                      fmt::join(one.switches_at->differs, "; "))
                        : "none of these");
    table.add(std::move(cells));
  }
  return fmt::format("the best step where the machine is another (searched: {}):\n{}",
                     study.searched, table.text());
}

AblationStudy study_ablation(const TuneFlags& flags, const Tuner& tuner, const Candidate& best,
                             const SearchCache& cache) {
  const auto start = unless_stopped(cache.interruption(),
                                    [&] { return start_of(flags, tuner, best.plan, cache); });
  AblationStudy study{flags.ablation_from, {}, best.step_time};
  study.ablation.whole = false;
  if (!start) return study;
  const Setting& base = tuner.base();
  const StepTime step_time = [&](const Plan& plan) -> std::optional<Duration> {
    check(plan, base.model);
    const Prediction prediction =
        predict(base.model, plan, base.machine, base.stack, &tuner.measurements());
    return prediction.fits ? std::optional(prediction.step_time) : std::nullopt;
  };
  study.ablation = ablate({*start, best.plan}, step_time, cache.interruption());
  return study;
}

OrderedJson ablation_json(const AblationStudy& study) {
  OrderedJson steps = OrderedJson::array();
  for (const AblationStep& step : study.ablation.steps) {
    steps.push_back({{"knob", step.knob},
                     {"from", step.from},
                     {"to", step.to},
                     {"step_time_s", seconds_or_null(step.step_time)},
                     {"gain_s", seconds_or_null(step.gain)}});
  }
  return {
      {"start", {{"label", study.start}, {"step_time_s", seconds_or_null(study.ablation.start)}}},
      {"steps", steps},
      {"whole", study.ablation.whole},
      {"best_step_time_s", study.best.seconds()}};
}

std::string ablation_text(const AblationStudy& study) {
  Table table(
      {{"from " + study.start + " to the best", true}, {"step"}, {"gain"}, {"change", true}});
  table.add({"start", show_or_dash(study.ablation.start), "", ""});
  for (const AblationStep& step : study.ablation.steps) {
    table.add({step.knob, show_or_dash(step.step_time), show_or_dash(step.gain),
               fmt::format("{} (was {})", step.to, step.from)});
  }
  std::string text = table.text() + "- : does not fit, or is not legal, so far\n";
  if (!study.ablation.whole) text += "stopped: of the other knobs nothing is decided\n";
  return text;
}

std::vector<StrategyVerdict> study_strategies(const TuneFlags& flags, const Setting& best,
                                              const SearchCache& cache) {
  std::vector<StrategyVerdict> verdicts;
  for (const Shipped& shipped : shipped_strategies()) {
    StrategyVerdict verdict;
    verdict.name = shipped.name;
    verdict.decided = !cache.must_stop();
    try {
      if (verdict.decided) {
        PlanRequest request;
        request.strategy = shipped.name;
        request.knobs = given_by(best.plan, what_is_trained());
        request.knobs.insert(flags.plan.knobs.begin(), flags.plan.knobs.end());
        Setting setting = best;
        setting.plan = resolve_plan(request);
        setting.open = open_layout(flags.plan, setting.plan);
        if (setting.open.empty()) check(setting.plan, setting.model);
        const std::function<bool()> must_stop = cache.interruption();
        if (const auto found =
                unless_stopped(must_stop, [&] { return fits_at_all(setting, must_stop); })) {
          verdict.fits = found->fits;
          verdict.reason = found->reason;
          verdict.lacks = shortfalls(found->peaks, setting.machine);
        }
      }
    } catch (const Error& error) {
      verdict.reason = error.what();
    }
    // What was stopped had not looked at everything.
    if (!verdict.fits && cache.must_stop()) {
      verdict.decided = false;
      verdict.lacks.clear();
      verdict.reason = "not decided: the studies were stopped";
    }
    verdicts.push_back(std::move(verdict));
  }
  return verdicts;
}

OrderedJson strategies_json(const std::vector<StrategyVerdict>& verdicts) {
  OrderedJson json = OrderedJson::array();
  for (const StrategyVerdict& verdict : verdicts) {
    OrderedJson entry = {{"name", verdict.name},
                         {"fits", verdict.decided ? OrderedJson(verdict.fits) : nullptr}};
    if (!verdict.fits) {
      entry["reason"] = verdict.reason;
      entry["misses"] = OrderedJson();
      if (!verdict.lacks.empty()) {
        const Shortfall& first = verdict.lacks.front();
        entry["misses"] = {{"memory", memory_name(first.place)}, {"bytes", first.lacking().count}};
      }
    }
    json.push_back(std::move(entry));
  }
  return json;
}

std::string strategies_text(const std::vector<StrategyVerdict>& verdicts) {
  std::vector<std::string> fitting;
  std::vector<std::string> missing;
  std::vector<std::string> illegal;
  std::vector<std::string> open;
  for (const StrategyVerdict& verdict : verdicts) {
    if (!verdict.decided) {
      open.push_back(verdict.name);
    } else if (verdict.fits) {
      fitting.push_back(verdict.name);
    } else if (!verdict.lacks.empty()) {
      std::vector<std::string> parts;
      for (const Shortfall& one : verdict.lacks) {
        parts.push_back(memory_name(one.place) + " " + lacking_text(one));
      }
      missing.push_back(fmt::format("{} ({})", verdict.name, fmt::join(parts, ", ")));
    } else {
      illegal.push_back(verdict.name);
    }
  }
  if (verdicts.empty()) return "";
  std::string text =
      fmt::format("known strategies that fit: {}\n",
                  fitting.empty() ? "none" : fmt::format("{}", fmt::join(fitting, ", ")));
  if (!missing.empty()) text += fmt::format("that do not: {}\n", fmt::join(missing, ", "));
  if (!illegal.empty()) {
    text += fmt::format("not legal on this machine: {}\n", fmt::join(illegal, ", "));
  }
  if (!open.empty()) text += fmt::format("not decided: {}\n", fmt::join(open, ", "));
  return text;
}

std::optional<Predicted> study_as_framework(const Setting& best, const Tuner& tuner) {
  Setting setting = best;
  if (best.stack.name == kBallastStack) {
    if (default_stack(best.machine) == kBallastStack) return std::nullopt;
    setting.stack = load_stack(std::string(kTypicalStack));
  }
  try {
    Prediction prediction =
        predict(setting.model, setting.plan, setting.machine, setting.stack, &tuner.measurements());
    return judged(std::move(setting), std::move(prediction), tuner.measurements(),
                  AskLimits::kNever);
  } catch (const Error& error) {
    Predicted refused{std::move(setting), {}, {}, {}, one_line(error.what())};
    return refused;
  }
}

std::string as_framework_text(const Predicted& predicted) {
  const std::string& name = predicted.setting.stack.name;
  return fmt::format("the best, as {} runs it: {}\n",
                     name == kTypicalStack ? "the typical framework" : name,
                     outcome_text(predicted));
}

std::optional<SolverStudy> study_sppo_solver(const Tuner& tuner, const Candidate& best,
                                             SearchCache& cache) {
  SearchQuestion question = tuner.question("SPPO's solver");
  for (const KnobId id : {KnobId::kSequence, KnobId::kPipeline, KnobId::kSubsequences}) {
    if (!question.space.open.has(id)) return std::nullopt;
  }
  std::vector<Plan>& layouts = question.space.layouts;
  const std::optional<SolverChoice> choice = sppo_choice(layouts, question.machine);
  if (!choice) return std::nullopt;
  SolverStudy study{*choice, choice->is_of(best.plan), std::nullopt, best.step_time, ""};
  if (study.is_best) {
    study.step_time = best.step_time;
    return study;
  }
  std::erase_if(layouts, [&](const Plan& layout) { return !choice->is_of(layout); });
  const auto found = cache.asker(tuner.measurements())(question);
  if (found && found->best) {
    study.step_time = found->best->step_time;
  } else if (found && found->complete() && !found->reasons.empty()) {
    study.reason = found->reasons.front().detail;
  } else {
    study.reason = "not decided: the studies were stopped";
  }
  return study;
}

OrderedJson solver_json(const SolverStudy& study) {
  OrderedJson json = {{"sequence", study.choice.sequence},
                      {"pipeline", study.choice.pipeline},
                      {"subsequences", study.choice.subsequences},
                      {"idle_share", study.choice.idle_share},
                      {"is_best", study.is_best},
                      {"step_time_s", seconds_or_null(study.step_time)}};
  if (!study.step_time) json["reason"] = study.reason;
  return json;
}

std::string solver_text(const SolverStudy& study) {
  const SolverChoice& choice = study.choice;
  const std::string degrees = fmt::format(
      "SPPO's solver, by its rules alone: sequence {}, pipeline {}, {} parts, of which "
      "stages idle {:.1f} %: ",
      choice.sequence, choice.pipeline, choice.subsequences, 100 * choice.idle_share);
  if (study.is_best) return degrees + "those of the best plan\n";
  if (!study.step_time) return degrees + study.reason + "\n";
  const double more = study.step_time->seconds() / study.best.seconds() - 1;
  return fmt::format("{}{} a step, {:.1f} % more than the best\n", degrees, show(*study.step_time),
                     100 * more);
}

}  // namespace ballast
