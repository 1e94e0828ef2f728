// A ring of ranks that share every sequence (Plan::context): which tokens each has, in how many
// rounds it meets those of others, and how much the one with the most has to attend for.
// Will not do: know what is sent (sim/graph/passes/sequence.cpp), or how long anything takes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

// Into how many pieces a ring of `context` ranks cuts a sequence, or a part of one.
int64_t ring_piece_count(ContextBalance balance, int64_t context);

// Tokens of a part of every sequence that rank `rank` of a ring (below Plan::context) has, earliest
// first: two pieces of a zigzag, else one. Requires pieces that divide the part.
std::vector<Subsequence> ring_pieces(const Plan& plan, const Subsequence& part, int64_t rank);

// Rounds after that in which each rank attends for its own tokens alone. Without helpers keys and
// values come once from every other rank. With them, of P ranks in round t, rank r >= t has the
// keys and values of rank r - t. One below t has no earlier ones left to see: it helps, with the
// queries of rank P - t + r and its own keys and values, P - t pieces before them, and gives the
// output back. So rounds 1 to P / 2 meet every piece of queries with every earlier one of keys
// once; for an even P the last of them has all pairs of its distance by itself, and half of the
// ranks idle (DistFlashAttn, arXiv 2310.03294, load-balanced scheduling).
struct RingRounds {
  int64_t all = 0;
  int64_t helped = 0;  // of them
};
RingRounds ring_rounds(const Plan& plan);

// Pairs, counted twice as by causal_area, that the busiest rank of a ring attends for; of no ring
// those of all queries of the part. Of a zigzag without a window every rank has as many, and so it
// is with helpers of an odd number of ranks; requires what refusal_of_ring lets pass.
double busiest_area(const Plan& plan, const Subsequence& part, int64_t window);

// What keeps a plan from sharing sequences as its context_balance says.
std::optional<KnobRefusal> refusal_of_ring(const Plan& plan, const Model& model);

}  // namespace ballast
