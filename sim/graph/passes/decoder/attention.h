// What attention on one rank computes and moves, flash or eager.
//
// Will not do: know how long it takes (sim/engine/cost).
#pragma once

#include "sim/graph/core/graph.h"
#include "sim/spec/stack.h"

namespace ballast {

// Of `layer`, for a part of the sequences of one micro-batch (all of them: from 0, as long as they
// are); `rank` is the model of one tensor-parallel rank. A backward
// makes five products of the square [S, S], of which eager attention, which kept the scores, makes
// four; a forward two.
AttentionWork attention_work(const Model& rank, const Plan& plan, const StackFacts& facts,
                             Phase phase, int64_t layer, Subsequence part);

// Elements of [B, H, S, S] on one rank; of a part [B, H, length, end]; of a ring the rows of the
// rank's queries.
int64_t scores_count(const Model& rank, const Plan& plan, Subsequence part);

// The first token that any query of a part sees.
int64_t first_seen(Subsequence part, int64_t window);

}  // namespace ballast
