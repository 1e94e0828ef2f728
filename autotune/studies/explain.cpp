#include "autotune/studies/explain.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <map>

#include "autotune/bounds/bound.h"
#include "sim/base/parallel.h"
#include "autotune/search/ties.h"
#include "autotune/studies/studied_knobs.h"
#include "sim/engine/cost.h"
#include "sim/engine/engine.h"
#include "sim/graph/build.h"
#include "sim/graph/report/memory.h"

namespace ballast {
namespace {

constexpr size_t kKindsShown = 4;

std::array<Bytes, kPlaces> arenas_of(const Prediction& prediction) {
  std::array<Bytes, kPlaces> memory{};
  for (const PlacePeak& peak : prediction.peaks)
    memory[static_cast<size_t>(peak.place)] = peak.arena;
  return memory;
}

int64_t magnitude(const KindDifference& difference) {
  return std::abs((difference.other - difference.best).ps);
}

}  // namespace

Binding binding_of(const Prediction& prediction) {
  CHECK(prediction.fits);
  Workload work;
  const Sequence& step = prediction.graph.step;
  for (size_t i = 0; i < step.ops.size(); ++i) {
    work.add(step.ops[i], prediction.costs.ops[i], prediction.costs, 1);
  }
  const WorkBound bound = work_bound(work, prediction.costs.capacities);
  return {bound.resource, bound.time, bound.time.seconds() / prediction.step_time.seconds()};
}

std::vector<std::string> differing_knobs(const Plan& plan, const Plan& other) {
  std::vector<std::string> result;
  for (const StudiedKnob& knob : studied_knobs()) {
    const std::string mine = knob.text(plan);
    const std::string its = knob.text(other);
    if (mine != its) result.push_back(fmt::format("{}: {}, not {}", knob.name, mine, its));
  }
  return result;
}

Comparison compare(const Plan& best, const Prediction& best_prediction, const Plan& other,
                   const Prediction& other_prediction) {
  CHECK(best_prediction.fits && other_prediction.fits);
  Comparison result;
  result.other = other;
  result.knobs = differing_knobs(best, other);
  result.longer = other_prediction.step_time - best_prediction.step_time;
  std::map<std::pair<OpKind, Phase>, KindDifference> kinds;
  const auto add = [&](const CriticalPath& path, Duration KindDifference::*side) {
    for (const KindTime& time : path.by_kind) {
      KindDifference& entry = kinds[{time.kind, time.phase}];
      entry.kind = time.kind;
      entry.phase = time.phase;
      entry.*side += time.time;
    }
  };
  add(best_prediction.critical_path, &KindDifference::best);
  add(other_prediction.critical_path, &KindDifference::other);
  for (const auto& [key, difference] : kinds) {
    if (difference.best != difference.other) result.critical.push_back(difference);
  }
  std::stable_sort(
      result.critical.begin(), result.critical.end(),
      [](const KindDifference& a, const KindDifference& b) { return magnitude(a) > magnitude(b); });
  result.waiting = other_prediction.critical_path.waiting - best_prediction.critical_path.waiting;
  result.best_binding = binding_of(best_prediction);
  result.other_binding = binding_of(other_prediction);
  result.best_memory = arenas_of(best_prediction);
  result.other_memory = arenas_of(other_prediction);
  return result;
}

std::vector<Alternative> alternatives(const Model& model, const Plan& base, const Space& space,
                                      const Plan& best, const Machine& machine,
                                      const Measurements* measurements, int threads) {
  std::vector<Plan> plans;
  std::vector<Alternative> result;
  for (const Choice& choice : choices_of(space, base)) {
    Plan plan = plan_of(space, base, choice);
    plan.memory_reuse = best.memory_reuse;
    size_t changed = 0;
    const StudiedKnob* which = nullptr;
    for (const StudiedKnob& knob : studied_knobs()) {
      if (knob.text(best) == knob.text(plan)) continue;
      ++changed;
      which = &knob;
    }
    if (changed != 1) continue;
    plans.push_back(plan);
    result.push_back({std::string(which->name), which->text(plan), std::nullopt, ""});
  }
  const CostModel costs(machine, best, Stack{}, measurements);
  parallel_for(plans.size(), threads > 0 ? threads : hardware_threads(), [&](size_t i) {
    const Graph graph = build(model, plans[i]);
    result[i].reason = reason_not_to_fit(memory_peaks(graph), plans[i], machine);
    if (!result[i].reason.empty()) return;
    result[i].step_time = step_time_of(graph, plans[i], costs);
  });
  // Together by knob, in the order in which the knobs are listed above.
  std::vector<Alternative> ordered;
  for (const StudiedKnob& knob : studied_knobs()) {
    for (const Alternative& alternative : result) {
      if (alternative.knob == knob.name) ordered.push_back(alternative);
    }
  }
  return ordered;
}

namespace {

std::string describe(const char* plan, const Binding& binding, Duration step_time) {
  return fmt::format("{}: {:.4g} ms a step, {} busy for {:.4g} ms of it ({:.1f} %)\n", plan,
                     step_time.ms(), binding.resource, binding.busy.ms(), 100 * binding.share);
}

std::string describe_difference(const Comparison& comparison, const Candidate& best,
                                const Candidate& next) {
  std::string text = describe("next", comparison.other_binding, next.step_time);
  text += fmt::format("the next-best plan loses {:.4g} ms ({:.2f} %); the best has\n",
                      comparison.longer.ms(),
                      100 * comparison.longer.seconds() / best.step_time.seconds());
  for (const std::string& knob : comparison.knobs) text += "  " + knob + "\n";
  text += "on its critical path, against the best's\n";
  for (size_t i = 0; i < comparison.critical.size() && i < kKindsShown; ++i) {
    const KindDifference& kind = comparison.critical[i];
    text += fmt::format("  {} {}: {:+.4g} ms\n", to_string(kind.kind), to_string(kind.phase),
                        (kind.other - kind.best).ms());
  }
  if (comparison.waiting.ps != 0) {
    text += fmt::format("  waiting: {:+.4g} ms\n", comparison.waiting.ms());
  }
  for (const Place place : {Place::kHbm, Place::kDram}) {
    const auto p = static_cast<size_t>(place);
    text += fmt::format("{}: {:.2f} GiB best, {:.2f} GiB next\n", to_string(place),
                        comparison.best_memory[p].gib(), comparison.other_memory[p].gib());
  }
  return text;
}

}  // namespace

std::string explain(const SearchResult& result, const Model& model, const Machine& machine,
                    const Measurements* measurements) {
  std::string text;
  if (!result.best) {
    text = fmt::format("none of {} plans fits {}\n", result.considered, machine.name);
    for (const InfeasibleReason& reason : result.reasons) {
      text += fmt::format("{} plans: {}; the nearest: {}\n", reason.count, reason.reason,
                          reason.detail);
    }
    return text;
  }
  const Candidate& best = *result.best;
  const Prediction first = predict(model, best.plan, machine, measurements);
  text = describe("best", binding_of(first), best.step_time);
  const Candidate* const next = next_best(result);
  if (next == nullptr) return text;
  const Prediction second = predict(model, next->plan, machine, measurements);
  return text + describe_difference(compare(best.plan, first, next->plan, second), best, *next);
}

}  // namespace ballast
