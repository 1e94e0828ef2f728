// Evaluate: what simulating one plan gives, or what it lacks.
//
// Will not do: choose a plan (autotune/search), or bound one (autotune/bounds/bound).
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "autotune/bounds/cell_bound.h"
#include "autotune/search/candidate.h"
#include "sim/engine/cost.h"
#include "sim/graph/report/memory.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

struct Outcome {
  std::optional<Duration> step_time;        // empty: it does not fit
  std::array<Bytes, kPlaces> memory{};      // arenas, by Place
  std::optional<MemoryReuse> memory_reuse;  // of the plan as it was simulated
  std::vector<PlacePeak> peaks;             // where it does not fit
  bool extrapolated = false;                // from steps of fewer micro-batches
};

// Its bound is not known. Requires that it fits.
Candidate candidate_of(Plan plan, Duration step_time, const Outcome& outcome);

Usable usable_of(const Machine& machine);

// By place what is reserved there.
std::array<Bytes, kPlaces> arenas_of(const std::vector<PlacePeak>& peaks);

// What a plan lacks of the memory that fills most beyond what is usable; not above 0 where it fits.
Bytes excess_of(const std::array<Bytes, kPlaces>& memory, const Usable& usable);
// How full the fullest memory is: needed over usable, of those of which something is needed.
double fullness_of(const std::array<Bytes, kPlaces>& memory, const Usable& usable);

// The plan as it is, or, where that does not fit, with the next way to reuse memory. Requires at
// least one way, and that the first is the plan's.
Outcome evaluate(const Model& model, const Plan& plan, const std::vector<MemoryReuse>& reuses,
                 const Usable& usable, const CostModel& costs);

// Whether what the optimizer does lies at the ends of a step: before the first backward and after
// the last one. What is stepped late, or comes from NVMe, lies beside many micro-batches.
bool has_even_middle(const Plan& plan);

// Steps of so many micro-batches, or fewer, are simulated as they are.
inline constexpr int64_t kFewMicroBatches = 24;
// By what share an extrapolated step may be off: addresses that come around only after many
// micro-batches made it up to 0.16 % where plans of a small model were held against whole steps.
inline constexpr double kUncertain = 3e-3;

// The same for what is compared with many others. The micro-batches in the middle of a long step
// are alike: once one more adds the same time again and no memory, so do all others, and a step of
// a dozen tells what one of thousands takes. Where that does not show, the whole step is simulated.
Outcome estimate(const Model& model, const Plan& plan, const std::vector<MemoryReuse>& reuses,
                 const Usable& usable, const CostModel& costs);

}  // namespace ballast
