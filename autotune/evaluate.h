// Evaluate: what simulating one plan gives, or what it lacks.
//
// Will not do: choose a plan (autotune/search), or bound one (autotune/bound).
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "autotune/cell_bound.h"
#include "sim/engine/cost.h"
#include "sim/graph/memory.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

struct Outcome {
  std::optional<Duration> step_time;        // empty: it does not fit
  std::array<Bytes, kPlaces> memory{};      // arenas, by Place
  std::optional<MemoryReuse> memory_reuse;  // of the plan as it was simulated
  std::vector<PlacePeak> peaks;             // where it does not fit
};

// What a plan lacks of the memory that fills most beyond what is usable; not above 0 where it fits.
Bytes excess_of(const std::array<Bytes, kPlaces>& memory, const Usable& usable);

// The plan as it is, or, where that does not fit, with the next way to reuse memory. Requires at
// least one way, and that the first is the plan's.
Outcome evaluate(const Model& model, const Plan& plan, const std::vector<MemoryReuse>& ways,
                 const Usable& usable, const CostModel& costs);

}  // namespace ballast
