// What the queue of a search holds: regions, and entries that are known more or less finely.
//
// Will not do: search (autotune/search).
#pragma once

#include <compare>
#include <cstdint>
#include <memory>

#include "autotune/bounds/bound.h"
#include "autotune/bounds/step_floor.h"
#include "autotune/space/space.h"
#include "sim/base/units.h"
#include "sim/spec/plan.h"

namespace ballast {

// One layout, and the plans that it leaves open. What a search learns of it is made when needed.
struct Region {
  Plan base;
  std::shared_ptr<const Space> space;
  int64_t cell_size = 0;  // plans that share micro-batch and activations
  StepFloor floor;
  std::unique_ptr<Bounds> bounds;
};

// The plan of a cell: its optimizer's knobs are those of the base, or auto. Of the choice only
// micro_batch and activations are read.
Plan cell_plan(const Region& region, const Choice& cell);
// No plan of this micro-batch computes less than this one, which keeps all activations.
Plan node_plan(const Region& region, const Choice& node);

struct PlanId {
  int32_t region = 0;
  Choice choice;
  auto operator<=>(const PlanId&) const = default;
};

// The order of results: time, then fewer moving parts, then the order of layouts and choices.
struct Rank {
  Duration time;
  int parts = 0;
  PlanId id;
  auto operator<=>(const Rank&) const = default;
};

// How finely an entry of the queue is known. Of a node only region and micro_batch are read, of a
// cell also activations.
enum class Granularity : uint8_t { kNode, kCell, kPlan, kBoundedPlan };

struct Entry {
  Rank rank;
  Granularity granularity = Granularity::kNode;
};
struct Later {
  bool operator()(const Entry& a, const Entry& b) const { return a.rank > b.rank; }
};

}  // namespace ballast
