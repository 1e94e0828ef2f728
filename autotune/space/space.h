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

#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

// Knobs that may be changed. Those that a plan leaves "auto" (micro_batch, activations,
// gpu_buckets, flow_share) are free whatever is said here.
struct Freedom {
  bool micro_batch = false;
  bool activations = false;
  bool bucket_bytes = false;
  bool gpu_buckets = false;
  bool cast = false;
  bool sync = false;   // wait and speculate, which give the same bits
  bool delay = false;  // with `sync`: delay as well, which does not
  bool undo = false;
  bool flow_share = false;
  // Of plans that do not fit otherwise, and say "auto": memory is reused at once. Not free, "auto"
  // is apart.
  bool memory_reuse = false;

  // Every knob, without `delay`.
  static Freedom all();
};

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

// No list is empty. A knob that is not free has the one value of the base plan.
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
// free, and flow_share and gpu_buckets must have values.
Space space_of(const Model& model, const Plan& base, const Freedom& freedom);

// The micro-batches that `base` may take, ascending.
std::vector<int64_t> micro_batches_of(const Plan& base, const Freedom& freedom);

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
