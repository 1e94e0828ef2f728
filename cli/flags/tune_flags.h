// The flags of `tune`, checked against one another, and the cases that they name.
//
// Will not do: search (cli/tune/tuner.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "autotune/studies/frontier.h"
#include "autotune/studies/objective.h"
#include "cli/flags/inputs.h"
#include "cli/flags/open_knobs.h"
#include "cli/tune/closed_loop.h"

namespace ballast {

struct ConstraintFlags {
  std::optional<double> headroom_gb;
  std::optional<double> headroom_percent;
  std::optional<int64_t> most_devices;
  std::optional<double> most_joules_per_token;
};

struct TuneFlags {
  OutputFlags output;
  PlanFlags plan;
  StoreFlag store;
  StackFlag stack;
  // Who runs the plans: Ballast, whose plans are searched, or whom the flag names, for whom layouts
  // are completed and ranked.
  Stack framework{};
  std::string plan_out = "plan.json";
  bool allow_delay = false;
  bool free_degrees = false;
  bool exhaustive = false;
  std::optional<double> tolerance_percent;  // see tolerance_of()
  double deadline_s = 60;
  int64_t top = 5;
  LoopFlags loop;

  std::string objective = "step-time";
  ObjectiveRequest request;  // of the flags below; its power is the machine's once there is a case
  std::string watts_source;  // of request.rates.watts
  std::optional<double> tokens;
  std::optional<double> deadline_days;
  ConstraintFlags constraints;
  std::string devices;       // as written: "8,16" or "8..64"
  std::string global_batch;  // likewise
  bool frontier = false;
  FrontierOptions frontier_options;
  double frontier_step_percent = 20;
  bool sensitivity = false;
  bool ablation = false;
  std::string ablation_from = "zero-offload";
};

// Share of a step by which no plan may be faster once a search ends: nobody could measure it. None
// where every plan is simulated, and where layouts are ranked, which proves nothing.
double tolerance_of(const TuneFlags& flags);

// False where --help was asked for. Throws Error for flags that contradict one another.
bool parse_tune(Words words, TuneFlags& flags);

// "8", "8,16,32" or "8..64": the doublings from the first to the last, and the last. Ascending.
// Throws Error, naming the flag, for anything else.
struct CountText {
  std::string flag;
  std::string text;
};
std::vector<int64_t> parse_counts(const CountText& counts);

// Memory of a GPU that is kept free; nothing where no flag asks for it. Throws Error where that is
// more than there is.
std::optional<Bytes> headroom_of(const ConstraintFlags& constraints, const Machine& machine);

// What may be chosen: a --plan is where the search starts, and degrees that it or a strategy has
// stay unless --free-degrees is given.
OpenKnobsOfFlags open_knobs_of(const TuneFlags& flags);

// A case for so many devices and this batch, its machine without the head-room. Throws Error.
struct CaseSize {
  std::optional<int64_t> devices;
  std::optional<int64_t> global_batch;
};
// Of flags.framework. With --measure: for the device at hand, whose name it puts into flags.loop.
// Notes the power of a device in `flags`; throws Error where energy is limited and nobody knows it.
Setting case_for(TuneFlags& flags, const CaseSize& size);
// The same where the model is looked for.
Setting case_like(const TuneFlags& flags, const Model& like);

}  // namespace ballast
