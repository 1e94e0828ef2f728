#include "autotune/complete/layouts/layout_order.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace ballast {
namespace {

// Layouts of a kind in a row that may be slower than its best.
constexpr int kPatienceOfKind = 2;
// A layout of a known kind that promises a step so many times as long as the best is left alone.
constexpr double kFarSlowerLayout = 1.2;

}  // namespace

LayoutOrder::LayoutOrder(const std::vector<OpenLayout>& layouts, LayoutReach reach)
    : layouts_(layouts), reach_(reach), taken_(layouts.size(), false) {}

LayoutOrder::KindOfLayout LayoutOrder::kind_of(size_t layout) const {
  const Plan& plan = layouts_[layout].setting.plan;
  return {plan.strategy, plan.zero_stage};
}

double LayoutOrder::promise(size_t layout) const {
  const auto found = known_.find(kind_of(layout));
  // Within a kind ratios differ too: one that was far off tells half of what another's will be.
  const double ratio = found == known_.end() ? 1 : std::sqrt(found->second.ratio);
  return ratio * layouts_[layout].at_least.seconds();
}

bool LayoutOrder::may_win(size_t layout, std::optional<Duration> best) const {
  if (is_refuted(layouts_[layout])) return false;
  if (!best) return true;
  if (layouts_[layout].at_least >= *best) return false;
  if (reach_ == LayoutReach::kAll) return true;
  const auto found = known_.find(kind_of(layout));
  return found == known_.end() || (found->second.slower < kPatienceOfKind &&
                                   promise(layout) < kFarSlowerLayout * best->seconds());
}

std::vector<size_t> LayoutOrder::take(size_t most, std::optional<Duration> best) {
  std::vector<size_t> found;
  for (size_t i = 0; i < layouts_.size(); ++i) {
    if (!taken_[i] && may_win(i, best)) found.push_back(i);
  }
  std::stable_sort(found.begin(), found.end(),
                   [&](size_t one, size_t other) { return promise(one) < promise(other); });
  // One of each kind of which nothing is known stands before all others.
  std::set<KindOfLayout> tried;
  std::stable_partition(found.begin(), found.end(), [&](size_t layout) {
    return !known_.contains(kind_of(layout)) && tried.insert(kind_of(layout)).second;
  });
  if (found.size() > most) found.resize(most);
  for (const size_t layout : found) taken_[layout] = true;
  return found;
}

bool LayoutOrder::learn(size_t layout, Duration step_time) {
  const double bound = layouts_[layout].at_least.seconds();
  const double ratio = step_time.seconds() / std::max(1e-12, bound);
  const auto [found, first] = known_.emplace(kind_of(layout), Known{ratio, step_time});
  if (first) return false;
  Known& known = found->second;
  known.ratio = std::min(known.ratio, ratio);
  known.slower = step_time < known.best ? 0 : known.slower + 1;
  known.best = std::min(known.best, step_time);
  return true;
}

bool LayoutOrder::learn_slower(size_t layout, Duration at_least) {
  const double bound = layouts_[layout].at_least.seconds();
  const double ratio = at_least.seconds() / std::max(1e-12, bound);
  const auto [found, first] = known_.emplace(kind_of(layout), Known{ratio, at_least});
  if (first) return false;
  ++found->second.slower;
  return true;
}

}  // namespace ballast
