// What attention on one rank computes and moves, flash or eager.
//
// Will not do: know how long it takes (sim/engine/cost).
#pragma once

#include "sim/graph/core/graph.h"
#include "sim/spec/stack.h"

namespace ballast {

// Of `layer`, for one micro-batch; `rank` is the model of one tensor-parallel rank. A backward
// makes five products of the square [S, S], of which eager attention, which kept the scores, makes
// four; a forward two.
AttentionWork attention_work(const Model& rank, const Plan& plan, const StackFacts& facts,
                             Phase phase, int64_t layer);

// Elements of [B, H, S, S] on one rank.
int64_t scores_count(const Model& rank, const Plan& plan);

}  // namespace ballast
