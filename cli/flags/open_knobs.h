// What flags leave a search to choose. The one place where that is decided, for `tune` and
// `compare` alike: a knob that a flag or --set names keeps that value, one that a named strategy
// sets keeps it but for the strategy's own `open` list, and the rest may be searched.
//
// Will not do: search (autotune), or load what the flags name (cli/flags/inputs.h).
#pragma once

#include <set>
#include <string>
#include <vector>

#include "autotune/complete/setting.h"
#include "autotune/search/search.h"
#include "autotune/space/layout.h"
#include "autotune/space/space.h"
#include "cli/flags/arguments.h"

namespace ballast {

// What a verb adds to the flags of a plan.
struct OpenRules {
  bool file_is_start = false;    // a --plan is where the search starts; else it keeps its values
  bool degrees_of_named = true;  // degrees may change even where a strategy or a plan is named
  bool delay = false;            // with the other ways to synchronise: one step late as well
};

class OpenKnobsOfFlags {
 public:
  // `flags` must outlive this object. Throws Error for a strategy or an override that is unknown.
  OpenKnobsOfFlags(const PlanFlags& flags, const OpenRules& rules);

  // Those of one rank, and of layouts.
  OpenKnobs knobs() const;
  // Every legal layout of the plan's devices that leaves alone what is named; buckets that nobody
  // names are the usual ones (use_usual_buckets). Throws Error where there is none. Requires a
  // setting whose plan these flags made.
  std::vector<Plan> layouts(const Setting& setting) const;
  // What is searched: those layouts and knobs, or, where another than Ballast runs the plans, the
  // layouts of all the setting's starts, which have open knobs themselves. Throws as layouts().
  SearchSpace space(const Setting& setting) const;

 private:
  bool is_open(const Knob& knob) const;

  const PlanFlags& flags_;
  const OpenRules rules_;
  std::set<std::string> named_;             // keys of a plan, "optimizer.cast"
  std::set<std::string> open_of_strategy_;  // keys that the strategy opens
  bool keeps_knobs_ = false;                // a strategy, or a plan that is no start
};

}  // namespace ballast
