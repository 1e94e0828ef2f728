#include "autotune/complete/layout_order.h"

#include <algorithm>
#include <set>

namespace ballast {

LayoutOrder::LayoutOrder(const std::vector<OpenLayout>& layouts)
    : layouts_(layouts), taken_(layouts.size(), false) {}

double LayoutOrder::promise(size_t layout) const {
  const OpenLayout& of = layouts_[layout];
  const auto known = ratio_.find(of.setting.plan.strategy);
  return of.at_least.seconds() * (known == ratio_.end() ? 1 : known->second);
}

std::vector<size_t> LayoutOrder::take(size_t most, std::optional<Duration> best) {
  std::vector<size_t> found;
  for (size_t i = 0; i < layouts_.size(); ++i) {
    const bool may_win = !is_refuted(layouts_[i]) && (!best || layouts_[i].at_least < *best);
    if (may_win && !taken_[i]) found.push_back(i);
  }
  std::stable_sort(found.begin(), found.end(),
                   [&](size_t one, size_t other) { return promise(one) < promise(other); });
  // One of each strategy of which nothing is known stands before more of the same.
  std::set<std::string> tried;
  std::stable_partition(found.begin(), found.end(), [&](size_t layout) {
    const std::string& strategy = layouts_[layout].setting.plan.strategy;
    return ratio_.contains(strategy) || tried.insert(strategy).second;
  });
  if (found.size() > most) found.resize(most);
  for (const size_t layout : found) taken_[layout] = true;
  return found;
}

void LayoutOrder::learn(size_t layout, Duration step_time) {
  const OpenLayout& of = layouts_[layout];
  const double ratio = step_time.seconds() / std::max(1e-12, of.at_least.seconds());
  const auto [known, first] = ratio_.emplace(of.setting.plan.strategy, ratio);
  if (!first) known->second = std::min(known->second, ratio);
}

}  // namespace ballast
