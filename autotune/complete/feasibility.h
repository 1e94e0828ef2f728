// Feasibility: whether any plan that open knobs leave fits.
//
// First the knobs take what most often needs least memory (micro-batch 1, or one of all sequences,
// everything recomputed but the layers' inputs, those offloaded too if need be, weights that stay
// or flow, as many buckets on the GPU as its memory takes), and memory alone decides. Where
// none of these fits and memory is planned, a few plans that need less by their bounds are placed
// too (autotune/complete/estimates/emptiest_plans.h): another one may still fit where its tensors
// happen to lie better, which tune's search would find. Where the layout is open too, the first is
// asked of every layout whose least memory fits, the emptiest first, and the second of one that
// misses by little. Will not do: look for the fastest plan (autotune/complete/complete.h).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autotune/complete/estimates/completion_estimates.h"
#include "autotune/complete/layouts/open_layouts.h"
#include "autotune/complete/setting.h"
#include "sim/graph/report/memory.h"

namespace ballast {

// One plan without "auto" knobs, and whether it fits.
struct Verdict {
  bool fits = false;
  Plan plan;
  std::string reason;            // why not, with numbers and a remedy; else empty
  std::vector<PlacePeak> peaks;  // one a place; empty where the machine has too few devices
};

// A plan that fits, or else, of those that need little, the one that misses by least. Throws Error
// where no completion is legal.
Verdict feasibility(const Setting& setting);

// Whether any plan fits, as feasibility() says it; of what fits any plan, soon found: lean plans of
// a few layouts after the other, those first that are cheap to judge. Once it is interrupted (of
// which nobody is asked where there is no function) a verdict that nothing fits says nothing.
Verdict fits_at_all(const Setting& setting, const std::function<bool()>& interrupted);

// The same, asked again and again: what is learned of the plans of one setting serves machines
// whose memories differ. Throws Error where no layout is legal.
class Feasibility {
 public:
  explicit Feasibility(Setting setting);
  // `known`: of the same model, machine and stack.
  Feasibility(Setting setting, std::shared_ptr<CompletionEstimates> known);
  // `machine` differs from that of the setting in the sizes of its memories alone.
  Verdict on(const Machine& machine);
  // A plan that fits there; nothing where none does, without looking for the nearest.
  std::optional<Verdict> fitting_on(const Machine& machine);

 private:
  bool asks_one_layout() const;
  Verdict of_one_layout(const Machine& machine);
  Verdict of_all_layouts(const Machine& machine);
  std::vector<OpenLayout> layouts_on(const Machine& machine);

  Setting setting_;
  std::optional<LayoutBounds> bounds_;  // once they are asked for
  std::shared_ptr<CompletionEstimates> known_;
};

// A plan's reason not to fit, as that of the plans that were tried for open knobs: none of them
// fits, so no knob is advised. Empty where the plan fits.
std::string of_plans_tried(const std::string& reason);

// For a setting of one layout: the knobs as they most often need least memory, where they fit. A
// plan may fit where these do not.
std::optional<Verdict> fitting_lean_verdict(const Setting& setting, CompletionEstimates& known);

// One of several layouts, and what became of it.
struct Nearest {
  Setting setting;
  Verdict verdict;
};
// One that fits, or nothing: lean plans of all that are not refuted, those that need least first.
// Nothing, too, once it is interrupted.
std::optional<Nearest> fitting_lean_layout(const std::vector<OpenLayout>& layouts,
                                           CompletionEstimates& known,
                                           const std::function<bool()>& interrupted);
// The same, and then other plans of the layout that needs least of those whose lean ones miss by
// little.
std::optional<Nearest> fitting_layout(const std::vector<OpenLayout>& layouts,
                                      CompletionEstimates& known);
// Where none fits: of the emptiest and of those that lack least, the one that misses by least.
Nearest nearest_layout(const std::vector<OpenLayout>& layouts, CompletionEstimates& known);

}  // namespace ballast
