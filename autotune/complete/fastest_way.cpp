#include "autotune/complete/fastest_way.h"

#include <algorithm>
#include <future>
#include <iterator>
#include <limits>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "autotune/complete/completion_lists.h"
#include "autotune/complete/estimates/completion_bounds.h"
#include "autotune/complete/gpu_buckets.h"
#include "sim/base/error.h"
#include "sim/engine/predict.h"

namespace ballast {
namespace {

// Weights that flow and promise no more than this share of a step less than the best stay: what
// they add to every step is sure.
constexpr double kLeastGainOfFlow = 0.003;

using Fastest = std::optional<TimedPlan>;

// Whether a plan fits with one of these kinds of attention: then predict() takes that one.
bool fits_with_any(const std::vector<AttentionKind>& kinds, const Setting& setting,
                   const Plan& plan, CompletionEstimates& known) {
  return std::any_of(kinds.begin(), kinds.end(), [&](AttentionKind kind) {
    return shortfalls(known.peaks(setting, {plan, kind}), setting.machine).empty();
  });
}

// Looks for the fastest completion of a list, all of one kind of attention, from the one that
// promises most on.
class FastestCompletion {
 public:
  // `groups`: as ways_of() has them. `preferred`: kinds of attention that a plan has instead where
  // it fits with them. All references must outlive this object.
  // `limit`: completions that promise no less are left alone.
  FastestCompletion(const Setting& setting, std::span<const std::vector<Completion>> groups,
                    const std::vector<AttentionKind>& preferred, std::optional<Duration> limit,
                    CompletionEstimates& known)
      : setting_(setting),
        preferred_(preferred),
        limit_(limit),
        known_(known),
        fitting_(groups.size(), kAll) {
    std::vector<const Completion*> completions;
    for (size_t g = 0; g < groups.size(); ++g) {
      for (size_t i = 0; i < groups[g].size(); ++i) {
        order_.push_back({&groups[g][i], g, i, completions.size(), {}});
        completions.push_back(&groups[g][i]);
      }
    }
    const std::vector<CompletionBound> bounds = completion_bounds(setting, completions);
    for (Candidate& one : order_) one.bound = bounds[one.rank];
    // Weights that flow come last: of the same plan with weights that stay is told what they gain.
    // Where nothing else tells them apart, as where all wait for the host, most buckets on the GPU
    // come first.
    const auto key = [](const Candidate& one) {
      const int64_t on_gpu = one.completion->plan.optimizer.gpu_buckets.value_or(0);
      return std::tuple(one.flows(), one.bound.at_least, -on_gpu);
    };
    std::stable_sort(order_.begin(), order_.end(),
                     [&](const Candidate& a, const Candidate& b) { return key(a) < key(b); });
  }

  // While one is looked at the next that it says nothing about is timed, beside it where a thread
  // is free, and whatever is found meanwhile.
  Fastest run(const std::function<bool()>& interrupted) {
    for (auto one = order_.begin(); one != order_.end(); ++one) {
      if (interrupted && interrupted()) break;
      if (!is_asked(*one)) continue;
      std::future<void> timed;
      if (!one->is_timed && last_fits_) {
        const auto other = std::find_if(std::next(one), order_.end(), [&](const Candidate& next) {
          // Of its own kind only where it would leave a thread idle: it may tell what the next
          // does.
          const bool waits = is_alike(next, *one) && is_timed_by_two(*one->completion);
          return !next.is_timed && !waits && is_asked(next) && !is_known_without_graph(next);
        });
        if (other != order_.end()) {
          timed = known_.begin_timing(setting_, *other->completion);
          other->is_timed = true;
        }
      }
      look_at(*one);
      if (timed.valid()) timed.get();
    }
    return std::move(best_);
  }

 private:
  struct Candidate {
    const Completion* completion = nullptr;
    size_t group = 0, index = 0;  // in the group
    size_t rank = 0;              // of two that are as fast the first is taken
    CompletionBound bound;
    bool is_timed = false;

    bool flows() const { return completion->plan.weights.flow_share.value_or(0) > 0; }
  };
  static constexpr size_t kAll = std::numeric_limits<size_t>::max();

  static bool is_alike(const Candidate& a, const Candidate& b) {
    return a.group == b.group || has_more_on_gpu(*a.completion, *b.completion) ||
           has_more_on_gpu(*b.completion, *a.completion);
  }

  bool is_asked(const Candidate& one) const {
    return one.index < fitting_[one.group] && may_win(one) &&
           known_.promises().may_use_room(*one.completion);
  }

  bool may_win(const Candidate& one) const {
    const Duration promised = known_.promises().at_least(*one.completion);
    const Duration least = std::max(one.bound.at_least, promised);
    const double share = one.flows() ? 1 - kLeastGainOfFlow : 1;
    if (best_ && least.seconds() > share * best_->step_time.seconds()) return false;
    return !(limit_ && least >= *limit_);
  }

  // Than one that lacks memory of the GPU.
  bool is_fuller(const Completion& completion) const {
    return std::any_of(too_full_.begin(), too_full_.end(), [&](const Completion* other) {
      return has_more_on_gpu(completion, *other);
    });
  }

  // Copies to a step that fits without them.
  bool only_adds(const Completion& completion) const {
    return completion.plan.accumulation() >= kFlowOnlyAdds &&
           std::any_of(staying_.begin(), staying_.end(),
                       [&](const Completion* other) { return flows_more(completion, *other); });
  }

  bool is_known_without_graph(const Candidate& one) const {
    return one.bound.overfills || only_adds(*one.completion) || is_fuller(*one.completion);
  }

  void look_at(const Candidate& one) {
    const Completion& completion = *one.completion;
    if (only_adds(completion)) return;
    if (is_fuller(completion)) {
      fitting_[one.group] = one.index;
      return;
    }
    if (one.bound.overfills) {
      refuse(one, one.bound.overfills_gpu);
      return;
    }
    last_fits_ = false;
    try {
      const std::optional<Duration> time = known_.step_time_if_fits(setting_, completion);
      last_fits_ = time.has_value();
      if (!time) {
        refuse(one, known_.gpu_excess(setting_, completion).count > 0);
        return;
      }
      if (completion.plan.weights.flow_share == 0.0) staying_.push_back(&completion);
      const bool is_first = one.rank < best_rank_;
      if (best_ && (*time > best_->step_time || (*time == best_->step_time && !is_first))) {
        return;
      }
      if (fits_with_any(preferred_, setting_, completion.plan, known_)) return;
      best_ = TimedPlan{completion.plan, *time};
      best_rank_ = one.rank;
    } catch (const Error&) {
      // The graph knows no such plan.
    }
  }

  // Whether they differ in nothing but that weights flow.
  static bool flows_more(const Completion& completion, const Completion& staying) {
    if (*completion.plan.weights.flow_share <= *staying.plan.weights.flow_share) return false;
    if (completion.plan.optimizer.gpu_buckets != staying.plan.optimizer.gpu_buckets) return false;
    Completion flowing = staying;
    flowing.plan.weights.flow_share = completion.plan.weights.flow_share;
    return completion == flowing;
  }

  void refuse(const Candidate& one, bool lacks_gpu_memory) {
    fitting_[one.group] = one.index;
    if (lacks_gpu_memory) too_full_.push_back(one.completion);
  }

  const Setting& setting_;
  const std::vector<AttentionKind>& preferred_;
  std::optional<Duration> limit_;
  CompletionEstimates& known_;
  std::vector<Candidate> order_;
  std::vector<size_t> fitting_;              // by group: how many of its completions may fit
  std::vector<const Completion*> too_full_;  // on the GPU
  std::vector<const Completion*> staying_;   // those that fit, whose weights stay
  bool last_fits_ = false;
  Fastest best_;
  size_t best_rank_ = kAll;
};

// Kinds of attention come in the order of preference: the first with a completion that fits is
// taken.
Fastest fastest_of(const Setting& setting, const std::vector<std::vector<Completion>>& groups,
                   const Wanted& wanted, CompletionEstimates& known) {
  std::vector<AttentionKind> preferred;
  for (auto begin = groups.begin(); begin != groups.end();) {
    const AttentionKind kind = begin->front().attention;
    const auto end = std::find_if(begin, groups.end(), [&](const std::vector<Completion>& group) {
      return group.front().attention != kind;
    });
    Fastest best = FastestCompletion(setting, {begin, end}, preferred, wanted.limit, known)
                       .run(wanted.interrupted);
    if (wanted.between) {
      std::vector<const Completion*> completions;
      for (auto group = begin; group != end; ++group) {
        for (const Completion& completion : *group) completions.push_back(&completion);
      }
      std::optional<Duration> limit = wanted.limit;
      if (best && (!limit || best->step_time < *limit)) limit = best->step_time;
      Fastest between = faster_gpu_buckets(setting, completions, limit, known, wanted.interrupted);
      if (between && !fits_with_any(preferred, setting, between->plan, known)) {
        best = std::move(between);
      }
    }
    if (best) return best;
    preferred.push_back(kind);
    begin = end;
  }
  return {};
}

// Between stages of a pipeline what leaves by module is a strategy of its own.
bool may_offload_all(const Setting& setting) {
  return setting.stack.facts.offloads_activations && setting.plan.pipeline == 1;
}

}  // namespace

std::optional<TimedPlan> fastest_way(const Setting& setting, const Wanted& wanted,
                                     CompletionEstimates& known) {
  CaseSetup setup = setup_of(setting);
  Fastest best = fastest_of(setting, completions_of(setup), wanted, known);
  if (setting.plan.activations) return best;
  const auto try_with = [&](const ActivationPlan& offload) {
    setup.published.plan.activations = offload;
    Wanted faster = wanted;
    if (best && (!faster.limit || best->step_time < *faster.limit)) faster.limit = best->step_time;
    Fastest one = fastest_of(setting, completions_of(setup), faster, known);
    if (one && (!best || one->step_time < best->step_time)) best = std::move(one);
  };
  if (may_offload_all(setting)) try_with(all_away());
  if (best && !wanted.between) return best;
  for (const ActivationPlan& offload : offloads()) try_with(offload);
  return best;
}

bool may_be_faster(const Setting& setting, Duration limit) {
  CaseSetup setup = setup_of(setting);
  const auto any_below_limit = [&] {
    std::vector<Completion> all;
    for (std::vector<Completion>& group : completions_of(setup)) {
      std::move(group.begin(), group.end(), std::back_inserter(all));
    }
    std::vector<const Completion*> completions;
    for (const Completion& one : all) completions.push_back(&one);
    const std::vector<CompletionBound> bounds = completion_bounds(setting, completions);
    return std::any_of(bounds.begin(), bounds.end(),
                       [&](const CompletionBound& bound) { return bound.at_least < limit; });
  };
  if (any_below_limit()) return true;
  if (setting.plan.activations) return false;
  std::vector<ActivationPlan> all_offloads = offloads();
  if (may_offload_all(setting)) all_offloads.push_back(all_away());
  return std::any_of(all_offloads.begin(), all_offloads.end(), [&](const ActivationPlan& offload) {
    setup.published.plan.activations = offload;
    return any_below_limit();
  });
}

}  // namespace ballast
