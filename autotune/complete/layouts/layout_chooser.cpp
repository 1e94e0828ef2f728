#include "autotune/complete/layouts/layout_chooser.h"

#include <algorithm>

#include "autotune/complete/fastest_way.h"
#include "autotune/complete/feasibility.h"
#include "autotune/search/evaluate.h"
#include "autotune/space/memory_reuse.h"
#include "sim/base/error.h"
#include "sim/base/parallel.h"

namespace ballast {
namespace {

// Layouts that are chosen by the same knowledge of the others; of them, those that are completed
// side by side with the same limit, whatever the number of threads; and, where only promising ones
// are asked for, how many that fit may be no better than the best before the rest is left alone.
constexpr size_t kLayoutsAtOnce = 4;
constexpr size_t kLayoutsSideBySide = 2;
constexpr int kStalledLayouts = 6;
// Layouts that are asked about more closely: those that take so many times as long as the best at
// most. Where the CPU steps buckets, how many the GPU steps is sought, which takes the longest.
constexpr double kNearTheBest = 1.1;
constexpr size_t kMostNear = 2;
// Where the GPU steps all, offloaded activations alone are asked about.
constexpr double kNearTheBestOnGpu = 1.25;
constexpr size_t kMostNearOnGpu = 8;

// About how many operations the graph of a pipeline has, in as many micro-batches as stages: a turn
// of each chunk for each of them and, where the CPU steps the buckets, in every turn each bucket of
// the stage, whose gradient goes there and is added up.
int64_t operations_of(const OpenLayout& layout) {
  const Plan& plan = layout.setting.plan;
  if (plan.pipeline == 1) return 0;
  const int64_t turns = plan.pipeline * plan.pipeline * plan.virtual_pipeline;
  if (plan.optimizer.placement == OptimizerPlacement::kGpu) return turns;
  const int64_t of_stage = parameter_count(layout.setting.model) / (plan.tensor * plan.pipeline);
  return turns * (1 + of_stage * size_of(DType::kF32) / plan.optimizer.bucket_bytes.count);
}

// Whether its completion is a search of its own, and how large its graphs are.
std::pair<bool, int64_t> effort_of(const OpenLayout& layout) {
  const Setting& setting = layout.setting;
  return {has_auto(setting.plan) && is_searched(setting.plan, setting.stack),
          operations_of(layout)};
}

}  // namespace

LayoutChooser::LayoutChooser(const std::vector<OpenLayout>& layouts,
                             const Measurements* measurements,
                             const std::function<bool()>& interrupted, LayoutLook how)
    : layouts_(layouts),
      measurements_(measurements),
      interrupted_(interrupted),
      how_(std::move(how)),
      order_(layouts, how_.reach),
      fates_(layouts.size(), Fate::kOpen) {}

Completed LayoutChooser::run() {
  look();
  look_between();
  while (best_ != nullptr) {
    Completed completed = whole();
    if (completed.prediction.fits) return completed;
    drop_best();
  }
  if (is_interrupted()) {
    throw Error("what the plan leaves open", "its choice was interrupted", "ask again");
  }
  return nearest();
}

Completed LayoutChooser::nearest() {
  if (std::optional<Nearest> fitting = fitting_layout(layouts_, known_)) {
    return complete_layout(std::move(fitting->setting), measurements_, interrupted_);
  }
  Nearest nearest = nearest_layout(layouts_, known_);
  nearest.setting.plan = nearest.verdict.plan;
  return predict_reusing(std::move(nearest.setting), measurements_);
}

std::optional<Plan> LayoutChooser::lean() {
  std::optional<Nearest> fitting = fitting_lean_layout(layouts_, known_, interrupted_);
  if (!fitting) return std::nullopt;
  return std::move(fitting->verdict.plan);
}

std::optional<Plan> LayoutChooser::first() {
  look();
  look_between();
  if (best_ == nullptr) return std::nullopt;
  return best_->setting.plan;
}

std::vector<LayoutChooser::Estimate> LayoutChooser::look_at_all() {
  look();
  if (!how_.any_is_enough) look_between();
  std::vector<Estimate> all;
  for (const auto& one : estimates_) all.push_back(*one);
  std::stable_sort(all.begin(), all.end(),
                   [](const Estimate& a, const Estimate& b) { return a.step_time < b.step_time; });
  // Of a layout whose buckets were asked about more closely there are two.
  std::vector<Estimate> fastest;
  for (Estimate& one : all) {
    const auto is_of_it = [&](const Estimate& known) { return known.layout == one.layout; };
    if (std::none_of(fastest.begin(), fastest.end(), is_of_it)) fastest.push_back(std::move(one));
  }
  return fastest;
}

void LayoutChooser::drop(size_t layout) {
  std::erase_if(estimates_, [&](const auto& one) { return one->layout == layout; });
  choose_best();
  fates_[layout] = Fate::kUnfit;
  for (size_t i = 0; i < fates_.size(); ++i) {
    if (fates_[i] != Fate::kSlower) continue;
    fates_[i] = Fate::kOpen;
    order_.give_back(i);
  }
}

bool LayoutChooser::is_left(size_t layout) const {
  return fates_[layout] == Fate::kOpen && order_.may_win(layout, limit());
}

int64_t LayoutChooser::left() const {
  int64_t count = 0;
  for (size_t i = 0; i < layouts_.size(); ++i) count += is_left(i);
  return count;
}

std::optional<Duration> LayoutChooser::best() const {
  return best_ != nullptr ? std::optional(best_->step_time) : std::nullopt;
}

std::optional<Duration> LayoutChooser::limit() const {
  if (best_ == nullptr || how_.within == 1) return best();
  return best_->step_time * how_.within;
}

void LayoutChooser::look() {
  const bool all = how_.reach == LayoutReach::kAll;
  bool is_first = true;
  while ((all || stalled_ < kStalledLayouts) && !is_interrupted()) {
    // At first one of each kind, so that none of them waits for pipelines of another.
    std::vector<size_t> next = order_.take(is_first ? 2 * kLayoutsAtOnce : kLayoutsAtOnce, limit());
    if (next.empty()) return;
    // What is found soonest comes first, and at first alone, for its time is a limit for all
    // others, of which most then end at once: pipelines of many chunks take the largest graphs.
    std::stable_sort(next.begin(), next.end(), [&](size_t one, size_t other) {
      return effort_of(layouts_[one]) < effort_of(layouts_[other]);
    });
    size_t most = is_first ? 1 : kLayoutsSideBySide;
    for (size_t begin = 0; begin < next.size() && !is_interrupted();) {
      const size_t end = std::min(next.size(), begin + most);
      complete({next.data() + begin, next.data() + end});
      if (how_.looked) {
        how_.looked(
            {std::ssize(layouts_), std::ssize(layouts_) - count_of(Fate::kOpen), left(), best()});
      }
      if (how_.any_is_enough && best_ != nullptr) return;
      begin = end;
      most = kLayoutsSideBySide;
    }
    is_first = false;
  }
}

// Nothing where the lean plans do not fit, or the search of a short step found none that does.
// `limit`: as limit() was when it was begun.
std::optional<LayoutChooser::Estimate> LayoutChooser::estimate_layout(
    size_t layout, std::optional<Duration> limit) {
  Setting setting = layouts_[layout].setting;
  const bool is_search = has_auto(setting.plan) && is_searched(setting.plan, setting.stack);
  if (!is_search && limit && !may_be_faster(setting, *limit)) {
    return Estimate{layout, std::move(setting), *limit, true};
  }
  const std::optional<Verdict> lean = fitting_lean_verdict(setting, known_);
  if (!lean) return std::nullopt;
  if (!is_search) {
    const std::optional<TimedPlan> best =
        fastest_way(setting, {false, limit, interrupted_}, known_);
    setting.plan = best ? best->plan : lean->plan;
    if (best) return Estimate{layout, std::move(setting), best->step_time};
    if (limit) return Estimate{layout, std::move(setting), *limit, true};
    const Prediction lone =
        predict(setting.model, setting.plan, setting.machine, setting.stack, measurements_);
    if (!lone.fits) return std::nullopt;
    return Estimate{layout, std::move(setting), lone.step_time};
  }
  const int64_t global_batch = setting.plan.global_batch;
  setting = with_short_step(std::move(setting));
  setting = complete_layout(std::move(setting), measurements_, interrupted_).setting;
  setting.plan.global_batch = global_batch;
  const Outcome outcome = estimate_searched(setting);
  if (!outcome.step_time) return std::nullopt;
  setting.plan.memory_reuse = outcome.memory_reuse;
  return Estimate{layout, std::move(setting), *outcome.step_time};
}

Outcome LayoutChooser::estimate_searched(const Setting& setting) const {
  const CostModel costs(setting.machine, setting.plan, setting.stack, measurements_);
  std::vector<MemoryReuse> reuses;
  for (const auto reuse : memory_reuses(setting.plan, setting.stack)) {
    reuses.push_back(reuse.value_or(MemoryReuse::kApart));
  }
  return estimate(setting.model, setting.plan, reuses, usable_of(setting.machine), costs);
}

void LayoutChooser::complete(const std::vector<size_t>& layouts) {
  std::vector<std::optional<Estimate>> done(layouts.size());
  const std::optional<Duration> limit = this->limit();
  parallel_for(done.size(), hardware_threads(), [&](size_t i) {
    try {
      done[i] = estimate_layout(layouts[i], limit);
    } catch (const Error&) {
      // The graph knows no such plan, or the search of its knobs was interrupted.
    }
  });
  const bool cut_short = is_interrupted();
  for (size_t i = 0; i < done.size(); ++i) {
    std::optional<Estimate>& one = done[i];
    if (!cut_short) {
      fates_[layouts[i]] = !one ? Fate::kUnfit : one->is_slower ? Fate::kSlower : Fate::kTimed;
    }
    if (!one) continue;
    const bool of_known_kind = one->is_slower ? order_.learn_slower(one->layout, one->step_time)
                                              : order_.learn(one->layout, one->step_time);
    const bool better = best_ == nullptr || (!one->is_slower && one->step_time < best_->step_time);
    if (better)
      stalled_ = 0;
    else if (of_known_kind)
      ++stalled_;
    if (one->is_slower) continue;
    estimates_.push_back(std::make_unique<Estimate>(*std::move(one)));
    if (better) best_ = estimates_.back().get();
  }
}

std::vector<const LayoutChooser::Estimate*> LayoutChooser::near_the_best() const {
  std::vector<const Estimate*> all;
  for (const auto& one : estimates_) {
    const Setting& setting = layouts_[one->layout].setting;
    if (!has_auto(setting.plan) || is_searched(setting.plan, setting.stack)) continue;
    all.push_back(one.get());
  }
  std::stable_sort(all.begin(), all.end(), [](const Estimate* a, const Estimate* b) {
    return a->step_time < b->step_time;
  });
  std::vector<const Estimate*> near;
  size_t on_gpu = 0, on_cpu = 0;
  for (const Estimate* one : all) {
    const Plan& plan = one->setting.plan;
    const bool gpu = plan.optimizer.placement == OptimizerPlacement::kGpu;
    const double farthest = gpu ? kNearTheBestOnGpu : kNearTheBest;
    const size_t most = gpu ? kMostNearOnGpu : kMostNear;
    size_t& taken = gpu ? on_gpu : on_cpu;
    const bool enough = taken == most && !how_.all_more_closely;
    if (enough || one->step_time.seconds() > farthest * best_->step_time.seconds()) {
      continue;
    }
    ++taken;
    near.push_back(one);
  }
  return near;
}

// The numbers of buckets on the GPU between those of the list, of the layouts that are near the
// best. What the list had stays an estimate, for it leaves more room.
void LayoutChooser::look_between() {
  const std::vector<const Estimate*> near = near_the_best();
  const std::optional<Duration> limit = this->limit();
  std::vector<std::optional<TimedPlan>> found(near.size());
  parallel_for(near.size(), hardware_threads(), [&](size_t i) {
    try {
      found[i] =
          fastest_way(layouts_[near[i]->layout].setting, {true, limit, interrupted_}, known_);
    } catch (const Error&) {
      // No completion is legal.
    }
  });
  for (size_t i = 0; i < near.size(); ++i) {
    if (!found[i] || found[i]->step_time >= near[i]->step_time) continue;
    Estimate faster{near[i]->layout, layouts_[near[i]->layout].setting, found[i]->step_time};
    faster.setting.plan = found[i]->plan;
    estimates_.push_back(std::make_unique<Estimate>(std::move(faster)));
  }
  choose_best();
}

// Its whole step does not fit after all: the next best is the best.
void LayoutChooser::drop_best() {
  std::erase_if(estimates_, [&](const auto& one) { return one.get() == best_; });
  choose_best();
}

void LayoutChooser::choose_best() {
  best_ = nullptr;
  for (const auto& one : estimates_) {
    if (best_ == nullptr || one->step_time < best_->step_time) best_ = one.get();
  }
}

// The best layout's best plan, which in a whole step may be another than in a short one.
Completed LayoutChooser::whole() {
  const Setting& setting = layouts_[best_->layout].setting;
  Completed estimated = predict_reusing(best_->setting, measurements_);
  const bool by_search = has_auto(setting.plan) && is_searched(setting.plan, setting.stack);
  if (!by_search || with_short_step(setting).plan == setting.plan) return estimated;
  Completed completed = complete_layout(setting, measurements_, interrupted_);
  const bool better = completed.prediction.fits &&
                      (!estimated.prediction.fits ||
                       completed.prediction.step_time <= estimated.prediction.step_time);
  return better ? std::move(completed) : std::move(estimated);
}

}  // namespace ballast
