// Corrections: how much longer operations take in the steps of real training than they did when
// each was timed alone, as factors; found by `tune --measure` (autotune/studies/closed_loop),
// kept beside the timings in the store, which stay as they were measured.
#pragma once

#include <map>
#include <string>

#include "sim/spec/measurements.h"

namespace ballast {

struct Corrections {
  std::map<std::string, double> operations;  // by cost_key: those that ran
  std::map<std::string, double> groups;      // by cost_group: for all others of the group
  bool empty() const { return operations.empty() && groups.empty(); }
};

// `timed` with every median and deviation times its operation's factor, else its group's, else 1.
Measurements corrected(Measurements timed, const Corrections& corrections);

// Those of `now` that differ from `before` by more than one part in a thousand.
Corrections changes_of(const Corrections& before, const Corrections& now);

}  // namespace ballast
