#include "autotune/search.h"

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <queue>
#include <tuple>

#include "autotune/bound.h"
#include "autotune/parallel.h"
#include "sim/engine/cost.h"
#include "sim/engine/engine.h"
#include "sim/engine/predict.h"
#include "sim/graph/build.h"

namespace ballast {
namespace {

// Plans handled between two looks at the best, whatever the number of threads.
constexpr size_t kRefinedAtOnce = 512;
constexpr size_t kSimulatedAtOnce = 8;
constexpr double kCompleteWithin = 0.01;

using Clock = std::chrono::steady_clock;

// What simulating or bounding one choice gave.
struct Outcome {
  std::optional<Duration> step_time;  // empty: it does not fit
  std::array<Bytes, kPlaces> memory{};
  std::vector<PlacePeak> peaks;  // where it does not fit
};

// The order of results: time, then fewer moving parts, then the order of choices.
struct Rank {
  Duration time;
  int parts = 0;
  size_t index = 0;
  auto operator<=>(const Rank&) const = default;
};

// A choice in the queue, known by a bound so far.
struct Entry {
  Rank rank;
  bool refined = false;
};
struct Later {
  bool operator()(const Entry& a, const Entry& b) const { return a.rank > b.rank; }
};

class Search {
 public:
  Search(const Model& model, const Plan& base, const Space& space, const Machine& machine,
         const Measurements* measurements, const SearchOptions& options)
      : model_(model),
        base_(base),
        space_(space),
        machine_(machine),
        options_(options),
        threads_(options.threads > 0 ? options.threads : hardware_threads()),
        costs_(machine, measurements, base.optimizer.adam),
        choices_(choices_of(space, base)),
        bound_(choices_.size()) {
    result_.considered = static_cast<int64_t>(choices_.size());
    usable_[static_cast<size_t>(Place::kHbm)] =
        machine.gpu.memory.value - machine.gpu.reserved.value;
    usable_[static_cast<size_t>(Place::kDram)] =
        machine.cpu.memory.value - machine.cpu.reserved.value;
  }

  SearchResult run();

 private:
  Plan plan(size_t index) const { return plan_of(space_, base_, choices_[index]); }
  Rank rank_of(size_t index, Duration time) const {
    return {time, moving_parts(plan(index)), index};
  }
  bool late() const { return options_.deadline_s && seconds() > *options_.deadline_s; }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  void enumerate_all();
  void branch_and_bound();
  void fill_queue(const Bounds& bounds);
  void refine(const Bounds& bounds);
  void simulate_round();
  bool ruled_out(const Rank& rank) const;
  Bytes excess_of(const std::array<Bytes, kPlaces>& memory) const;
  Outcome evaluate(size_t index) const;
  void record(size_t index, Outcome outcome);
  void refuse(size_t index, const std::vector<PlacePeak>& peaks);
  void report(Duration bound) const;
  void finish();
  Candidate candidate(const Rank& rank) const;

  const Model& model_;
  const Plan& base_;
  const Space& space_;
  const Machine& machine_;
  const SearchOptions& options_;
  const int threads_;
  const CostModel costs_;
  const std::vector<Choice> choices_;
  std::vector<Duration> bound_;  // by choice
  std::array<Bytes, kPlaces> usable_{};
  const Clock::time_point begin_ = Clock::now();

  std::priority_queue<Entry, std::vector<Entry>, Later> queue_;
  std::map<Rank, std::array<Bytes, kPlaces>> found_;  // those that fit, best first
  std::map<std::string, InfeasibleReason> reasons_;
  SearchResult result_;
};

SearchResult Search::run() {
  if (base_.devices > machine_.devices) {
    InfeasibleReason& reason = reasons_["devices"];
    reason.reason = "devices";
    reason.count = result_.considered;
    reason.example = plan(0);
    reason.detail =
        fmt::format("the plan uses {} devices, and machine {} has {}; use fewer devices",
                    base_.devices, machine_.name, machine_.devices);
    result_.infeasible = result_.considered;
  } else if (options_.exhaustive) {
    enumerate_all();
  } else {
    branch_and_bound();
  }
  finish();
  return std::move(result_);
}

void Search::enumerate_all() {
  for (size_t begin = 0; begin < choices_.size() && !late(); begin += kRefinedAtOnce) {
    const size_t count = std::min(kRefinedAtOnce, choices_.size() - begin);
    std::vector<Outcome> outcomes(count);
    parallel_for(count, threads_, [&](size_t i) { outcomes[i] = evaluate(begin + i); });
    for (size_t i = 0; i < count; ++i) record(begin + i, std::move(outcomes[i]));
    report({});
  }
  result_.complete = result_.simulated + result_.infeasible == result_.considered;
}

void Search::branch_and_bound() {
  const Bounds bounds(model_, base_, space_, costs_, threads_);
  fill_queue(bounds);
  while (!queue_.empty()) {
    const Entry& next = queue_.top();
    if (ruled_out(next.rank)) break;
    if (late()) {
      result_.complete = false;
      break;
    }
    if (next.refined) {
      simulate_round();
    } else {
      refine(bounds);
    }
  }
  result_.bounded = static_cast<int64_t>(queue_.size());
}

// Everything that may fit, by its quick bound.
void Search::fill_queue(const Bounds& bounds) {
  std::vector<uint8_t> fits(choices_.size());
  parallel_for(choices_.size(), threads_, [&](size_t i) {
    fits[i] = excess_of(bounds.least_memory(choices_[i])).count == 0;
    bound_[i] = bounds.quick(choices_[i]);
  });
  std::vector<Entry> entries;
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (fits[i] != 0) {
      entries.push_back({rank_of(i, bound_[i]), false});
    } else {
      refuse(i, bounds.memory(choices_[i]));
    }
  }
  queue_ = decltype(queue_)(Later{}, std::move(entries));
}

// True if what has this bound cannot become the best.
bool Search::ruled_out(const Rank& rank) const {
  if (found_.empty()) return false;
  Rank best = found_.begin()->first;
  best.time = best.time * (1 - options_.tolerance);
  return rank > best;
}

// Gives the first of the queue their whole bounds.
void Search::refine(const Bounds& bounds) {
  std::vector<size_t> indices;
  while (!queue_.empty() && !queue_.top().refined && indices.size() < kRefinedAtOnce &&
         !ruled_out(queue_.top().rank)) {
    indices.push_back(queue_.top().rank.index);
    queue_.pop();
  }
  parallel_for(indices.size(), threads_,
               [&](size_t i) { bound_[indices[i]] = bounds.step_time(choices_[indices[i]]); });
  for (const size_t index : indices) queue_.push({rank_of(index, bound_[index]), true});
}

void Search::simulate_round() {
  std::vector<size_t> indices;
  const Duration bound = queue_.top().rank.time;
  while (!queue_.empty() && queue_.top().refined && indices.size() < kSimulatedAtOnce &&
         !ruled_out(queue_.top().rank)) {
    indices.push_back(queue_.top().rank.index);
    queue_.pop();
  }
  std::vector<Outcome> outcomes(indices.size());
  parallel_for(indices.size(), threads_, [&](size_t i) { outcomes[i] = evaluate(indices[i]); });
  for (size_t i = 0; i < indices.size(); ++i) record(indices[i], std::move(outcomes[i]));
  report(bound);
}

Bytes Search::excess_of(const std::array<Bytes, kPlaces>& memory) const {
  Bytes excess;
  for (size_t p = 0; p < kPlaces; ++p) excess = std::max(excess, memory[p] - usable_[p]);
  return excess;
}

Outcome Search::evaluate(size_t index) const {
  const Graph graph = build(model_, plan(index));
  Outcome outcome;
  outcome.memory = graph.arenas.size;
  if (excess_of(outcome.memory).count > 0) {
    outcome.peaks = memory_peaks(graph);
    return outcome;
  }
  const SimulateOptions options{.record_steps = 1};
  outcome.step_time =
      simulate(graph.step, graph, costs_.table(graph.step, graph), options).step_time;
  return outcome;
}

void Search::record(size_t index, Outcome outcome) {
  if (!outcome.step_time) {
    refuse(index, outcome.peaks);
    return;
  }
  ++result_.simulated;
  found_.emplace(rank_of(index, *outcome.step_time), outcome.memory);
}

// Books a plan under the first memory that it overfills and what fills that most.
void Search::refuse(size_t index, const std::vector<PlacePeak>& peaks) {
  ++result_.infeasible;
  for (const PlacePeak& peak : peaks) {
    const Bytes excess = peak.arena - usable_[static_cast<size_t>(peak.place)];
    if (excess.count <= 0) continue;
    static constexpr std::string_view kNames[] = {"GPU memory", "CPU memory", "NVMe"};
    std::string name(kNames[static_cast<size_t>(peak.place)]);
    if (!peak.holders.empty()) {
      name += fmt::format(", mostly {}", to_string(peak.holders.front().category));
    }
    InfeasibleReason& reason = reasons_[name];
    reason.reason = name;
    if (reason.count++ == 0 || excess < reason.excess) {
      reason.excess = excess;
      reason.example = plan(index);
      reason.detail = reason_not_to_fit(peaks, reason.example, machine_);
    }
    return;
  }
}

void Search::report(Duration bound) const {
  if (!options_.progress) return;
  SearchProgress progress;
  progress.considered = result_.considered;
  progress.simulated = result_.simulated;
  if (!found_.empty()) progress.best = found_.begin()->first.time;
  progress.bound = bound;
  options_.progress(progress);
}

Candidate Search::candidate(const Rank& rank) const {
  Candidate candidate;
  candidate.plan = plan(rank.index);
  candidate.activations =
      space_.activations[static_cast<size_t>(choices_[rank.index].activations)].name;
  candidate.step_time = rank.time;
  candidate.tokens_per_s = static_cast<double>(base_.tokens_per_step()) / rank.time.seconds();
  candidate.memory = found_.at(rank);
  candidate.bound = bound_[rank.index];
  return candidate;
}

void Search::finish() {
  for (const auto& [rank, memory] : found_) {
    if (result_.ranked.size() == std::max<size_t>(options_.ranked, 1)) break;
    result_.ranked.push_back(candidate(rank));
  }
  if (!result_.ranked.empty()) {
    result_.best = result_.ranked.front();
    const double best = result_.best->step_time.seconds();
    if (!queue_.empty()) {
      result_.proven_within = std::max(0.0, 1 - queue_.top().rank.time.seconds() / best);
    }
  }
  for (auto& [name, reason] : reasons_) result_.reasons.push_back(std::move(reason));
  std::stable_sort(
      result_.reasons.begin(), result_.reasons.end(),
      [](const InfeasibleReason& a, const InfeasibleReason& b) { return a.count > b.count; });
  result_.seconds = seconds();
}

}  // namespace

SearchResult search(const Model& model, const Plan& base, const Space& space,
                    const Machine& machine, const Measurements* measurements,
                    const SearchOptions& options) {
  return Search(model, base, space, machine, measurements, options).run();
}

bool has_auto(const Plan& plan) {
  return !plan.micro_batch || !plan.activations || !plan.optimizer.gpu_buckets ||
         !plan.weights.flow_share;
}

Plan complete(const Model& model, const Plan& plan, const Machine& machine,
              const Measurements* measurements) {
  if (!has_auto(plan)) return plan;
  SearchOptions options;
  options.tolerance = kCompleteWithin;
  const Space space = space_of(model, plan, Freedom{});
  const SearchResult result = search(model, plan, space, machine, measurements, options);
  if (result.best) return result.best->plan;
  CHECK(!result.reasons.empty());
  const InfeasibleReason& reason = result.reasons.front();
  throw Error(
      fmt::format("no plan fits machine {}", machine.name),
      fmt::format("of {} plans the nearest fails by this: {}", result.considered, reason.detail),
      "use a larger machine, more devices, a smaller model or a shorter sequence");
}

}  // namespace ballast
