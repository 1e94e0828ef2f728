// Experiments: which plans of a space to time or to run, so that few of them tell much.
//
// Will not do: time or run them (cli/tune/tuner.h), or rank plans (autotune/search).
#pragma once

#include <vector>

#include "autotune/space/space.h"
#include "sim/spec/plan.h"

namespace ballast {

// Plans such that every value of every knob is in at least one of them: what has been timed in
// these is known of every plan.
std::vector<Plan> covering_plans(const Space& space, const Plan& base);

// Plans that may be faster than predicted where `best` is slower: those that differ from it in one
// knob, then the covering ones. A search that prunes well leaves few plans that it simulated. Of
// the first there are none where `best` is not of the space; memory_reuse is no choice.
std::vector<Plan> rival_plans(const Plan& best, const Space& space, const Plan& base);

}  // namespace ballast
