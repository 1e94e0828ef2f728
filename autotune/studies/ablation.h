// Ablation: from one plan to the best, knob by knob, and what each change is worth on the way.
//
// Greedy: of the knobs that still differ the one that gains most comes next. Gains of knobs depend
// on one another, so another order would share the same total out differently.
// Will not do: choose the two plans, or cost them (it asks).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/units.h"
#include "sim/spec/plan.h"

namespace ballast {

struct AblationStep {
  std::string knob;  // a name of studied_knobs()
  std::string from;
  std::string to;
  std::optional<Duration> step_time;  // nothing: does not fit, or is not legal, so far
  std::optional<Duration> gain;       // over the step before; nothing where one has no time
};

struct Ablation {
  std::optional<Duration> start;
  std::vector<AblationStep> steps;  // the last one is the best plan, if whole
  bool whole = true;                // false where it was interrupted
};

// The step time of a plan; nothing where it does not fit. May throw Error for a plan that is not
// legal.
using StepTime = std::function<std::optional<Duration>(const Plan&)>;

struct AblationEnds {
  const Plan& start;
  const Plan& best;
};
// Requires that every knob of both has a value and that they train the same model on as many
// devices. The share of the optimizer on the GPU is kept in bytes where the size of buckets changes
// alone; how a step is undone changes with the way it is synchronised. `interrupted` is asked
// before every plan; the steps that are done by then are returned.
Ablation ablate(const AblationEnds& ends, const StepTime& step_time,
                const std::function<bool()>& interrupted = {});

}  // namespace ballast
