#include "autotune/complete/first_plan.h"

#include <algorithm>
#include <chrono>

#include "autotune/complete/complete.h"
#include "autotune/complete/layouts/open_layouts.h"
#include "sim/base/error.h"
#include "sim/base/stop.h"

namespace ballast {
namespace {

// Of the deadline: what is found has still to be simulated, and the space to be searched. Of very
// many layouts there are plans to find among those that were judged by a fourth of it.
constexpr double kShareOfDeadline = 0.5;
constexpr double kShareOfJudging = 0.25;

// Every step of a ring is an operation, so that layers on hundreds of ranks make a graph of
// gigabytes; nor are such rings fast.
constexpr int64_t kLongRing = 8;

// Those of short rings, where bounds refute not all of them; else all.
std::vector<OpenLayout> of_short_rings(std::vector<OpenLayout> layouts) {
  const auto is_quick = [](const OpenLayout& layout) {
    return layout.setting.plan.context <= kLongRing && !is_refuted(layout);
  };
  if (std::none_of(layouts.begin(), layouts.end(), is_quick)) return layouts;
  std::erase_if(layouts, [&](const OpenLayout& layout) { return !is_quick(layout); });
  return layouts;
}

}  // namespace

void begin_with_first_plan(Setting like, const std::vector<Plan>& layouts,
                           const Measurements* measurements, SearchOptions& options) {
  CHECK(!layouts.empty());
  like.plan = layouts.front();
  if (options.exhaustive || layouts.size() == 1 || like.plan.devices > like.machine.devices) return;
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const auto after = [&](double share) {
    return [&, share] {
      const bool asked = options.interrupted && options.interrupted();
      return asked || (options.deadline_s && seconds() > share * *options.deadline_s);
    };
  };
  const auto found = unless_stopped(options.interrupted, [&] {
    const std::vector<OpenLayout> judged = of_short_rings(
        judged_layouts(like, layouts, measurements, after(kShareOfJudging), options.layers));
    return first_plans(judged, measurements, after(kShareOfDeadline));
  });
  if (found) options.starts.insert(options.starts.end(), found->begin(), found->end());
  if (options.deadline_s) *options.deadline_s = std::max(*options.deadline_s - seconds(), 0.0);
}

}  // namespace ballast
