#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "autotune/search/ties.h"
#include "cli/text/bottlenecks.h"
#include "cli/text/runs_on.h"
#include "cli/tune/found_model.h"
#include "cli/tune/tune_objectives.h"
#include "cli/tune/tune_output.h"
#include "cli/tune/tune_sizes.h"
#include "cli/tune/tune_studies.h"
#include "profiles/load.h"
#include "sim/base/stop.h"
#include "sim/spec/caveats.h"

namespace ballast {
namespace {

// What the studies of a best plan found, as JSON and as text.
struct Studies {
  OrderedJson json = OrderedJson::object();
  std::string text;

  void add(const char* key, OrderedJson value, const std::string& words) {
    json[key] = std::move(value);
    text += "\n" + words;
  }
};

Studies run_studies(const TuneFlags& flags, const TunedPoints& tuned, const Candidate& best,
                    SearchCache& cache) {
  const Tuner& tuner = *tuned.tuners[*tuned.best];
  Studies studies;
  if (flags.frontier) {
    const Frontier frontier = study_frontier(flags, tuned, cache);
    studies.add("frontier", frontier_json(flags, frontier), frontier_text(flags, frontier));
    studies.json["frontier_whole"] = frontier.whole;
  }
  if (flags.sensitivity) {
    const SensitivityStudy study = study_sensitivity(tuner, best, cache);
    studies.add("sensitivities", sensitivity_json(study), sensitivity_text(study));
    studies.json["sensitivities_searched"] = study.searched;
  }
  if (flags.ablation) {
    const AblationStudy study = study_ablation(flags, tuner, best, cache);
    studies.add("ablation", ablation_json(study), ablation_text(study));
  }
  if (const auto solver = study_sppo_solver(tuner, best, cache)) {
    studies.add("sppo_solver", solver_json(*solver), solver_text(*solver));
  }
  const auto outcome = unless_stopped(
      cache.interruption(), [&] { return study_as_framework(tuner.with(best.plan), tuner); });
  if (outcome && *outcome) {
    const bool of_ballast = flags.framework.name == kBallastStack;
    studies.add(of_ballast ? "typical" : "outcome", outcome_json(**outcome),
                as_framework_text(**outcome));
  }
  const std::vector<StrategyVerdict> verdicts =
      study_strategies(flags, tuner.with(best.plan), cache);
  studies.add("strategies", strategies_json(verdicts), strategies_text(verdicts));
  return studies;
}

OrderedJson counts_of(const SearchCache& cache) {
  return {{"from_store", cache.asked() > 0 && cache.from_store() == cache.asked()},
          {"searches", {{"asked", cache.asked()}, {"from_store", cache.from_store()}}},
          {"interrupted", cache.interrupted()},
          {"studies_out_of_time", cache.is_out_of_time()}};
}

std::string text_of_cache(const SearchCache& cache) {
  std::string text;
  if (cache.interrupted()) {
    text +=
        "interrupted: this is the best so far; searches that had ended need not be asked again\n";
  } else if (cache.is_out_of_time()) {
    text += "the studies took what --deadline leaves them: what they had not decided is left out\n";
  }
  if (cache.asked() > 0 && cache.from_store() == cache.asked()) {
    text += "all of this was found before, and is in the store; --again searches anew\n";
  } else if (cache.from_store() > 0) {
    text += fmt::format("{} of {} searches were found before, and are in the store\n",
                        cache.from_store(), cache.asked());
  }
  return text;
}

// Last of all: where it fails, the answer is written and printed.
void append_to_store(const TuneFlags& flags, const Setting& best, const Candidate& candidate,
                     const OrderedJson& json) {
  open_store(flags.store)
      .append(TuneResult{best.machine.name, best.model.name, plan_json(best.plan),
                         candidate.step_time, json.dump(), ""});
}

// The search that says most about why there is no best plan.
const SearchResult* nearest_of(const TunedPoints& tuned) {
  for (auto point = tuned.points.rbegin(); point != tuned.points.rend(); ++point) {
    if (point->found) return &*point->found;
  }
  return nullptr;
}

// What stopped the first search that did not decide its point.
SearchStop stop_of(const TunedPoints& tuned) {
  for (const ObjectivePoint& point : tuned.points) {
    if (point.stop != SearchStop::kNone) return point.stop;
  }
  return SearchStop::kNone;
}

// A search that was stopped says nothing about what fits.
int report_undecided(const TuneFlags& flags, const TunedPoints& tuned, const SearchCache& cache) {
  const SearchResult* const nearest = nearest_of(tuned);
  SearchResult found = nearest ? *nearest : SearchResult{};
  found.stop = stop_of(tuned);
  if (flags.output.json) {
    OrderedJson json = search_json(found, flags.framework);
    json.update(counts_of(cache));
    json["points"] = points_json(flags, tuned);
    fmt::print("{}\n", json.dump(1));
    return kUndecided;
  }
  if (tuned.points.size() > 1) fmt::print("{}", points_text(flags, tuned));
  fmt::print("{} before a plan was found that will do; whether there is one is not decided\n",
             stop_text(found.stop, flags.deadline_s));
  return kUndecided;
}

// Where what was searched departs from the model's configuration, though nothing of it fits.
std::vector<std::string> notes_of_nothing(const TunedPoints& tuned) {
  const auto found = std::find_if(tuned.tuners.begin(), tuned.tuners.end(),
                                  [](const auto& tuner) { return tuner != nullptr; });
  if (found == tuned.tuners.end()) return {};
  const Setting& setting = (*found)->base();
  return notes_of(setting.model, setting.plan, setting.stack.facts);
}

int report_nothing(TuneFlags& flags, const TunedPoints& tuned, SearchCache& cache) {
  if (!is_decided(flags, tuned)) return report_undecided(flags, tuned, cache);
  const SearchResult* const nearest = nearest_of(tuned);
  const std::vector<std::string> notes = notes_of_nothing(tuned);
  const std::vector<Emptied> emptied = emptied_by(flags, tuned, cache);
  std::vector<StrategyVerdict> verdicts;
  if (const auto& tuner = tuned.tuners.back()) {
    verdicts = study_strategies(flags, tuner->base(), cache);
  }
  if (flags.output.json) {
    OrderedJson json = search_json(nearest ? *nearest : SearchResult{}, flags.framework);
    json.update(counts_of(cache));
    json["points"] = points_json(flags, tuned);
    json["emptied_by"] = emptied_json(emptied);
    json["strategies"] = strategies_json(verdicts);
    json["notes"] = notes;
    fmt::print("{}\n", json.dump(1));
    return kInfeasible;
  }
  if (tuned.points.size() == 1 && !tuned.points.front().refusal.empty()) {
    fmt::print("{}\n", tuned.points.front().refusal);
  } else {
    fmt::print("{}", points_text(flags, tuned));
  }
  if (nearest && !nearest->best) fmt::print("{}", infeasible_text(*nearest, flags.framework));
  fmt::print("{}{}{}", notes_text(notes), emptied_text(emptied), strategies_text(verdicts));
  return kInfeasible;
}

// Of the best plan, as the search knew it: what `predict` says of it too.
std::optional<Bottlenecks> limits_of(const Setting& best, const Measurements& measurements,
                                     const SearchCache& cache) {
  const auto found = unless_stopped(cache.interruption(), [&] {
    const Prediction prediction =
        predict(best.model, best.plan, best.machine, best.stack, &measurements);
    return bottlenecks_of(best, prediction, measurements, AskLimits::kIfQuick);
  });
  return found.value_or(std::nullopt);
}

// What the strategy that was named says otherwise: a search may choose how much happens at once.
void append_departures(const TuneFlags& flags, const Plan& base, const Plan& best,
                       std::vector<std::string>& notes) {
  if (flags.plan.strategies.size() != 1) return;
  const Strategy strategy = load_strategy(flags.plan.strategies.front());
  // What flags or a plan file changed of it, somebody wanted.
  const std::vector<const Knob*> asked = departures(strategy, base);
  for (const Knob* knob : departures(strategy, best)) {
    if (std::find(asked.begin(), asked.end(), knob) != asked.end()) continue;
    notes.push_back(
        fmt::format("the strategy gives {} a value, and the best plan has {}; --set "
                    "plan.{} to keep it",
                    knob->path, text_of(*knob, knob->get(best)), knob->path));
  }
}

bool asks_for_size(Objective objective) {
  return objective == Objective::kLongestSequence || objective == Objective::kLargestModel;
}

int run_sized(TuneFlags& flags, SearchCache& cache) {
  TunedSize size = tune_size(flags, cache);
  const bool any = size.found.found && size.found.found->best;
  FoundFiles files;
  if (any) {
    files = write_found(size.setting, {flags.plan_out, flags.plan.set, flags.store,
                                       flag_for_ballast(size.setting.machine)});
    for (Candidate& one : size.found.found->ranked) one.plan.model = size.setting.plan.model;
  }
  SearchResult nothing;
  nothing.stop = size.found.next_stop;
  const int without = nothing.complete() ? kInfeasible : kUndecided;
  OrderedJson json = any ? search_json(*size.found.found, flags.framework, &size.setting.model)
                         : search_json(nothing, flags.framework);
  json.update(counts_of(cache));
  json["objective"] = size_json(flags, size);
  const std::vector<std::string> notes =
      notes_of(size.setting.model, size.setting.plan, size.setting.stack.facts);
  json["notes"] = notes;
  if (any) {
    json["objective"]["model_file"] = files.model;
    json["objective"]["predict"] = files.predict;
  }
  fmt::print("{}", flags.output.json ? json.dump(1) + "\n" : size_text(flags, size));
  if (!any && !flags.output.json) fmt::print("{}", notes_text(notes));
  if (!any) return without;
  if (!flags.output.json) {
    fmt::print("\n{}the best: {}\n{}\n{}\n{}{}{}",
               search_text(flags, size.setting, *size.found.found), plan_text(size.setting.plan),
               runs_on_text(runs_on(size.setting.model, size.setting.plan, size.setting.stack)),
               notes_text(notes), ranking_text(*size.found.found, flags.top), text_of_cache(cache),
               text_of(files));
  }
  append_to_store(flags, size.setting, *size.found.found->best, json);
  return kDone;
}

}  // namespace

int run_tune(Words words) {
  TuneFlags flags;
  if (!parse_tune(words, flags)) return kDone;
  if (flags.loop.plans) require_alone("tune --measure");
  const auto began = std::chrono::steady_clock::now();
  SearchCache cache(search_cache_options(flags), flags.store);
  if (asks_for_size(flags.request.objective)) return run_sized(flags, cache);
  TunedPoints tuned = tune_points(flags, cache);
  if (!tuned.best) return report_nothing(flags, tuned, cache);
  Tuner& tuner = *tuned.tuners[*tuned.best];
  SearchResult found = *tuned.points[*tuned.best].found;
  prefer_simple(found);
  std::optional<MeasureResult> measured;
  if (flags.loop.plans) measured = tuner.measure_plans(found);
  Setting best = tuner.with(found.best->plan);
  OrderedJson json = search_json(found, best.stack, &best.model);
  std::vector<std::string> notes = notes_of(best.model, best.plan, best.stack.facts);
  append_departures(flags, tuner.base().plan, best.plan, notes);
  notes.insert(notes.end(), tuner.notes().begin(), tuner.notes().end());
  json["notes"] = notes;
  json["stack_named"] = flags.stack.name ? OrderedJson(*flags.stack.name) : OrderedJson(nullptr);
  if (measured) json["measured"] = measured_json(*measured);
  json["objective"] = objective_json(flags, *found.best);
  json["points"] = points_json(flags, tuned);
  const StackFlag stack =
      best.stack.name == kBallastStack ? flag_for_ballast(best.machine) : flags.stack;
  const FoundFiles files = write_found(best, {flags.plan_out, flags.plan.set, flags.store, stack});
  json["predict"] = files.predict;
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - began;
  cache.limit_studies(studies_seconds(flags, taken.count(), tuned.points.size()));
  const std::optional<Bottlenecks> limits = limits_of(best, tuner.measurements(), cache);
  json["bottlenecks"] = bottlenecks_json(limits);
  json["store"] = store_path(flags.store);
  const Studies studies = run_studies(flags, tuned, *found.best, cache);
  json.update(studies.json);
  json.update(counts_of(cache));
  if (flags.output.json) {
    fmt::print("{}\n", json.dump(1));
    append_to_store(flags, best, *found.best, json);
    return kDone;
  }
  fmt::print("{}{}", points_text(flags, tuned), search_text(flags, best, found));
  if (measured) fmt::print("{}\n", measured_text(flags.loop, *measured));
  fmt::print("the best: {}\n{}\n{}{}\n", plan_text(best.plan),
             runs_on_text(runs_on(best.model, best.plan, best.stack)), notes_text(notes),
             limits ? bottlenecks_text(limits) : std::string());
  if (!measured || measured->measured.empty()) {
    fmt::print("{}", ranking_text(found, flags.top));
    const auto why = unless_stopped(cache.interruption(),
                                    [&] { return why_text(best, found, tuner.measurements()); });
    if (why) fmt::print("{}", *why);
  }
  fmt::print("{}{}\n{}{}", infeasible_text(found, best.stack), studies.text, text_of_cache(cache),
             text_of(files));
  append_to_store(flags, best, *found.best, json);
  return kDone;
}

}  // namespace ballast
