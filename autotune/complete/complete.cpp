#include "autotune/complete/complete.h"

#include <algorithm>

#include "autotune/complete/feasibility.h"
#include "autotune/complete/open_layouts.h"
#include "autotune/complete/way_lists.h"
#include "autotune/search/search.h"
#include "autotune/space/memory_reuse.h"
#include "sim/base/error.h"
#include "sim/base/parallel.h"

namespace ballast {
namespace {

// Layouts that are completed side by side, whatever the number of threads; and how many that fit
// may be no better than the best before the rest, which promise less, are left alone.
constexpr size_t kLayoutsAtOnce = 4;
constexpr int kPatience = 6;

SearchOptions completing() {
  SearchOptions options;
  options.tolerance = 0.01;
  // Where memory is contended, bounds are too low to prove a best that was found at once.
  options.patience = 256;
  options.estimates = true;
  return options;
}

// The plans that open knobs leave; where none fits, those that reuse memory at once.
SearchResult search_open(const Setting& setting, const Measurements* measurements,
                         const SearchOptions& options) {
  SearchResult result;
  any_reuse_fits(memory_reuses(setting.plan, setting.stack), [&](auto reuse) {
    OpenKnobs open;
    open.set(KnobId::kMemoryReuse, reuse != setting.plan.memory_reuse);
    result = search(setting.model, setting.plan, space_of(setting.model, setting.plan, open),
                    setting.machine, measurements, options);
    return result.best || !result.complete();
  });
  return result;
}

// The reason whose example misses by least, which is the one that a reader can do most about.
const InfeasibleReason& nearest_miss(const std::vector<InfeasibleReason>& reasons) {
  CHECK(!reasons.empty());
  return *std::min_element(
      reasons.begin(), reasons.end(),
      [](const InfeasibleReason& a, const InfeasibleReason& b) { return a.excess < b.excess; });
}

Plan searched(const Setting& setting, const Measurements* measurements,
              const std::function<bool()>& interrupted) {
  SearchOptions options = completing();
  options.interrupted = interrupted;
  const SearchResult found = search_open(setting, measurements, options);
  if (found.best) return found.best->plan;
  if (found.stop == SearchStop::kInterrupt) {
    throw Error("the knobs that are \"auto\"", "the search of them was interrupted", "ask again");
  }
  // The search may end, out of patience, before it meets a plan that fits; one that memory alone
  // was asked of is then better than the nearest that does not.
  const Verdict possible = feasibility(setting);
  return possible.fits ? possible.plan : nearest_miss(found.reasons).example;
}

// As it is, or with memory reused at once where only that fits.
Completed predict_reusing(Setting setting, const Measurements* measurements) {
  std::optional<MemoryReuse> kept;
  Prediction prediction;
  Plan& plan = setting.plan;
  bool first = true;
  any_reuse_fits(memory_reuses(plan, setting.stack), [&](auto reuse) {
    plan.memory_reuse = reuse;
    Prediction one = predict(setting.model, plan, setting.machine, setting.stack, measurements);
    const bool fits = one.fits;
    if (first || fits) {
      kept = reuse;
      prediction = std::move(one);
    }
    first = false;
    return fits || plan.devices > setting.machine.devices;
  });
  plan.memory_reuse = kept.value_or(MemoryReuse::kApart);
  return {std::move(setting), std::move(prediction)};
}

// A setting of one layout.
Completed complete_layout(Setting setting, const Measurements* measurements,
                          const std::function<bool()>& interrupted) {
  const bool devices_exist = setting.plan.devices <= setting.machine.devices;
  if (has_auto(setting.plan) && !is_searched(setting.plan, setting.stack)) {
    setting.plan = choose(setting);
  } else if (has_auto(setting.plan) && devices_exist) {
    setting.plan = searched(setting, measurements, interrupted);
  }
  return predict_reusing(std::move(setting), measurements);
}

// Completes the layouts of a setting, by short steps and a few at a time, from the most promising
// on; then the best of them as it is.
class LayoutChooser {
 public:
  LayoutChooser(const std::vector<OpenLayout>& layouts, const Measurements* measurements,
                const std::function<bool()>& interrupted)
      : layouts_(layouts), measurements_(measurements), interrupted_(interrupted) {}

  Completed run() {
    look();
    if (best_) return whole();
    if (is_interrupted()) {
      throw Error("what the plan leaves open", "its choice was interrupted", "ask again");
    }
    Nearest nearest = nearest_layout(layouts_);
    if (nearest.verdict.fits) {
      return complete_layout(std::move(nearest.setting), measurements_, interrupted_);
    }
    nearest.setting.plan = nearest.verdict.plan;
    return predict_reusing(std::move(nearest.setting), measurements_);
  }

  // The best of what was looked at, as far as short steps tell.
  std::optional<Plan> first() {
    look();
    if (!best_) return std::nullopt;
    return best_->setting.plan;
  }

 private:
  void look() {
    size_t next = 0;
    while (next < layouts_.size() && may_win(layouts_[next]) && !is_interrupted()) {
      const size_t begin = next;
      while (next < layouts_.size() && next - begin < kLayoutsAtOnce && may_win(layouts_[next])) {
        ++next;
      }
      complete(begin, next);
    }
  }

  bool is_interrupted() const { return interrupted_ && interrupted_(); }

  bool may_win(const OpenLayout& layout) const {
    if (is_refuted(layout)) return false;
    if (!best_) return true;
    return stalled_ < kPatience && layout.at_least < best_->prediction.step_time;
  }

  // The plan that is best for a short step, with the whole one.
  std::optional<Completed> quick(const Setting& setting) const {
    const Setting shorter = with_short_step(setting);
    if (!lean_verdict(shorter).fits) return std::nullopt;
    Setting chosen = complete_layout(shorter, measurements_, interrupted_).setting;
    chosen.plan.global_batch = setting.plan.global_batch;
    return predict_reusing(std::move(chosen), measurements_);
  }

  void complete(size_t begin, size_t end) {
    std::vector<std::optional<Completed>> done(end - begin);
    parallel_for(done.size(), hardware_threads(), [&](size_t i) {
      try {
        done[i] = quick(layouts_[begin + i].setting);
      } catch (const Error&) {
        // The graph knows no such plan, or the search of its knobs was interrupted.
      }
    });
    for (size_t i = 0; i < done.size(); ++i) {
      if (!done[i] || !done[i]->prediction.fits) continue;
      const bool better =
          !best_ || done[i]->prediction.step_time < best_->prediction.step_time;
      stalled_ = better ? 0 : stalled_ + 1;
      if (!better) continue;
      best_ = std::move(done[i]);
      best_layout_ = begin + i;
    }
  }

  // The best layout's best plan, which in a whole step may be another.
  Completed whole() {
    const Setting& setting = layouts_[best_layout_].setting;
    if (with_short_step(setting).plan == setting.plan) return *std::move(best_);
    Completed completed = complete_layout(setting, measurements_, interrupted_);
    const bool better = completed.prediction.fits &&
                        completed.prediction.step_time <= best_->prediction.step_time;
    return better ? std::move(completed) : *std::move(best_);
  }

  const std::vector<OpenLayout>& layouts_;
  const Measurements* measurements_;
  const std::function<bool()>& interrupted_;
  std::optional<Completed> best_;
  size_t best_layout_ = 0;
  int stalled_ = 0;
};

}  // namespace

Completed complete(Setting setting, const Measurements* measurements,
                   const std::function<bool()>& interrupted) {
  const bool by_search = is_searched(setting.plan, setting.stack);
  const bool settled = !setting.has_open_layout() && (by_search || !has_auto(setting.plan));
  const bool devices_exist = setting.plan.devices <= setting.machine.devices;
  if (!devices_exist) check(setting.plan, setting.model);
  if (settled || !devices_exist) {
    return complete_layout(std::move(setting), measurements, interrupted);
  }
  std::vector<OpenLayout> layouts = open_layouts(setting, measurements);
  if (layouts.size() == 1 && !is_refuted(layouts.front())) {
    return complete_layout(std::move(layouts.front().setting), measurements, interrupted);
  }
  return LayoutChooser(layouts, measurements, interrupted).run();
}

std::optional<Plan> first_plan(const Setting& like, const std::vector<Plan>& layouts,
                               const Measurements* measurements,
                               const std::function<bool()>& interrupted) {
  const std::vector<OpenLayout> judged = judged_layouts(like, layouts, measurements);
  return LayoutChooser(judged, measurements, interrupted).first();
}

Plan choose(const Setting& setting) {
  if (setting.plan.devices > setting.machine.devices) return feasibility(setting).plan;
  CaseSetup setup = setup_of(setting);
  CasePrediction best = predict_case(setup, setup.stack.constants);
  if (!best.fits && !setting.plan.activations) {
    for (const ActivationPlan& offload : offloads()) {
      setup.of.plan.activations = offload;
      CasePrediction one = predict_case(setup, setup.stack.constants);
      const bool better = one.fits && (!best.fits || one.step_time < best.step_time);
      if (better) best = std::move(one);
    }
  }
  return best.fits ? best.way.plan : feasibility(setting).plan;
}

}  // namespace ballast
