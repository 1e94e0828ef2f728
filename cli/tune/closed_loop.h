// `tune --measure`: runs the plans that the closed loop asks for on the device at hand, keeps every
// run in the store as a record of `verify`, and finds the runs of an interrupted call there again.
//
// Will not do: choose what to run, or refit (autotune/studies/closed_loop).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "autotune/studies/closed_loop.h"
#include "cli/flags/inputs.h"
#include "cli/flags/training_flags.h"
#include "cli/text/prediction.h"

namespace ballast {

struct LoopFlags {
  std::optional<int64_t> plans;  // nothing: no loop
  int64_t steps = 12;
  bool again = false;
  TrainingFlags training;
};
// --measure, --steps, --device, --data, --again.
void add_loop_flags(VerbParser& parser, LoopFlags& flags);

// The one case of `plan` on the device at hand, and that device in flags.training. Throws Error
// where the machine of the plan is not the one at hand, or the device is missing.
Setting load_case_at_hand(const PlanFlags& plan, const StoreFlag& store, LoopFlags& flags);

// What is asked: as long as it is the same, runs that the store holds answer it.
struct Question {
  const Setting& setting;  // "auto" knobs still open
  std::string free;        // which knobs, degrees and places may be chosen, as text
  const LoopFlags& flags;
  const StoreFlag& store;
};
// `found` requires a best plan. Appends runs and refitted operations to the store.
MeasureResult run_closed_loop(const Question& question, const SearchResult& found,
                              const Measurements& measurements);

// [{"predicted_step_time_s", "step_time_s", "error_percent", ...}], fastest first.
OrderedJson measured_json(const MeasureResult& result);
// A table of what was measured, and what is left.
std::string measured_text(const LoopFlags& flags, const MeasureResult& result);

}  // namespace ballast
