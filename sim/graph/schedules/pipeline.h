// A pipeline's graph, and the choice between its two forms.
#pragma once

#include "sim/graph/build.h"
#include "sim/graph/schedules/schedule.h"

namespace ballast {

// Whether a turn of a chunk is one operation (a block, Graph::blocks) or all that it is made of.
// Folded, a step of a trillion parameters on 3,072 GPUs is 160,362 operations, but nothing
// inside of a turn overlaps with anything outside of it. By itself a plan is spread where it asks
// for such overlap (activations that leave, weights that flow, a step that does not wait) and has
// at most so many operations; beyond, it is folded: what leaves does so all at once beside the turn
// after its own, and is back with the turn before, and what flows holds up its own turn. What a
// device is to run is spread (kIfLarge): folded only where it has more operations than that.
enum class Folding : uint8_t { kAuto, kOn, kOff, kIfLarge };
inline constexpr int64_t kMostSpreadOperations = 50'000;

Graph build_pipeline(const Model& model, const Plan& plan, const StackFacts& facts,
                     Folding folding);
// True where a plan asks, or with open knobs may ask, for overlap between the inside of a turn and
// what is outside of it.
bool overlaps_inside(const Plan& plan);
// Whether a plan is folded where nobody says how.
bool is_folded(const Model& model, const Plan& plan, const StackFacts& facts);
// The same of what a device is to run.
bool is_folded_to_run(const Model& model, const Plan& plan, const StackFacts& facts);
// A pipeline with fewer micro-batches than the plan has, folded; and is_folded() of the plan.
struct FoldedPipeline {
  Graph graph;
  bool by_itself = false;
};
FoldedPipeline build_folded(const Model& model, const Plan& plan, const StackFacts& facts,
                            int64_t micro_batches);

}  // namespace ballast
