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
inline constexpr int64_t kMostSpreadOperations = 300'000;
// True only of what has so many layers, parts and micro-batches that it is folded to be run,
// whatever its layers are made of: nothing is built to say so.
bool is_surely_folded(const Model& model, const Plan& plan);

Graph build_pipeline(const Model& model, const Plan& plan, const StackFacts& facts,
                     Folding folding);
// True where a plan asks, or with open knobs may ask, for overlap between the inside of a turn and
// what is outside of it.
bool overlaps_inside(const Plan& plan);
// Whether a pipeline is spread where nobody says how: known from its layers, before a stage is
// built.
bool is_spread(const Model& model, const Plan& plan, const StackFacts& facts);
// A pipeline with fewer micro-batches than the plan has, folded; and whether it is so where nobody
// says how. A longer one may be folded and yet be predicted from short ones that are not.
struct FoldedPipeline {
  Graph graph;
  bool even_so_short = false;
};
FoldedPipeline build_folded(const Model& model, const Plan& plan, const StackFacts& facts,
                            int64_t micro_batches);
// What a device is to run, with so many micro-batches in place of the plan's: these decide whether
// it is folded.
Graph build_pipeline_to_ask(const Model& model, const Plan& plan, const StackFacts& facts,
                            int64_t micro_batches);

}  // namespace ballast
