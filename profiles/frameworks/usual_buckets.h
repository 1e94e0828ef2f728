// Usual buckets: into how large pieces a framework cuts the gradients that it reduces on the GPU,
// where a run does not say. Among many ranks a ring takes longer to go round than to carry a small
// piece, so that a plan of another framework's buckets says little of this one's speed.
//
// By name of a shipped stack, each with where its source says so.
// Will not do: know buckets of optimizer state in CPU memory, which plans have for themselves.
#pragma once

#include <optional>
#include <string_view>

#include "sim/spec/plan.h"

namespace ballast {

// Gives a plan whose state the GPU steps the buckets of its framework, where they are known.
void use_usual_bucket(std::string_view stack, Plan& plan);

// As OptimizerPlan::bucket_bytes, of 32-bit values; absent where a framework's source was not read
// for it.
std::optional<Bytes> usual_bucket(std::string_view stack, const Plan& plan);

}  // namespace ballast
