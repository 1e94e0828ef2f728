// Layer profiles: what one layer, and what lies before and after the layers, ask of a rank in one
// micro-batch; the sums from which whole layouts are bounded before any of their graphs is built.
//
// Layers that are alike (all, or all after the first few) are profiled once, on three of them, by
// the very passes that build the graph. Cached by all that shapes a rank's forward and backward.
//
// The chain of a layer is the least time from the start of its first operation on the compute lane
// to the start of the next layer's: the longest path through what it computes and the collectives
// that this computation itself asks for. What could have run before (copies and gathers ahead of
// use) counts as done, so no step is faster than the sum of its chains.
// Will not do: optimizers, or time outside the chain (autotune/bounds/cell_bound adds them up).
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autotune/bounds/part_costs.h"
#include "sim/engine/cost.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"
#include "sim/spec/stack.h"

namespace ballast {

struct ParameterCount {
  int64_t all = 0;
  int64_t of_experts = 0;  // of these, those that other ranks hold only where they share experts

  // What all ranks exchange that hold the same of it.
  int64_t dense() const { return all - of_experts; }

  ParameterCount& operator+=(const ParameterCount& other) {
    all += other.all;
    of_experts += other.of_experts;
    return *this;
  }
};

// One micro-batch of one layer, or of one end of the model.
struct LayerCost {
  Workload work;                // of every lane and capacity
  Workload gathers, scatters;   // of it, those of shards (ZeRO-3)
  int64_t forward_ps = 0;       // chain; for the ends, work of the compute lane
  int64_t backward_ps = 0;      // with recompute
  int64_t forward_tail_ps = 0;  // what the chain waits for after its last computation
  int64_t backward_tail_ps = 0;
  std::array<Bytes, kPlaces> saved{};  // activations alive between forward and backward
  // Of sequences in parts that pass through a pipeline one after another; else nothing.
  Bytes between_parts;        // on the GPU when the last part went back, and no other did
  Bytes pairs_between_parts;  // of it, keys, values and the sums of their gradients
  // By part, what its turn takes at least: of the chain, or of an end's work, what it adds.
  std::vector<int64_t> forward_of_parts_ps, backward_of_parts_ps;
  int64_t first_part_forward_ps = 0;   // what the compute lane does for the first part alone
  int64_t first_part_backward_ps = 0;  // without what is recomputed
  ParameterCount parameters;           // of weights that live through the step on this rank
  int64_t weights = 0;                 // tensors that these are
};

struct LayerProfile {
  bool of_framework = false;  // timed as a framework runs it, with its exchanges where it has them
  LayerCost first;            // embedding
  LayerCost last;             // final norm, head and loss
  std::vector<LayerCost> layers;
  std::vector<LayerCost> alike;  // where all layers are alike: one that offloads, one that stays

  // Layer i of a model of which the first `leaving` layers offload.
  const LayerCost& layer(int64_t i, int64_t leaving) const {
    if (!alike.empty()) return alike[i < leaving ? 0 : 1];
    return layers[static_cast<size_t>(i)];
  }
};

class LayerProfiles {
 public:
  // References must outlive this object.
  LayerProfiles(const Model& model, const CostModel& costs);
  // Times of the graphs of a framework with these facts; what they save is that of Ballast's
  // graphs all the same (memory_bounds_hold() in autotune/complete).
  LayerProfiles(const Model& model, const CostModel& costs, const StackFacts& facts);

  // Profiles all of these that are not known yet, on `threads` threads. micro_batch and
  // activations of every plan must have values. Those that leave by module, or by size or stage,
  // are timed as what they are without copies, which is then known too.
  void prepare(const std::vector<Plan>& plans, int threads);

  // Requires prepare() of an equal plan.
  const LayerProfile& of(const Plan& plan) const;

 private:
  std::string key_of(const Plan& plan) const;

  const Model& model_;
  const CostModel& costs_;
  const std::optional<StackFacts> facts_;  // whose graphs are timed; Ballast's where there are none
  const bool alike_;
  std::map<std::string, std::unique_ptr<LayerProfile>> profiles_;
};

// True where every layer has the same modules and shapes, and there are enough of them.
bool layers_are_alike(const Model& model);

// Layers whose activations leave, of `layers` of a chunk; of the model's last chunk the last stays.
int64_t leaving_layers(const ActivationPlan& plan, int64_t layers, bool ends_model);

}  // namespace ballast
