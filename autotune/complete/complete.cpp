#include "autotune/complete/complete.h"

#include "autotune/complete/feasibility.h"
#include "autotune/complete/layouts/layout_chooser.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

Completed complete_open(Setting setting, const Measurements* measurements,
                        const std::function<bool()>& interrupted,
                        const LayoutProgress::Listener& looked) {
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
  LayoutLook how;
  how.looked = looked;
  return LayoutChooser(layouts, measurements, interrupted, std::move(how)).run();
}

}  // namespace

Completed complete(Setting setting, const Measurements* measurements,
                   const std::function<bool()>& interrupted,
                   const LayoutProgress::Listener& looked) {
  const bool open = setting.has_open_layout() || has_auto(setting.plan);
  Completed completed = complete_open(std::move(setting), measurements, interrupted, looked);
  Prediction& prediction = completed.prediction;
  if (open && !prediction.peaks.empty()) prediction.reason = of_plans_tried(prediction.reason);
  return completed;
}

std::vector<Plan> first_plans(const std::vector<OpenLayout>& layouts,
                              const Measurements* measurements,
                              const std::function<bool()>& interrupted) {
  LayoutLook soon;
  soon.reach = LayoutReach::kPromising;
  LayoutChooser chooser(layouts, measurements, interrupted, std::move(soon));
  chooser.stop_when_interrupted();
  std::vector<Plan> plans;
  try {
    if (std::optional<Plan> lean = chooser.lean()) plans.push_back(*std::move(lean));
    if (interrupted && interrupted()) return plans;
    if (std::optional<Plan> good = chooser.first()) plans.insert(plans.begin(), *std::move(good));
  } catch (const Error&) {
    if (!interrupted || !interrupted()) throw;
  }
  return plans;
}

}  // namespace ballast
