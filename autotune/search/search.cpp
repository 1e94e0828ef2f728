#include "autotune/search/search.h"

#include <algorithm>
#include <fmt/format.h>
#include <functional>
#include <memory>
#include <queue>
#include <set>

#include "autotune/bounds/bound.h"
#include "autotune/bounds/cell_bound.h"
#include "autotune/bounds/layer_costs.h"
#include "autotune/bounds/pipeline_bound.h"
#include "autotune/search/evaluate.h"
#include "autotune/search/infeasible.h"
#include "autotune/search/search_queue.h"
#include "autotune/search/shared_spaces.h"
#include "autotune/search/stop_watch.h"
#include "sim/base/parallel.h"
#include "sim/base/stop.h"
#include "sim/engine/cost.h"
#include "sim/engine/predict.h"
#include "sim/spec/knobs.h"

namespace ballast {
namespace {

// Plans handled between two looks at the best, whatever the number of threads.
constexpr size_t kNodesAtOnce = 1024;
constexpr size_t kCutAtOnce = 4;
constexpr size_t kOpenedAtOnce = 8;
constexpr size_t kRefinedAtOnce = 512;
constexpr size_t kSimulatedAtOnce = 8;
constexpr size_t kEnumeratedAtOnce = 64;
// Plans of the most promising cells that are tried at once, so that there is a best early: of so
// many with the least work, those with the least bounds.
constexpr size_t kPlansOfAProbe = 32;
constexpr size_t kMostProbes = 4;

class Search {
 public:
  Search(const Model& model, const Machine& machine, const Measurements* measurements,
         const Plan& plan, const SearchOptions& options)
      : model_(model),
        machine_(machine),
        options_(options),
        threads_(options.threads > 0 ? options.threads : hardware_threads()),
        costs_(machine, plan, Stack{}, measurements),
        own_layers_(model, costs_),
        layers_(options.layers != nullptr ? *options.layers : own_layers_),
        floors_(costs_),
        infeasible_(machine, usable_) {
    usable_ = usable_of(machine);
  }

  void add(const Plan& base, std::shared_ptr<const Space> space, int64_t cell_size) {
    const size_t cells = space->micro_batch.size() * space->activations.size();
    result_.considered += static_cast<int64_t>(cells) * cell_size;
    ++result_.layouts;
    regions_.push_back({base, std::move(space), cell_size, {}, nullptr});
  }
  // Simulates it ahead of all others.
  void start_with(const Plan& plan);
  SearchResult run();

 private:
  const Region& region(const PlanId& id) const { return regions_[static_cast<size_t>(id.region)]; }
  Plan plan(const PlanId& id) const {
    return plan_of(*region(id).space, region(id).base, id.choice);
  }
  Rank rank_of(const PlanId& id, Duration time) const { return {time, moving_parts(plan(id)), id}; }
  bool must_stop();

  void enumerate_all();
  void branch_and_bound();
  void work_off_queue();
  bool settle_best();
  bool fill_queue();
  std::vector<Rank> take(Granularity granularity, size_t most);
  void cut_nodes();
  void cut_cells();
  void push_plans(const Rank& cell);
  void push(const Rank& rank, Granularity granularity);
  void bound_pipelines(const std::vector<Rank>& cells);
  void probe(const Rank& cell);
  std::vector<Rank> plans_of(const Rank& cell) const;
  bool refuse_state(const PlanId& id);
  void bound_plans();
  void simulate_plans();
  void simulate_all(const std::vector<Rank>& plans);
  std::vector<std::optional<Outcome>> simulated(size_t count,
                                                const std::function<Outcome(size_t)>& simulate);
  bool ruled_out(const Rank& rank) const;
  Bytes excess_of(const std::array<Bytes, kPlaces>& memory) const {
    return ballast::excess_of(memory, usable_);
  }
  Outcome evaluate(const PlanId& id) const;
  Outcome whole_step(const PlanId& id) const {
    return ballast::evaluate(model_, plan(id), region(id).space->memory_reuse, usable_, costs_);
  }
  std::optional<Outcome> whole_step_unless_interrupted(const PlanId& id);
  void record(const PlanId& id, Outcome outcome);
  void report(Duration bound) const;
  int64_t undecided();
  void finish();
  Candidate candidate(const Rank& rank) const;

  const Model& model_;
  const Machine& machine_;
  const SearchOptions& options_;
  const int threads_;
  const CostModel costs_;
  LayerProfiles own_layers_;
  LayerProfiles& layers_;
  StepFloors floors_;
  Usable usable_{};
  const StopWatch watch_{options_};

  std::vector<Region> regions_;
  std::priority_queue<Entry, std::vector<Entry>, Later> queue_;
  std::map<Rank, Outcome> found_;     // those that fit, best first
  std::map<PlanId, Duration> bound_;  // of what was simulated
  std::set<PlanId> tried_;            // simulated, or refused, ahead of their turn
  bool filled_ = false;               // the queue, with every plan that bounds may rule out
  size_t probes_ = 0;
  int64_t stalled_ = 0;              // simulations since the best was found
  std::optional<Duration> dropped_;  // the least bound of what was ruled out one by one
  Infeasible infeasible_;
  SearchResult result_;
};

void Search::start_with(const Plan& plan) {
  // A whole step may take minutes, even once time is up: none but the first answer is worth it.
  must_stop();
  const bool is_answered = !found_.empty() || result_.stop == SearchStop::kInterrupt;
  if (plan.devices > machine_.devices || is_answered) return;
  add(plan, std::make_shared<const Space>(space_of(model_, plan, OpenKnobs{})), 1);
  --result_.layouts;
  const PlanId id{static_cast<int32_t>(regions_.size() - 1), {}};
  std::optional<Outcome> outcome = whole_step_unless_interrupted(id);
  if (!outcome) return;
  tried_.insert(id);
  record(id, *std::move(outcome));
}

SearchResult Search::run() {
  if (regions_.empty()) {
    CHECK(must_stop());  // before there was a space
  } else if (regions_.front().base.devices > machine_.devices) {
    infeasible_.refuse_for_devices(plan({}), result_.considered);
  } else if (options_.exhaustive) {
    enumerate_all();
  } else {
    branch_and_bound();
  }
  finish();
  return std::move(result_);
}

// Asked before every round; what ended the search stays.
bool Search::must_stop() {
  if (result_.stop != SearchStop::kNone) return true;
  result_.stop = watch_.asked_to_stop();
  if (result_.stop == SearchStop::kNone && options_.patience > 0 && stalled_ >= options_.patience) {
    result_.stop = SearchStop::kPatience;
  }
  return result_.stop != SearchStop::kNone;
}

void Search::enumerate_all() {
  std::vector<PlanId> all;
  for (size_t r = 0; r < regions_.size(); ++r) {
    for (const Choice& choice : choices_of(*regions_[r].space, regions_[r].base)) {
      all.push_back({static_cast<int32_t>(r), choice});
    }
  }
  for (size_t begin = 0; begin < all.size() && !must_stop(); begin += kEnumeratedAtOnce) {
    const size_t count = std::min(kEnumeratedAtOnce, all.size() - begin);
    std::vector<std::optional<Outcome>> outcomes =
        simulated(count, [&](size_t i) { return evaluate(all[begin + i]); });
    for (size_t i = 0; i < count; ++i) {
      if (outcomes[i]) record(all[begin + i], *std::move(outcomes[i]));
    }
    report({});
  }
}

void Search::branch_and_bound() {
  for (Region& each : regions_) {
    if (must_stop()) break;
    each.floor = floors_.of(each.base, *each.space);
  }
  filled_ = !must_stop() && fill_queue();
  do {
    work_off_queue();
  } while (settle_best());
}

// What is the best, or may be, is simulated as a whole; true where that was not done before, so
// that another may win.
bool Search::settle_best() {
  if (found_.empty()) return false;
  const Duration last = found_.begin()->first.time * (1 + kUncertain);
  auto doubted = found_.begin();
  while (doubted != found_.end() && doubted->first.time <= last && !doubted->second.extrapolated) {
    ++doubted;
  }
  if (doubted == found_.end() || doubted->first.time > last) return false;
  const PlanId id = doubted->first.id;
  std::optional<Outcome> outcome = whole_step_unless_interrupted(id);
  if (!outcome) return false;
  found_.erase(doubted);
  --result_.simulated;
  record(id, *std::move(outcome));
  return true;
}

void Search::work_off_queue() {
  while (!queue_.empty()) {
    const Entry& next = queue_.top();
    if (ruled_out(next.rank)) break;
    if (must_stop()) break;
    switch (next.granularity) {
      case Granularity::kNode:
        cut_nodes();
        break;
      case Granularity::kCell:
        cut_cells();
        break;
      case Granularity::kPlan:
        bound_plans();
        break;
      case Granularity::kBoundedPlan:
        simulate_plans();
        break;
    }
  }
}

// Plans of what waits in the queue and may still win.
int64_t Search::undecided() {
  int64_t count = 0;
  for (; !queue_.empty() && !ruled_out(queue_.top().rank); queue_.pop()) {
    const Entry& entry = queue_.top();
    const Region& found = region(entry.rank.id);
    const bool one =
        entry.granularity == Granularity::kPlan || entry.granularity == Granularity::kBoundedPlan;
    const auto cells = static_cast<int64_t>(found.space->activations.size());
    count += one ? 1 : found.cell_size * (entry.granularity == Granularity::kNode ? cells : 1);
  }
  return count;
}

// The nodes of all regions, block by block so that a deadline is seen between two of them. False
// where that came first: the queue then lacks what would have followed.
bool Search::fill_queue() {
  std::vector<Entry> entries;
  std::vector<PlanId> ids;
  std::vector<Plan> plans;
  for (size_t r = 0; r < regions_.size() && !must_stop(); ++r) {
    PlanId id{static_cast<int32_t>(r), {}};
    const auto count = static_cast<int16_t>(regions_[r].space->micro_batch.size());
    if (!tried_.contains(id)) {
      for (id.choice.micro_batch = 0; id.choice.micro_batch < count; ++id.choice.micro_batch) {
        ids.push_back(id);
        plans.push_back(node_plan(regions_[r], id.choice));
      }
    }
    if (ids.size() < kNodesAtOnce && r + 1 < regions_.size()) continue;
    layers_.prepare(plans, threads_);
    const size_t first = entries.size();
    entries.resize(first + ids.size());
    parallel_for(ids.size(), threads_, [&](size_t i) {
      const Duration time =
          cell_time(model_, plans[i], layers_.of(plans[i]), region(ids[i]).floor, usable_);
      entries[first + i] = {{time, 0, ids[i]}, Granularity::kNode};
    });
    ids.clear();
    plans.clear();
  }
  queue_ = decltype(queue_)(Later{}, std::move(entries));
  return result_.stop == SearchStop::kNone;
}

// Up to `most` of the first entries, while they are of this granularity and may still win.
std::vector<Rank> Search::take(Granularity granularity, size_t most) {
  std::vector<Rank> ranks;
  while (!queue_.empty() && queue_.top().granularity == granularity && ranks.size() < most &&
         !ruled_out(queue_.top().rank)) {
    ranks.push_back(queue_.top().rank);
    queue_.pop();
  }
  return ranks;
}

void Search::cut_nodes() {
  std::vector<PlanId> cells;
  std::vector<Plan> plans;
  for (const Rank& node : take(Granularity::kNode, kCutAtOnce)) {
    PlanId id = node.id;
    const auto count = static_cast<int16_t>(region(id).space->activations.size());
    for (id.choice.activations = 0; id.choice.activations < count; ++id.choice.activations) {
      cells.push_back(id);
      plans.push_back(cell_plan(region(id), id.choice));
    }
  }
  layers_.prepare(plans, threads_);
  std::vector<Duration> times(cells.size());
  std::vector<std::vector<PlacePeak>> peaks(cells.size());
  parallel_for(cells.size(), threads_, [&](size_t i) {
    const LayerProfile& profile = layers_.of(plans[i]);
    times[i] = cell_time(model_, plans[i], profile, region(cells[i]).floor, usable_);
    peaks[i] = cell_memory(model_, plans[i], profile, usable_);
  });
  for (size_t i = 0; i < cells.size(); ++i) {
    if (excess_of(arenas_of(peaks[i])).count > 0) {
      infeasible_.refuse(plan(cells[i]), region(cells[i]).cell_size, peaks[i]);
    } else {
      queue_.push({{times[i], 0, cells[i]}, Granularity::kCell});
    }
  }
}

void Search::cut_cells() {
  const std::vector<Rank> cells = take(Granularity::kCell, kOpenedAtOnce);
  std::map<int32_t, std::vector<Choice>> by_region;
  std::vector<Rank> pipelines;
  for (const Rank& cell : cells) {
    if (region(cell.id).base.pipeline > 1) {
      pipelines.push_back(cell);
    } else {
      by_region[cell.id.region].push_back(cell.id.choice);
    }
  }
  bound_pipelines(pipelines);
  Tasks regions;
  for (const auto& [index, choices] : by_region) {
    Region& found = regions_[static_cast<size_t>(index)];
    if (found.bounds) continue;
    regions.push_back([this, &found] {
      found.bounds = std::make_unique<Bounds>(model_, found.base, *found.space, costs_);
    });
  }
  run_all(regions, threads_);
  Tasks profiles;
  for (const auto& [index, choices] : by_region) {
    regions_[static_cast<size_t>(index)].bounds->open(choices, profiles);
  }
  run_all(profiles, threads_);
  if (found_.empty() && probes_ < kMostProbes) {
    ++probes_;
    probe(cells.front());
  }
  for (const Rank& cell : cells) push_plans(cell);
}

void Search::bound_pipelines(const std::vector<Rank>& cells) {
  std::vector<PlanId> ids;
  for (const Rank& cell : cells) {
    const Region& found = region(cell.id);
    for (const Choice& choice : choices_of_cell(*found.space, found.base, cell.id.choice)) {
      const PlanId id{cell.id.region, choice};
      if (is_worth_bounding(plan(id))) {
        ids.push_back(id);
      } else {
        bound_[id] = cell.time;
      }
    }
  }
  std::vector<Duration> bounds(ids.size());
  parallel_for(ids.size(), threads_,
               [&](size_t i) { bounds[i] = pipeline_step_bound(model_, plan(ids[i]), costs_); });
  for (size_t i = 0; i < ids.size(); ++i) bound_[ids[i]] = bounds[i];
}

// Simulates a few plans of a cell ahead of their turn.
void Search::probe(const Rank& cell) {
  const Region& found = region(cell.id);
  std::vector<Rank> plans = plans_of(cell);
  std::sort(plans.begin(), plans.end());
  plans.resize(std::min(plans.size(), kPlansOfAProbe));
  if (found.bounds) {
    std::vector<Choice> choices;
    for (const Rank& each : plans) choices.push_back(each.id.choice);
    Tasks profiles;
    found.bounds->refine(choices, profiles);
    run_all(profiles, threads_);
    std::erase_if(plans, [&](const Rank& each) {
      return excess_of(found.bounds->least_memory(each.id.choice)).count > 0;
    });
    for (Rank& each : plans) each.time = found.bounds->step_time(each.id.choice);
    std::sort(plans.begin(), plans.end());
  }
  plans.resize(std::min(plans.size(), kSimulatedAtOnce));
  for (const Rank& each : plans) {
    bound_[each.id] = each.time;
    tried_.insert(each.id);
  }
  simulate_all(plans);
  report(cell.time);
}

// All plans of an opened cell, by the work of their halves or by their pipeline's blocks.
std::vector<Rank> Search::plans_of(const Rank& cell) const {
  const Region& found = region(cell.id);
  std::vector<Rank> plans;
  for (const Choice& choice : choices_of_cell(*found.space, found.base, cell.id.choice)) {
    const Duration own =
        found.bounds ? found.bounds->quick(choice) : bound_.at({cell.id.region, choice});
    plans.push_back(rank_of({cell.id.region, choice}, std::max(cell.time, own)));
  }
  return plans;
}

void Search::push_plans(const Rank& cell) {
  const Region& found = region(cell.id);
  for (const Rank& each : plans_of(cell)) {
    if (tried_.contains(each.id)) continue;
    if (!found.bounds) {
      push(each, Granularity::kBoundedPlan);
    } else if (!refuse_state(each.id)) {
      push(each, Granularity::kPlan);
    }
  }
}

// Of a cell's plans, those that keep more on the GPU than activations and gradients leave room for.
bool Search::refuse_state(const PlanId& id) {
  const PlacePeak peak = region(id).bounds->quick_memory(id.choice);
  if (peak.arena <= usable_[static_cast<size_t>(Place::kHbm)]) return false;
  infeasible_.refuse(plan(id), 1, {peak});
  return true;
}

// Gives the first plans their whole bounds, and refuses those that cannot fit.
void Search::bound_plans() {
  const std::vector<Rank> plans = take(Granularity::kPlan, kRefinedAtOnce);
  std::map<int32_t, std::vector<Choice>> by_region;
  for (const Rank& each : plans) by_region[each.id.region].push_back(each.id.choice);
  Tasks profiles;
  for (const auto& [index, choices] : by_region) {
    regions_[static_cast<size_t>(index)].bounds->refine(choices, profiles);
  }
  run_all(profiles, threads_);
  std::vector<Duration> bounds(plans.size());
  std::vector<uint8_t> fits(plans.size());
  parallel_for(plans.size(), threads_, [&](size_t i) {
    const PlanId& id = plans[i].id;
    const Bounds& least = *region(id).bounds;
    fits[i] = excess_of(least.least_memory(id.choice)).count == 0;
    bounds[i] = std::max(plans[i].time, least.step_time(id.choice));
  });
  for (size_t i = 0; i < plans.size(); ++i) {
    const PlanId& id = plans[i].id;
    if (fits[i] == 0) {
      infeasible_.refuse(plan(id), 1, region(id).bounds->memory(id.choice));
      continue;
    }
    push(rank_of(id, bounds[i]), Granularity::kBoundedPlan);
  }
}

// Keeps a plan that may still win.
void Search::push(const Rank& rank, Granularity granularity) {
  if (ruled_out(rank)) {
    dropped_ = dropped_ ? std::min(*dropped_, rank.time) : rank.time;
    return;
  }
  if (granularity == Granularity::kBoundedPlan) bound_[rank.id] = rank.time;
  queue_.push({rank, granularity});
}

// The first answer is waited for beyond a deadline.
std::vector<std::optional<Outcome>> Search::simulated(
    size_t count, const std::function<Outcome(size_t)>& simulate) {
  Round round = simulate_round(watch_, !found_.empty(), count, threads_, simulate);
  if (round.stop != SearchStop::kNone) result_.stop = round.stop;
  return std::move(round.outcomes);
}

// What a round that is cut short leaves waits in the queue.
void Search::simulate_all(const std::vector<Rank>& plans) {
  auto outcomes = simulated(plans.size(), [&](size_t i) { return evaluate(plans[i].id); });
  for (size_t i = 0; i < plans.size(); ++i) {
    if (outcomes[i]) {
      record(plans[i].id, *std::move(outcomes[i]));
    } else {
      queue_.push({plans[i], Granularity::kBoundedPlan});
    }
  }
}

void Search::simulate_plans() {
  const Duration bound = queue_.top().rank.time;
  const std::vector<Rank> plans = take(Granularity::kBoundedPlan, kSimulatedAtOnce);
  simulate_all(plans);
  report(bound);
}

// True if what has this bound cannot become the best.
bool Search::ruled_out(const Rank& rank) const {
  if (found_.empty()) return false;
  Rank best = found_.begin()->first;
  best.time = best.time * (1 - options_.tolerance);
  return rank > best;
}

Outcome Search::evaluate(const PlanId& id) const {
  if (!options_.estimates) return whole_step(id);
  Outcome outcome = estimate(model_, plan(id), region(id).space->memory_reuse, usable_, costs_);
  // Below what a step takes at least no line leads to it.
  const auto bound = bound_.find(id);
  const bool too_short =
      outcome.extrapolated && bound != bound_.end() && *outcome.step_time < bound->second;
  return too_short ? whole_step(id) : outcome;
}

std::optional<Outcome> Search::whole_step_unless_interrupted(const PlanId& id) {
  auto outcome = unless_stopped(options_.interrupted, [&] { return whole_step(id); });
  if (!outcome) result_.stop = SearchStop::kInterrupt;
  return outcome;
}

void Search::record(const PlanId& id, Outcome outcome) {
  if (!outcome.step_time) {
    Plan refused = plan(id);
    refused.memory_reuse = outcome.memory_reuse;
    infeasible_.refuse(refused, 1, outcome.peaks);
    return;
  }
  ++result_.simulated;
  const Rank rank = rank_of(id, *outcome.step_time);
  stalled_ = found_.empty() || rank < found_.begin()->first ? 0 : stalled_ + 1;
  found_.emplace(rank, std::move(outcome));
}

void Search::report(Duration bound) const {
  if (!options_.progress) return;
  SearchProgress progress{result_.considered, result_.simulated, {}, bound};
  if (!found_.empty()) progress.best = found_.begin()->first.time;
  options_.progress(progress);
}

Candidate Search::candidate(const Rank& rank) const {
  Candidate candidate = candidate_of(plan(rank.id), rank.time, found_.at(rank));
  if (const auto bound = bound_.find(rank.id); bound != bound_.end()) {
    candidate.bound = bound->second;
  }
  return candidate;
}

void Search::finish() {
  for (const auto& [rank, outcome] : found_) {
    if (result_.ranked.size() == std::max<size_t>(options_.ranked, 1)) break;
    result_.ranked.push_back(candidate(rank));
  }
  if (!result_.ranked.empty()) {
    result_.best = result_.ranked.front();
    const bool any_bound = !queue_.empty() || dropped_;
    Duration least = result_.best->step_time;
    if (dropped_) least = std::min(least, *dropped_);
    if (!queue_.empty()) least = std::min(least, queue_.top().rank.time);
    if (any_bound || result_.complete()) {
      result_.proven_within = 1 - least.seconds() / result_.best->step_time.seconds();
    }
  }
  result_.infeasible = infeasible_.count();
  const int64_t left = result_.considered - result_.simulated - result_.infeasible;
  result_.not_looked_at = result_.complete() ? 0 : filled_ ? undecided() : left;
  result_.bounded = left - result_.not_looked_at;
  result_.reasons = infeasible_.reasons();
  result_.seconds = watch_.seconds();
}

}  // namespace

SearchResult search(const Model& model, const SearchSpace& space, const Machine& machine,
                    const Measurements* measurements, const SearchOptions& options) {
  CHECK(!space.layouts.empty());
  Search search(model, machine, measurements, space.layouts.front(), options);
  const int threads = options.threads > 0 ? options.threads : hardware_threads();
  const std::vector<SharedSpace> spaces =
      shared_spaces(model, space.layouts, space.open, threads, options.interrupted);
  for (size_t i = 0; i < spaces.size(); ++i) {
    search.add(space.layouts[i], spaces[i].space, spaces[i].cell_size);
  }
  for (const Plan& start : options.starts) search.start_with(start);
  return search.run();
}

SearchResult search(const Model& model, const Plan& base, const Space& space,
                    const Machine& machine, const Measurements* measurements,
                    const SearchOptions& options) {
  Search search(model, machine, measurements, base, options);
  search.add(base, std::make_shared<const Space>(space),
             static_cast<int64_t>(choices_of_cell(space, base, {}).size()));
  return search.run();
}

}  // namespace ballast
