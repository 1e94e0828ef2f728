// Setting: what is to be run, where and by whom, with knobs that may still be open ("auto").
//
// Will not do: fill the knobs in (autotune/complete/complete.h).
#pragma once

#include <vector>

#include "sim/spec/knobs.h"
#include "sim/spec/machine.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"
#include "sim/spec/stack.h"

namespace ballast {

// A plan, and what of its layout may still be chosen: knobs of KnobSearch::kLayout, and kData where
// nobody named how many ranks the other degrees are to leave.
struct Start {
  Plan plan;
  KnobSet open;
  bool usual_buckets = false;  // nobody names buckets: a framework's are its own (adopt)
  KnobSet named{};             // by flags or --set: a layout keeps their values, or is none
};

struct Setting {
  Model model;
  Plan plan;
  Machine machine;
  Stack stack{};
  KnobSet open{};               // of `plan`, as in Start
  std::vector<Start> others{};  // other strategies' plans that may be chosen instead
  bool usual_buckets = false;   // of `plan`, as in Start
  KnobSet named{};              // of `plan`, as in Start

  bool has_open_layout() const { return !open.empty() || !others.empty(); }
};

// Changes the plan, and those of other strategies that may be chosen instead.
template <class Change>
Setting with_plans(Setting setting, const Change& change) {
  change(setting.plan);
  for (Start& other : setting.others) change(other.plan);
  return setting;
}

// Gives the setting a stack, and where nobody names buckets those of use_usual_buckets().
void adopt(Setting& setting, Stack stack);

// Buckets that nobody names. Where the GPU steps, those that the framework cuts gradients into
// (profiles/frameworks/usual_buckets.h), which published cases are predicted with as well. Where
// the CPU does, 64 MiB, or the power of two from there that cuts a model into 8192 at most: of more
// than 137 billion parameters a rank, or a pipeline, more are only overhead.
void use_usual_buckets(const Model& model, const Stack& stack, Plan& plan);

// True if a knob is "auto".
bool has_auto(const Plan& plan);

// Whether open knobs of this plan are searched, or else tried one by one of a list. Spaces and
// bounds are made for Ballast on one device, or on devices that share nothing but the state of the
// optimizer; of other frameworks and layouts the search would refuse or misprice plans.
bool is_searched(const Plan& plan, const Stack& stack);

}  // namespace ballast
