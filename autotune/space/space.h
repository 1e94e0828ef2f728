// Space: which knobs of a plan may still be chosen, and the values that each of them can take.
//
// Values are generated, never filtered: every choice is a legal plan, and no two choices mean the
// same graph (nothing flows where every optimizer lives on the GPU, a snapshot or its absence
// matters only where something speculates). Whether a plan fits the machine is for bound and
// search to say. Lists begin with the simplest value, so that their order breaks ties.
// Will not do: cost anything.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/spec/knobs.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

// Knobs that a search may change; a space reads those of KnobSearch::kRank. Those that a plan
// leaves "auto" (micro_batch, activations, gpu_buckets, flow_share) are open whatever is said here;
// but memory_reuse "auto" is apart, and where it is open, plans that do not fit so reuse it at
// once.
struct OpenKnobs : KnobSet {
  using KnobSet::KnobSet;
  // With optimizer.sync, of which wait and speculate give the same bits: delay too, which does not.
  bool delay = false;

  // Every knob that a space reads, without `delay`.
  static OpenKnobs all();
  bool operator==(const OpenKnobs&) const = default;
};
// "micro_batch, optimizer.sync with delay": what a space reads of them.
std::string text_of(const OpenKnobs& open);

struct ActivationChoice {
  std::string name;  // "recompute norms and activation", for people
  ActivationPlan plan;
};

struct BucketChoice {
  Bytes bytes;
  int64_t count = 0;                 // buckets that the model is cut into
  std::vector<int64_t> gpu_buckets;  // ascending; `count` means all
  // By index of gpu_buckets: the flow shares (by index) that move different modules. A module that
  // the GPU steps a part of never flows, so that many shares may come to the same.
  std::vector<std::vector<int16_t>> flow_shares;
};

struct SyncChoice {
  SyncMode mode{};
  UndoKind undo{};
};

// No list is empty. A knob that is not open has the one value of the base plan.
struct Space {
  std::vector<int64_t> micro_batch;  // ascending
  std::vector<ActivationChoice> activations;
  std::vector<BucketChoice> buckets;
  std::vector<CastPlacement> cast;
  std::vector<SyncChoice> sync;
  std::vector<double> flow_share;  // ascending
  // No choice among plans: of these a plan takes the first with which it fits.
  std::vector<MemoryReuse> memory_reuse;
};

// Requires check(base, model) to pass. In a pipeline only micro-batch, activations and cast are
// open, and flow_share and gpu_buckets must have values.
Space space_of(const Model& model, const Plan& base, const OpenKnobs& open);

// The micro-batches that `base` may take, ascending.
std::vector<int64_t> micro_batches_of(const Plan& base, const OpenKnobs& open);

// One value of every list, by index; gpu_buckets indexes the list of its bucket choice.
struct Choice {
  int16_t micro_batch = 0;
  int16_t activations = 0;
  int16_t bucket = 0;
  int16_t gpu_buckets = 0;
  int16_t cast = 0;
  int16_t sync = 0;
  int16_t flow_share = 0;
  auto operator<=>(const Choice&) const = default;
};

// Every choice that means a graph of its own, in ascending order.
std::vector<Choice> choices_of(const Space& space, const Plan& base);

// Those of one cell: with the micro-batch and the activations of `cell`.
std::vector<Choice> choices_of_cell(const Space& space, const Plan& base, const Choice& cell);

Plan plan_of(const Space& space, const Plan& base, const Choice& choice);

// How much is going on in a plan beyond a plain resident step: one each for accumulating
// micro-batches, recomputing, offloading, offloading only some layers, weights that flow, an
// optimizer split between GPU and CPU, and a sync other than wait. Of plans that take equally
// long the one with fewer moving parts is better, and of those the first in order of choice.
int moving_parts(const Plan& plan);

}  // namespace ballast
