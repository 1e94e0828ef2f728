// Why one plan is slower than another: how much longer its step is, and where on its longest path
// the time goes.
//
// Will not do: search (autotune/search), name the knobs that differ, or put it in words (cli/text).
#pragma once

#include <string>
#include <vector>

#include "sim/base/units.h"
#include "sim/engine/predict.h"

namespace ballast {

// What the longest path of the slower plan has more (or, negative, less) of than the other's.
struct PathChange {
  std::string name;  // of a kind of operation, as name_of(KindTime) has it, or "waiting"
  Duration more;
};

struct SlowerStep {
  Duration longer;               // the slower plan's step time less the other's
  double share = 0;              // of the other's step time
  std::vector<PathChange> path;  // largest first; sums to `longer` where both periods settled

  // The two differ by nothing that a reader could act on.
  bool is_tie() const;
};

// Requires that both fit.
SlowerStep why_slower(const Prediction& best, const Prediction& other);

}  // namespace ballast
