// The spaces of many layouts: those that only degrees tell apart share one, which is made once.
//
// Will not do: search them (autotune/search/search.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "autotune/space/space.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

struct SharedSpace {
  std::shared_ptr<const Space> space;
  int64_t cell_size = 0;  // plans of one micro-batch and choice of activations
};

// One for every layout, in their order; none where `interrupted` says so, which is asked on any
// thread and may be empty. Requires check(layout, model) of each to pass.
std::vector<SharedSpace> shared_spaces(const Model& model, const std::vector<Plan>& layouts,
                                       const OpenKnobs& open, int threads,
                                       const std::function<bool()>& interrupted);

}  // namespace ballast
