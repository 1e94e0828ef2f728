// How a plan that leaves memory_reuse open comes to one: as it is, and only where that does not fit
// with memory reused at once. Whoever fills in a plan asks here, so that all do the same.
//
// Will not do: tell what fits (it asks).
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "sim/spec/plan.h"
#include "sim/spec/stack.h"

namespace ballast {

// Values of Plan::memory_reuse, in the order in which they are tried; the first is the plan's own.
// Other frameworks have allocators, and no places that are planned: they have nothing to try.
inline std::vector<std::optional<MemoryReuse>> memory_reuses(const Plan& plan, const Stack& stack) {
  if (plan.memory_reuse || !stack.memory_is_planned()) return {plan.memory_reuse};
  return {std::nullopt, MemoryReuse::kAtOnce};
}

// Calls fits(reuse) with one after another, until it says yes; false where it never does.
template <class Reuse, class Fits>
bool any_reuse_fits(const std::vector<Reuse>& reuses, Fits&& fits) {
  return std::any_of(reuses.begin(), reuses.end(), fits);
}

}  // namespace ballast
