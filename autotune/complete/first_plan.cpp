#include "autotune/complete/first_plan.h"

#include <algorithm>
#include <chrono>

#include "autotune/complete/complete.h"
#include "sim/base/error.h"

namespace ballast {

void begin_with_first_plan(Setting like, const std::vector<Plan>& layouts,
                           const Measurements* measurements, SearchOptions& options) {
  CHECK(!layouts.empty());
  like.plan = layouts.front();
  if (options.exhaustive || layouts.size() == 1 || like.plan.devices > like.machine.devices) return;
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const auto must_stop = [&] {
    const bool asked = options.interrupted && options.interrupted();
    return asked || (options.deadline_s && seconds() > *options.deadline_s);
  };
  for (Plan& plan : first_plans(like, layouts, measurements, must_stop, options.layers)) {
    options.starts.push_back(std::move(plan));
  }
  if (options.deadline_s) *options.deadline_s = std::max(*options.deadline_s - seconds(), 0.0);
}

}  // namespace ballast
