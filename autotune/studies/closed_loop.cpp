#include "autotune/studies/closed_loop.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "autotune/studies/explain.h"
#include "sim/base/error.h"
#include "sim/base/median.h"
#include "sim/base/parallel.h"
#include "sim/engine/cost.h"

namespace ballast {
namespace {

// Spans agree to a few parts in a thousand after two or three rounds, or never will.
constexpr int kMostCorrections = 6;
constexpr double kLeastMisfitGain = 1e-4;  // of the misfit

// The middle half of the recorded steps by their period. Means over them add up to the median step,
// which medians of single operations do not, and leave out the step in which something else ran.
std::set<int32_t> typical_steps(const Timeline& timeline) {
  std::map<int32_t, Instant> ends;
  for (const Span& span : timeline.spans) {
    Instant& end = ends[span.step];
    end = std::max(end, span.end);
  }
  std::vector<std::pair<Duration, int32_t>> periods;
  for (auto at = ends.begin(); at != ends.end(); ++at) {
    if (at == ends.begin() && ends.size() > 1) continue;  // its period began unseen
    const Duration period = at == ends.begin() ? Duration{} : at->second - std::prev(at)->second;
    periods.emplace_back(period, at->first);
  }
  std::sort(periods.begin(), periods.end());
  const size_t left_out = periods.size() / 4;
  std::set<int32_t> steps;
  for (size_t i = left_out; i < periods.size() - left_out; ++i) steps.insert(periods[i].second);
  return steps;
}

bool costs_something(const Op& op) { return !std::holds_alternative<std::monostate>(op.work); }

// A key does not name the kernel: what is known of Adam is of the best one.
bool is_refitted(const Op& op, const Plan& plan) {
  const bool steps = op.kind == OpKind::kAdam || op.kind == OpKind::kUndo;
  return costs_something(op) && (!steps || plan.optimizer.adam == "best");
}

// One cost key over all runs that have it.
struct KeySums {
  Op op;
  Duration alone;
  double count = 0;
  double measured_s = 0;
  std::vector<double> ratios;  // measured to simulated, of each run
  // Of the runs the median: one that was disturbed by other work does not count.
  double ratio() const { return median(ratios); }
};
using Sums = std::map<std::string, KeySums>;

class Refitter {
 public:
  explicit Refitter(const RefitRequest& request) : request_(request) {}

  Refit run() {
    Refit result;
    result.knowledge = request_.knowledge;
    Sums sums = simulate(result.knowledge);
    result.misfit_before = result.misfit_after = misfit(sums);
    for (int round = 0; round < kMostCorrections; ++round) {
      Knowledge next = scaled(result.knowledge, sums);
      Sums after = simulate(next);
      if (misfit(after) > result.misfit_after - kLeastMisfitGain) break;
      result.knowledge = std::move(next);
      sums = std::move(after);
      result.misfit_after = misfit(sums);
    }
    for (const auto& [key, measurement] : result.knowledge.timed) {
      if (!request_.knowledge.timed.contains(key)) result.added.emplace(key, measurement);
    }
    result.changed = changes_of(request_.knowledge.corrections, result.knowledge.corrections);
    return result;
  }

 private:
  Sums simulate(const Knowledge& knowledge) const {
    const Measurements measurements = corrected(knowledge.timed, knowledge.corrections);
    Sums sums;
    for (const PlanRun& run : request_.runs) {
      const Prediction prediction =
          predict(request_.model, run.plan, request_.machine, &measurements);
      CHECK(prediction.fits);
      add(run, prediction, sums);
    }
    return sums;
  }

  static void add(const PlanRun& run, const Prediction& prediction, Sums& sums) {
    const OperationSpans spans = operation_spans(prediction.graph, prediction.timeline);
    std::set<std::string> seen;
    for (size_t i = 0; i < prediction.graph.step.ops.size(); ++i) {
      const Op& op = prediction.graph.step.ops[i];
      if (!is_refitted(op, run.plan)) continue;
      const std::string key = cost_key(op);
      const auto simulated = spans.find(key);
      const auto measured = run.operations.find(key);
      if (simulated == spans.end() || measured == run.operations.end()) continue;
      if (simulated->second.mean.ps <= 0 || measured->second.mean.ps <= 0) continue;
      if (!seen.insert(key).second) continue;
      const double spent = measured->second.mean.seconds();
      const auto count = static_cast<double>(simulated->second.count);
      KeySums& sum = sums[key];
      sum.op = op;
      sum.alone = prediction.costs.ops[i].alone;
      sum.count += count;
      sum.measured_s += count * spent;
      sum.ratios.push_back(spent / simulated->second.mean.seconds());
    }
  }

  static double misfit(const Sums& sums) {
    double off = 0;
    double all = 0;
    for (const auto& [key, sum] : sums) {
      off += std::abs(1 / sum.ratio() - 1) * sum.measured_s;
      all += sum.measured_s;
    }
    return all > 0 ? off / all : 0;
  }

  // Every operation that ran gets a factor of its own, and its group the mean factor of those that
  // had been timed, by time.
  Knowledge scaled(Knowledge knowledge, const Sums& sums) const {
    struct Group {
      double timed_s = 0;
      double corrected_s = 0;
    };
    std::map<std::string, Group> groups;
    for (const auto& [key, sum] : sums) {
      const Duration alone = sum.alone * sum.ratio();
      const auto timed = request_.knowledge.timed.find(key);
      if (timed == request_.knowledge.timed.end() || timed->second.median.ps <= 0) {
        knowledge.timed[key] = measurement_of(sum.op, {alone, {}});
        knowledge.corrections.operations[key] = 1;
        continue;
      }
      const double timed_s = timed->second.median.seconds();
      knowledge.corrections.operations[key] = alone.seconds() / timed_s;
      Group& group = groups[timed->second.group];
      group.timed_s += sum.count * timed_s;
      group.corrected_s += sum.count * alone.seconds();
    }
    for (const auto& [name, group] : groups) {
      if (!name.empty()) knowledge.corrections.groups[name] = group.corrected_s / group.timed_s;
    }
    return knowledge;
  }

  const RefitRequest& request_;
};

class Loop {
 public:
  Loop(MeasureRequest request, const MeasureHooks& hooks)
      : request_(std::move(request)),
        hooks_(hooks),
        waiting_(std::move(request_.candidates)),
        measurements_(corrected(request_.knowledge.timed, request_.knowledge.corrections)) {}

  MeasureResult run() {
    for (PlanRun& known : request_.known) {
      leave_out(known.plan);
      runs_.push_back(std::move(known));
    }
    const size_t known = runs_.size();
    if (known > 0) learn();
    bool interrupted = false;
    while (static_cast<int64_t>(runs_.size()) < request_.plans && !waiting_.empty()) {
      interrupted = !run_next();
      if (interrupted) break;
      learn();
    }
    MeasureResult result = ranked(known);
    result.interrupted = interrupted;
    return result;
  }

 private:
  void leave_out(const Plan& plan) {
    std::erase_if(waiting_, [&](const Candidate& candidate) { return candidate.plan == plan; });
  }

  bool run_next() {
    const Plan plan = waiting_[next()].plan;
    const Prediction prediction = predict(request_.model, plan, request_.machine, &measurements_);
    std::optional<PlanRun> run = hooks_.run(plan, prediction);
    if (!run) return false;
    CHECK(run->step_time.ps > 0);
    run->plan = plan;
    run->predicted = prediction.step_time;
    runs_.push_back(*std::move(run));
    leave_out(plan);
    return true;
  }

  // Of the candidates that wait, by index.
  size_t next() const {
    Duration least = waiting_.front().step_time;
    for (const Candidate& candidate : waiting_) least = std::min(least, candidate.step_time);
    const Duration tied = least * (1 + request_.tie_share);
    std::optional<size_t> chosen;
    size_t most_new = 0;
    for (size_t i = 0; i < waiting_.size(); ++i) {
      if (waiting_[i].step_time > tied) continue;
      const size_t is_new = knobs_from_nearest_run(waiting_[i].plan);
      if (chosen && is_new <= most_new) continue;
      chosen = i;
      most_new = is_new;
    }
    return *chosen;
  }

  // In how many knobs a plan differs from the run that is most like it.
  size_t knobs_from_nearest_run(const Plan& plan) const {
    std::optional<size_t> least;
    for (const PlanRun& run : runs_) {
      const size_t knobs = differing_knobs(plan, run.plan).size();
      if (!least || knobs < *least) least = knobs;
    }
    return least.value_or(0);
  }

  void learn() {
    Refit fitted = refit({request_.model, request_.machine, request_.knowledge, runs_});
    misfit_ = fitted.misfit_after;
    if (fitted.added.empty() && fitted.changed.empty()) return;
    if (hooks_.refitted) hooks_.refitted(fitted);
    request_.knowledge = std::move(fitted.knowledge);
    measurements_ = corrected(request_.knowledge.timed, request_.knowledge.corrections);
    predict_again();
  }

  void predict_again() {
    parallel_for(waiting_.size(), hardware_threads(), [&](size_t i) {
      Candidate& candidate = waiting_[i];
      candidate.step_time =
          predict(request_.model, candidate.plan, request_.machine, &measurements_).step_time;
      candidate.tokens_per_s =
          static_cast<double>(candidate.plan.tokens_per_step()) / candidate.step_time.seconds();
    });
  }

  MeasureResult ranked(size_t known) {
    MeasureResult result;
    for (size_t i = 0; i < runs_.size(); ++i) {
      const Prediction prediction =
          predict(request_.model, runs_[i].plan, request_.machine, &measurements_);
      MeasuredPlan& measured = result.measured.emplace_back();
      measured.run = std::move(runs_[i]);
      measured.predicted_after = prediction.step_time;
      for (const PlacePeak& peak : prediction.peaks) {
        measured.predicted_memory[static_cast<size_t>(peak.place)] = peak.arena;
      }
      measured.known = i < known;
    }
    std::stable_sort(result.measured.begin(), result.measured.end(),
                     [](const MeasuredPlan& a, const MeasuredPlan& b) {
                       return a.run.step_time < b.run.step_time;
                     });
    result.others = std::move(waiting_);
    std::stable_sort(
        result.others.begin(), result.others.end(),
        [](const Candidate& a, const Candidate& b) { return a.step_time < b.step_time; });
    result.measurements = std::move(measurements_);
    result.misfit = misfit_;
    return result;
  }

  MeasureRequest request_;
  const MeasureHooks& hooks_;
  std::vector<PlanRun> runs_;       // known ones first
  std::vector<Candidate> waiting_;  // in the order of the request
  Measurements measurements_;       // what the knowledge comes to
  double misfit_ = 0;
};

}  // namespace

OperationSpans operation_spans(const Graph& graph, const Timeline& timeline) {
  const std::set<int32_t> steps = typical_steps(timeline);
  OperationSpans spans;
  for (const Span& span : timeline.spans) {
    const Op& op = graph.step.ops[static_cast<size_t>(span.op)];
    if (!costs_something(op) || !steps.contains(span.step)) continue;
    OperationSpan& sum = spans[cost_key(op)];
    sum.mean += span.end - span.begin;
    ++sum.count;
  }
  for (auto& [key, span] : spans) {
    span.mean.ps /= span.count;
    span.count = div_ceil(span.count, static_cast<int64_t>(steps.size()));
  }
  return spans;
}

Refit refit(const RefitRequest& request) { return Refitter(request).run(); }

MeasureResult measure(MeasureRequest request, const MeasureHooks& hooks) {
  CHECK(request.plans >= 1 && hooks.run);
  return Loop(std::move(request), hooks).run();
}

}  // namespace ballast
