// SPPO's heuristic solver (arXiv 2503.10377, adaptive pipeline scheduling): sequence degree,
// pipeline degree and number of parts by rules alone, before any plan is costed. What a search of
// the same layouts is told beside.
//
//   a sequence degree   is within a node, for its ranks exchange in every layer
//   a pipeline degree   is no greater than a node either, unless only such use all devices
//   a part              leaves a device 2,048 to 16,384 tokens (kLeastPartTokens, kMostPartTokens)
//
// Of what these leave, the one with the shortest step is taken. All devices compute alike, so that
// it is the one whose stages idle least: (p - 1) / (m N) of p stages and m sequences in N parts.
// Memory is not asked for.
// Will not do: choose activations, or say how long a step takes.
#pragma once

#include <optional>
#include <vector>

#include "sim/spec/machine.h"
#include "sim/spec/plan.h"

namespace ballast {

struct SolverChoice {
  int64_t sequence = 1;
  int64_t pipeline = 1;
  int64_t subsequences = 1;
  double idle_share = 0;  // of the time that a stage computes

  // Whether a layout has these degrees, and no others that sequences or layers are shared by.
  bool is_of(const Plan& layout) const;
};

// Nothing where no layout is within the rules. Of equals the first.
std::optional<SolverChoice> sppo_choice(const std::vector<Plan>& layouts, const Machine& machine);

}  // namespace ballast
