// Lower bounds of a cell: all plans of one layout, micro-batch and choice of activations. What is
// ruled out here is ruled out by the thousand, before a graph of its size is built.
//
//   time     one device: every micro-batch takes the chains of its layers, one after another
//            (autotune/bounds/layer_costs), and keeps lanes, capacities and the host busy.
//            What the optimizer adds is the least over how many parameters the GPU steps and how
//            many weights flow: each lane needs its time for its share
//            (autotune/bounds/step_floor), and what neither leaves nor flows must find room beside
//            the activations.
//            A pipeline: stage s can begin when one forward has passed the stages
//            before it, then works on all micro-batches, and the last backward passes them again;
//            then the first stage steps.
//   memory   activations that wait for their backward, and the state that must be somewhere.
//
// Admissible like autotune/bounds/bound, whose bounds are never below these but where they look at
// less.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "autotune/bounds/layer_costs.h"
#include "autotune/bounds/step_floor.h"
#include "sim/graph/report/memory.h"
#include "sim/spec/machine.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

// Usable bytes by place.
using Usable = std::array<Bytes, kPlaces>;

// What of a plan is bounded: all plans of its cell, or with gpu_buckets and flow_share as it has
// them, where they have values. A pipeline is bounded by its cell.
enum class Bounded : uint8_t { kCell, kPlan };

// `plan`: every knob that a layout sets, and micro_batch and activations, have values.
Duration cell_time(const Model& model, const Plan& plan, const LayerProfile& profile,
                   const StepFloor& floor, const Usable& usable, Bounded extent = Bounded::kCell);

// Least memory of every place, with what fills it. Of a cell it may count on weights that flow and
// on buckets of either place, where the plan lets them.
std::vector<PlacePeak> cell_memory(const Model& model, const Plan& plan,
                                   const LayerProfile& profile, const Usable& usable,
                                   Bounded extent = Bounded::kCell);

}  // namespace ballast
