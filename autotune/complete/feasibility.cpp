#include "autotune/complete/feasibility.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "autotune/complete/completion_lists.h"
#include "autotune/complete/estimates/completion_bounds.h"
#include "autotune/complete/estimates/emptiest_plans.h"
#include "autotune/space/memory_reuse.h"
#include "sim/base/error.h"
#include "sim/base/parallel.h"
#include "sim/engine/predict.h"
#include "sim/graph/build.h"

namespace ballast {
namespace {

// Layouts of each sort whose lean plans are placed where none fits, to find the nearest of them.
constexpr size_t kMostLeanLayouts = 2;
// Plans that are placed of a layout whose lean ones miss by little.
constexpr size_t kMostPlaced = 8;

// What a verdict lacks, summed over the memories.
Bytes excess_of(const Verdict& verdict, const Machine& machine) {
  Bytes excess;
  for (const Shortfall& one : shortfalls(verdict.peaks, machine)) excess += one.lacking();
  return excess;
}

Verdict verdict_of(const Setting& setting, const Completion& completion,
                   CompletionEstimates& known) {
  Verdict verdict;
  verdict.plan = completion.plan;
  verdict.peaks = known.peaks(setting, completion);
  verdict.reason = reason_not_to_fit(verdict.peaks, completion.plan, setting.machine);
  verdict.fits = verdict.reason.empty();
  return verdict;
}

std::string too_many_devices(const Setting& setting) {
  return fmt::format("the plan uses {} devices, and machine {} has {}; use fewer devices",
                     setting.plan.devices, setting.machine.name, setting.machine.devices);
}

// The first completions of a list that differ in nothing but ever more buckets that the GPU steps.
std::span<const Completion> first_run(std::span<const Completion> completions) {
  size_t end = 1;
  while (end < completions.size() && has_more_on_gpu(completions[end], completions[end - 1])) ++end;
  return completions.first(end);
}

// Of sequences in parts a completion's graph has many times the operations of that of its bound,
// which is asked first.
std::vector<Completion> without_overfilling(const Setting& setting,
                                            std::vector<Completion> completions) {
  if (setting.plan.subsequences == 1) return completions;
  std::vector<const Completion*> all;
  for (const Completion& completion : completions) all.push_back(&completion);
  const std::vector<CompletionBound> bounds = completion_bounds(setting, all);
  size_t next = 0;
  std::erase_if(completions, [&](const Completion&) { return bounds[next++].overfills; });
  return completions;
}

// What is asked of completions that differ in the buckets on the GPU: the one that fits or misses
// by least, or only whether one fits. Then the count is asked about at which one memory just lacks
// some: what the other one lacks there it lacks on all machines that have more or less of it alone,
// so the memory is taken that stays the same.
enum class Ask : uint8_t { kNearest, kFitsByCpu, kFitsByGpu };

// Collects what does not fit until something does: that, or else what misses by least.
class NearestCompletion {
 public:
  NearestCompletion(const Setting& setting, CompletionEstimates& known, Ask ask = Ask::kNearest)
      : setting_(setting), known_(known), ask_(ask) {}

  // True where the completion fits.
  bool offer(const Completion& completion) { return outcome_of(completion).fits; }
  bool offer(std::span<const Completion> completions) {
    while (!completions.empty()) {
      const std::span<const Completion> run = first_run(completions);
      if (offer_run(run)) return true;
      completions = completions.subspan(run.size());
    }
    return false;
  }
  // The same, then with memory reused at once.
  bool offer_with_reuses(const std::vector<Completion>& completions) {
    return any_reuse_fits(memory_reuses(setting_.plan, setting_.stack), [&](auto reuse) {
      std::vector<Completion> reusing = completions;
      for (Completion& completion : reusing) completion.plan.memory_reuse = reuse;
      return offer(reusing);
    });
  }
  // Throws Error where no completion could be built.
  Verdict take() {
    if (verdict_) return *std::move(verdict_);
    throw Error("model " + setting_.model.name, "none of its plans can be built: " + refusal_,
                "name other degrees or knobs");
  }

 private:
  struct Outcome {
    bool fits = false;
    // Beyond what is usable, negative where there is room; 0 where the completion cannot be built.
    Bytes gpu, other;

    bool lacks_gpu() const { return gpu.count > 0; }
    bool lacks_other() const { return other.count > 0; }
  };

  Outcome outcome_of(const Completion& completion) {
    Outcome outcome;
    try {
      Verdict verdict = verdict_of(setting_, completion, known_);
      outcome.other = Bytes{std::numeric_limits<int64_t>::min()};
      for (const PlacePeak& peak : verdict.peaks) {
        // Of NVMe that is not used there is just enough, whether there is any or not.
        if (peak.place == Place::kNvme && peak.arena.count == 0) continue;
        const Bytes beyond = peak.arena - usable(setting_.machine, peak.place);
        Bytes& most = peak.place == Place::kHbm ? outcome.gpu : outcome.other;
        most = peak.place == Place::kHbm ? beyond : std::max(most, beyond);
      }
      outcome.fits = verdict.fits;
      const Bytes excess = excess_of(verdict, setting_.machine);
      if (verdict.fits || !verdict_ || excess < excess_) {
        excess_ = excess;
        verdict_ = std::move(verdict);
      }
    } catch (const Error& error) {
      if (refusal_.empty()) refusal_ = error.what();
    }
    return outcome;
  }

  // More buckets on the GPU need no less there, and no more elsewhere: where the fewest are too
  // many, or the most too few, none fits; else those that fit lie between, on the list or not.
  bool offer_run(std::span<const Completion> run) {
    const Outcome fewest = outcome_of(run.front());
    if (fewest.fits || fewest.lacks_gpu() || run.size() == 1) return fewest.fits;
    // Lists may end beyond the buckets that there are: of more no more is on the GPU.
    const int64_t all = most_gpu_buckets(setup_of(setting_), run.back().plan.zero_stage);
    Completion last = run.back();
    const int64_t listed = *last.plan.optimizer.gpu_buckets;
    last.plan.optimizer.gpu_buckets = std::min(listed, all);
    Outcome most = outcome_of(last);
    if (most.lacks_other() && !most.lacks_gpu() && listed < all &&
        *last.plan.weights.flow_share > 0) {
      // A list of what flows ends with half of the buckets, for of all of them none would flow.
      last.plan.optimizer.gpu_buckets = std::min(2 * listed - 1, all);
      most = outcome_of(last);
    }
    if (most.fits || most.lacks_other()) return most.fits;
    return offer_between(run.front(), fewest, last, most);
  }

  // Numbers of buckets on the GPU: with `too_few` the CPU lacks memory, with `too_many` the GPU.
  struct Bracket {
    int64_t too_few, too_many;
    Outcome at_few, at_many;

    int64_t width() const { return too_many - too_few; }
    // The next count to ask about, were needs as even as buckets are: where both memories would
    // just be enough; or, where none is, where one of them is short by a few buckets.
    double next(Ask ask) const {
      const double by_gpu = share_at_zero(at_few.gpu, at_many.gpu);
      const double by_cpu = share_at_zero(at_few.other, at_many.other);
      if (ask == Ask::kNearest || by_cpu < by_gpu) return (by_gpu + by_cpu) / 2;
      constexpr double kShort = 1.0 / 256;
      return ask == Ask::kFitsByCpu ? by_cpu - kShort : by_gpu + kShort;
    }
    static double share_at_zero(Bytes begin, Bytes end) {
      const double change = static_cast<double>(begin.count) - static_cast<double>(end.count);
      return change == 0 ? 0.5 : static_cast<double>(begin.count) / change;
    }
  };

  // Asks about so many buckets. Tells whether any number of them fits once that is known.
  std::optional<bool> narrow(Bracket& bracket, Completion completion, int64_t buckets) {
    completion.plan.optimizer.gpu_buckets = buckets;
    const Outcome outcome = outcome_of(completion);
    if (outcome.fits || (outcome.lacks_gpu() && outcome.lacks_other())) return outcome.fits;
    if (outcome.lacks_gpu()) {
      bracket.too_many = buckets;
      bracket.at_many = outcome;
    } else {
      bracket.too_few = buckets;
      bracket.at_few = outcome;
    }
    return std::nullopt;
  }

  // What `few` lacks on the CPU and `many` on the GPU, buckets between may have. What machines of
  // other memories were asked about is known already. Then asks where it would just fit, then the
  // middle of what is left, and so on: where needs are uneven the first alone may move one end by a
  // bucket at a time.
  bool offer_between(const Completion& few, Outcome at_few, const Completion& many,
                     Outcome at_many) {
    Bracket bracket{*few.plan.optimizer.gpu_buckets, *many.plan.optimizer.gpu_buckets, at_few,
                    at_many};
    for (const int64_t known :
         known_.known_gpu_buckets(setting_, few, bracket.too_few, bracket.too_many)) {
      if (known >= bracket.too_many) break;
      if (const std::optional<bool> told = narrow(bracket, few, known)) return *told;
    }
    for (bool halves = false; bracket.width() > 1; halves = !halves) {
      const double share = halves ? 0.5 : bracket.next(ask_);
      const auto buckets = static_cast<double>(bracket.width());
      const int64_t between = std::clamp<int64_t>(bracket.too_few + std::llround(share * buckets),
                                                  bracket.too_few + 1, bracket.too_many - 1);
      if (const std::optional<bool> told = narrow(bracket, few, between)) return *told;
    }
    return false;
  }

  const Setting& setting_;
  CompletionEstimates& known_;
  Ask ask_;
  std::optional<Verdict> verdict_;
  Bytes excess_;
  std::string refusal_;
};

// One of these completions that fits, or the nearest. Throws Error where none could be built.
Verdict verdict_of_completions(const Setting& setting, const std::vector<Completion>& completions,
                               CompletionEstimates& known, Ask ask = Ask::kNearest) {
  NearestCompletion nearest(setting, known, ask);
  nearest.offer_with_reuses(completions);
  return nearest.take();
}

// Places the plans that need least by their bounds, which lean ones need not be.
void offer_emptiest(const Setting& setting, const CompletionEstimates& known,
                    NearestCompletion& nearest) {
  const AttentionKind attention = setting.stack.facts.attention.front();
  for (const Plan& plan : emptiest_plans(setting, known, kMostPlaced)) {
    if (nearest.offer_with_reuses({Completion{plan, attention}})) return;
  }
}

// Of one layout: its lean plans, then those that bounds say are emptiest; refuted(): whether bounds
// say that none fits.
template <class Refuted>
Verdict verdict_of_layout(const Setting& setting, CompletionEstimates& known,
                          const Refuted& refuted) {
  const std::vector<Completion> lean = lean_completions(setting);
  if (setting.plan.devices > setting.machine.devices) {
    return {false, lean.front().plan, too_many_devices(setting), {}};
  }
  NearestCompletion nearest(setting, known);
  if (nearest.offer_with_reuses(lean) || !has_auto(setting.plan)) return nearest.take();
  if (refuted()) return nearest.take();
  if (setting.stack.memory_is_planned()) offer_emptiest(setting, known, nearest);
  return nearest.take();
}

// Of a refuted layout one kind of plan is example enough: the one that needs least.
Verdict leanest_verdict(Setting setting, CompletionEstimates& known) {
  if (!setting.plan.activations) setting.plan.activations = offloads().front();
  return verdict_of_completions(setting, lean_completions(setting), known);
}

// Whether another plan of the layout may fit where its lean ones miss by so little. Without planned
// memory a plan needs what is alive at its peak, and no other has less of it.
bool may_fit_otherwise(const Setting& setting, const Verdict& verdict) {
  if (!setting.stack.memory_is_planned()) return false;
  const Machine& machine = setting.machine;
  const Bytes smaller = std::min(usable(machine, Place::kHbm), usable(machine, Place::kDram));
  return excess_of(verdict, machine).count <= smaller.count / 8;
}

bool is_emptier(const OpenLayout& one, const OpenLayout& other) {
  return one.fullness < other.fullness;
}

// What lacks least on the machine that was asked about needs least of a larger one, too.
bool needs_less(const OpenLayout& one, const OpenLayout& other) {
  if (one.asked_excess != other.asked_excess) return one.asked_excess < other.asked_excess;
  return is_emptier(one, other);
}

// The emptiest of these layouts, and those that lack least; of each strategy one, for bounds of one
// may be much lower than another's.
std::vector<const OpenLayout*> likely_nearest(const std::vector<OpenLayout>& layouts) {
  std::vector<const OpenLayout*> all;
  for (const OpenLayout& layout : layouts) all.push_back(&layout);
  std::vector<const OpenLayout*> found;
  for (const auto& comes_first : {is_emptier, needs_less}) {
    std::stable_sort(all.begin(), all.end(),
                     [&](const auto* one, const auto* other) { return comes_first(*one, *other); });
    std::set<std::string> strategies;
    for (size_t i = 0; i < all.size(); ++i) {
      const bool is_first = strategies.insert(all[i]->setting.plan.strategy).second;
      if (i >= kMostLeanLayouts && !is_first) continue;
      if (std::find(found.begin(), found.end(), all[i]) == found.end()) found.push_back(all[i]);
    }
  }
  return found;
}

// Lean plans of the layouts that no bound refutes, one layout after the other.
class LeanLayouts {
 public:
  LeanLayouts(const std::vector<OpenLayout>& layouts, CompletionEstimates& known, Ask ask)
      : known_(known), ask_(ask) {
    for (const OpenLayout& layout : layouts) {
      if (!is_refuted(layout)) by_need_.push_back(&layout);
    }
    // What needs least is the likeliest to fit.
    std::stable_sort(by_need_.begin(), by_need_.end(),
                     [](const auto* one, const auto* other) { return needs_less(*one, *other); });
  }

  std::optional<Nearest> fitting(const std::function<bool()>& interrupted) {
    const auto at_once = static_cast<size_t>(hardware_threads());
    size_t count = 1;  // mostly that one fits, and a second graph would be built for nothing
    for (size_t begin = 0; begin < by_need_.size(); begin += count) {
      if (interrupted && interrupted()) break;
      // The first that fits counts, however many are asked about at once.
      if (begin > 0) count = std::min(at_once, by_need_.size() - begin);
      std::vector<std::optional<Verdict>> verdicts(count);
      parallel_for(count, hardware_threads(),
                   [&](size_t i) { verdicts[i] = verdict_of_lean(*by_need_[begin + i]); });
      for (size_t i = 0; i < count; ++i) {
        const OpenLayout* layout = by_need_[begin + i];
        if (!verdicts[i]) continue;
        if (verdicts[i]->fits) return Nearest{layout->setting, *std::move(verdicts[i])};
        if (close_ == nullptr && may_fit_otherwise(layout->setting, *verdicts[i])) close_ = layout;
      }
    }
    return std::nullopt;
  }
  // Where none fitted: of the layouts that missed by little the one that needs least, or null.
  const OpenLayout* close() const { return close_; }

 private:
  std::optional<Verdict> verdict_of_lean(const OpenLayout& layout) const {
    try {
      const std::vector<Completion> completions =
          without_overfilling(layout.setting, completions_to_ask(layout));
      if (completions.empty()) return std::nullopt;
      const bool planned = layout.setting.stack.memory_is_planned();
      if (!planned && !least_may_fit(layout.setting)) return std::nullopt;
      return verdict_of_completions(layout.setting, completions, known_,
                                    planned ? Ask::kNearest : ask_);
    } catch (const Error&) {
      return std::nullopt;  // the graph knows no such plan
    }
  }

  // A single micro-batch of a sequence needs no more than any number of larger ones: where it does
  // not fit, which is the same for every batch, nothing else is asked.
  bool least_may_fit(Setting setting) const {
    Plan& plan = setting.plan;
    if (plan.pipeline > 1) return true;
    const int64_t least = plan.data * plan.micro_batch.value_or(1);
    if (plan.global_batch == least) return true;
    plan.global_batch = least;
    return verdict_of_completions(setting, lean_completions(setting), known_, ask_).fits;
  }

  // Where memory is planned, how much the others miss by tells whether to look further.
  static std::vector<Completion> completions_to_ask(const OpenLayout& layout) {
    std::vector<Completion> completions = lean_completions(layout.setting);
    if (layout.setting.stack.memory_is_planned()) return completions;
    std::erase_if(completions, [&](const Completion& completion) {
      return std::any_of(layout.refuted.begin(), layout.refuted.end(), [&](const auto& cell) {
        return cell.first == *completion.plan.micro_batch &&
               cell.second == *completion.plan.activations;
      });
    });
    return completions;
  }

  CompletionEstimates& known_;
  Ask ask_;
  std::vector<const OpenLayout*> by_need_;
  const OpenLayout* close_ = nullptr;
};

}  // namespace

std::string of_plans_tried(const std::string& reason) {
  if (reason.empty()) return reason;
  return reason.substr(0, reason.find(';')) +
         "; of the plans tried for the open knobs this one comes nearest";
}

std::optional<Verdict> fitting_lean_verdict(const Setting& setting, CompletionEstimates& known) {
  const std::vector<Completion> lean = without_overfilling(setting, lean_completions(setting));
  if (lean.empty()) return std::nullopt;
  Verdict verdict = verdict_of_completions(setting, lean, known);
  if (!verdict.fits) return std::nullopt;
  return verdict;
}

std::optional<Nearest> fitting_lean_layout(const std::vector<OpenLayout>& layouts,
                                           CompletionEstimates& known,
                                           const std::function<bool()>& interrupted) {
  LeanLayouts lean(layouts, known, Ask::kFitsByCpu);
  return lean.fitting(interrupted);
}

namespace {

std::optional<Nearest> fitting_layout_by(Ask ask, const std::vector<OpenLayout>& layouts,
                                         CompletionEstimates& known) {
  LeanLayouts lean(layouts, known, ask);
  if (std::optional<Nearest> fitting = lean.fitting({})) return fitting;
  if (const OpenLayout* layout = lean.close()) {
    Verdict verdict = verdict_of_layout(layout->setting, known, [] { return false; });
    if (verdict.fits) return Nearest{layout->setting, std::move(verdict)};
  }
  return std::nullopt;
}

}  // namespace

std::optional<Nearest> fitting_layout(const std::vector<OpenLayout>& layouts,
                                      CompletionEstimates& known) {
  return fitting_layout_by(Ask::kFitsByCpu, layouts, known);
}

Nearest nearest_layout(const std::vector<OpenLayout>& layouts, CompletionEstimates& known) {
  const std::vector<const OpenLayout*> likely = likely_nearest(layouts);
  std::vector<std::optional<Verdict>> lean(likely.size());
  parallel_for(likely.size(), hardware_threads(), [&](size_t i) {
    try {
      lean[i] = leanest_verdict(likely[i]->setting, known);
    } catch (const Error&) {
      // The graph knows no such plan.
    }
  });
  const OpenLayout* nearest = nullptr;
  std::optional<Verdict> verdict;
  Bytes least;
  for (size_t i = 0; i < likely.size(); ++i) {
    if (!lean[i]) continue;
    const Bytes excess = excess_of(*lean[i], likely[i]->setting.machine);
    if (verdict && excess >= least) continue;
    nearest = likely[i];
    verdict = std::move(lean[i]);
    least = excess;
  }
  if (verdict) return {nearest->setting, *std::move(verdict)};
  const OpenLayout& first = *likely.front();
  return {first.setting,
          verdict_of_layout(first.setting, known, [&] { return is_refuted(first); })};
}

Feasibility::Feasibility(Setting setting)
    : Feasibility(std::move(setting), std::make_shared<CompletionEstimates>()) {}

Feasibility::Feasibility(Setting setting, std::shared_ptr<CompletionEstimates> known)
    : setting_(std::move(setting)), known_(std::move(known)) {}

std::vector<OpenLayout> Feasibility::layouts_on(const Machine& machine) {
  if (!bounds_) bounds_.emplace(setting_, *known_);
  return bounds_->on(machine);
}

bool Feasibility::asks_one_layout() const {
  return !setting_.has_open_layout() || setting_.plan.devices > setting_.machine.devices;
}

Verdict Feasibility::of_one_layout(const Machine& machine) {
  Setting one = setting_;
  one.machine = machine;
  return verdict_of_layout(one, *known_, [&] { return is_refuted(layouts_on(machine).front()); });
}

Verdict Feasibility::on(const Machine& machine) {
  Verdict verdict = asks_one_layout() ? of_one_layout(machine) : of_all_layouts(machine);
  const bool open = setting_.has_open_layout() || has_auto(setting_.plan);
  if (open && !verdict.peaks.empty()) verdict.reason = of_plans_tried(verdict.reason);
  return verdict;
}

Verdict Feasibility::of_all_layouts(const Machine& machine) {
  const std::vector<OpenLayout> layouts = layouts_on(machine);
  std::optional<Nearest> fitting = fitting_layout(layouts, *known_);
  return fitting ? std::move(fitting->verdict) : nearest_layout(layouts, *known_).verdict;
}

std::optional<Verdict> Feasibility::fitting_on(const Machine& machine) {
  if (!asks_one_layout()) {
    const bool same_cpu = machine.cpu.memory.value == setting_.machine.cpu.memory.value;
    std::optional<Nearest> fitting = fitting_layout_by(same_cpu ? Ask::kFitsByCpu : Ask::kFitsByGpu,
                                                       layouts_on(machine), *known_);
    if (!fitting) return std::nullopt;
    return std::move(fitting->verdict);
  }
  Verdict verdict = of_one_layout(machine);
  if (!verdict.fits) return std::nullopt;
  return verdict;
}

Verdict feasibility(const Setting& setting) { return Feasibility(setting).on(setting.machine); }

namespace {

// How many layouts are judged before any lean plan of them is placed.
constexpr size_t kFirstJudged = 8;

// Layouts that are judged soonest first: those of few parts. Of these what is spread most holds
// least.
std::vector<Plan> cheapest_first(std::vector<Plan> layouts) {
  std::reverse(layouts.begin(), layouts.end());  // which begin with those that are spread least
  std::stable_sort(layouts.begin(), layouts.end(),
                   [](const Plan& a, const Plan& b) { return a.subsequences < b.subsequences; });
  return layouts;
}

}  // namespace

Verdict fits_at_all(const Setting& setting, const std::function<bool()>& interrupted) {
  const auto known = std::make_shared<CompletionEstimates>();
  known->stop_when(interrupted);
  const bool one = setting.open.empty() || setting.plan.devices > setting.machine.devices;
  if (one || !setting.others.empty()) return Feasibility(setting, known).on(setting.machine);
  const std::vector<Plan> layouts = cheapest_first(legal_layouts(setting));
  // A few, then twice as many: where nothing fits all are judged, and little was done in vain.
  size_t count = kFirstJudged;
  for (size_t begin = 0; begin < layouts.size(); begin += count, count *= 2) {
    const size_t end = std::min(layouts.size(), begin + count);
    const auto at = [&](size_t i) { return layouts.begin() + static_cast<std::ptrdiff_t>(i); };
    const std::vector<OpenLayout> judged =
        judged_layouts(setting, {at(begin), at(end)}, nullptr, interrupted);
    if (std::optional<Nearest> found = fitting_lean_layout(judged, *known, interrupted)) {
      return std::move(found->verdict);
    }
  }
  return Feasibility(setting, known).on(setting.machine);
}

}  // namespace ballast
