// A plan that fits, as it was predicted: what searches and rankings return.
//
// Will not do: find one (autotune/search/search.h, autotune/complete/layouts/ranking.h).
#pragma once

#include <array>

#include "sim/base/units.h"
#include "sim/engine/predict.h"
#include "sim/graph/core/graph.h"
#include "sim/spec/plan.h"

namespace ballast {

struct Candidate {
  Plan plan;
  Duration step_time;
  double tokens_per_s = 0;
  std::array<Bytes, kPlaces> memory{};  // arenas, by Place
  Duration bound;                       // what its step time was known to be at least
};

// By whatever it was found; its bound is not known. Requires that it fits.
Candidate candidate_of(const Plan& plan, const Prediction& prediction);

}  // namespace ballast
