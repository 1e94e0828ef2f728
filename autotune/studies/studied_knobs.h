// Studied knobs: what a study of two plans compares, and what an ablation changes in one step: each
// knob that a search chooses, together with those that mean nothing without it.
//
// Made from the table in sim/spec/knobs.h: a knob that is searched is studied.
// Will not do: cost a plan.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/spec/knobs.h"

namespace ballast {

struct StudiedKnob {
  std::string_view name;  // "layout", or the path of a knob
  KnobSet knobs;          // that change with it
  std::string (*special)(const Plan& plan) = nullptr;

  // "8", "recompute norm1", "tensor 8, data 2": the same where two plans do not differ.
  std::string text(const Plan& plan) const;
};

// "recompute norm1 norm2, offload all of 50 % of the layers", "keep all", "auto".
std::string activations_text(const std::optional<ActivationPlan>& plan);

// The layout first.
const std::vector<StudiedKnob>& studied_knobs();

}  // namespace ballast
