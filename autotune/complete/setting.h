// Setting: what is to be run, where and by whom, with knobs that may still be open ("auto").
//
// Will not do: fill the knobs in (autotune/complete/complete.h).
#pragma once

#include "sim/spec/machine.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"
#include "sim/spec/stack.h"

namespace ballast {

struct Setting {
  Model model;
  Plan plan;
  Machine machine;
  Stack stack{};
};

// True if a knob is "auto".
bool has_auto(const Plan& plan);

// Whether open knobs of this plan are searched, or else tried one by one of a list. Spaces and
// bounds are made for Ballast on one device, or on devices that share nothing but the state of the
// optimizer; of other frameworks and layouts the search would refuse or misprice plans.
bool is_searched(const Plan& plan, const Stack& stack);

}  // namespace ballast
