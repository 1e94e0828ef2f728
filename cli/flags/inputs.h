// From flags to records: the model, machine, plan and measurements that a verb works on.
//
// Will not do: choose knobs (autotune) or predict (sim/engine).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "autotune/complete/setting.h"
#include "cli/flags/arguments.h"
#include "profiles/load.h"
#include "profiles/store.h"
#include "sim/spec/machine.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"
#include "sim/spec/stack.h"

namespace ballast {

// The name under which `profile` stores the machine it runs on.
inline constexpr const char* kHere = "here";

std::string store_path(const StoreFlag& flag);
// For appending: what was found is worth a minute of waiting for another program.
Store open_store(const StoreFlag& flag);
// For reading, where there is one. They say on the error output when they wait.
std::optional<Store> open_store_if_present(const StoreFlag& flag);
// Throws Error where nothing could be appended, or the disk is full: what a verb that works for
// minutes asks first.
void try_store(const StoreFlag& flag);
Origin program_origin();

// The newest profile of this machine, or nothing.
std::optional<Machine> profile_of_here(const StoreFlag& flag);
// A shipped name, a file, or kHere. Throws Error where this machine has not been measured.
Machine load_machine_or_here(const std::string& name, const StoreFlag& flag);

// Under which host the measurements of a machine are kept.
Host host_of(const Machine& machine);
// What was measured on a machine; empty where nothing was.
Measurements measurements_of(const Machine& machine, const StoreFlag& flag);

// Whose habits are assumed where no flag names a stack: those of our own backend on the machine
// that it measured, and on CPUs that stand for GPUs, where nothing else trains; elsewhere those of
// the typical framework.
std::string_view default_stack(const Machine& machine);
// The stack of a flag, or that default.
Stack stack_of(const StackFlag& flag, const Machine& machine);
// What a plan that was found as Ballast runs it needs beside it to be predicted so again: nothing
// where that is the default. (A plan file does not hold a stack.)
StackFlag flag_for_ballast(const Machine& machine);

// One of a list: a plan and what it refers to; where no plan can be made of the flags, why not, and
// of the plan its devices and strategy alone.
struct Case {
  Setting setting;
  std::string refusal{};  // else empty
};

// Every combination of the lists in `flags`, in the order model, machine, devices, strategy: a plan
// and what it refers to, the overrides applied. "auto" knobs are still open, and so is what nobody
// names of the layout, with other strategies where none is named; the stack is
// Ballast's, unless a verb is told another.
// Throws Error for flags that name no model or no machine, for names that are not known, and where
// no plan can be made of any combination.
std::vector<Case> load_cases(const PlanFlags& flags, const StoreFlag& store);
// The same where there can be only one.
Setting load_case(const PlanFlags& flags, const StoreFlag& store);
// Where a search starts: the plan is not checked against the model, for its degrees may change.
// `like` stands for a model that is not named, where it is what is looked for; else null.
Setting load_start(const PlanFlags& flags, const StoreFlag& store, const Model* like);

// Among which is chosen where no strategy is named: the first on one device, and the fastest of
// them on several.
std::span<const std::string_view> default_strategies();

// What of the layout nobody names: what the strategy of `plan` leaves open, but for what flags and
// --set say. Empty on one device, and where the flags name a plan file.
KnobSet open_layout(const PlanFlags& flags, const Plan& plan);

// At least one entry, so that a loop over what a flag names runs: nothing stands for "not given".
template <class Value>
std::vector<std::optional<Value>> or_nothing(const std::vector<Value>& values) {
  if (values.empty()) return {std::nullopt};
  return {values.begin(), values.end()};
}

}  // namespace ballast
