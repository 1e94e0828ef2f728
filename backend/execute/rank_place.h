// Where a rank of a plan stands: its index in each degree.
//
// Tensor-parallel ranks are neighbours, then come context, sequence and data, the order in which
// devices fill nodes (CollectiveWork::stride). The stages of a pipeline are no ranks: each rank has
// all of them.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/graph/core/edit.h"
#include "sim/spec/plan.h"
#include "sim/spec/ranks/ring.h"

namespace ballast {

// Ranks that run a plan.
inline int64_t rank_count(const Plan& plan) { return plan.tensor * plan.replicas(); }

inline RankGroup tensor_group(const Plan& plan) { return {plan.tensor, 1}; }
inline RankGroup sequence_group(const Plan& plan) {
  return {plan.sequence, plan.tensor * plan.context};
}

// Of the data ranks that share the experts, which are neighbours among them.
inline RankGroup expert_group(const Plan& plan) {
  return {plan.expert, plan.tensor * plan.sequence * plan.context};
}
inline RankGroup context_group(const Plan& plan) { return {plan.context, plan.tensor}; }
// Parts of equal length in which ranks have every sequence.
inline int64_t parts_of_sequences(const Plan& plan) { return plan.sequence * plan.context; }

// How many ranks keep the same of something, and which of them this one is.
struct RankCopies {
  int64_t index = 0;
  int64_t count = 1;
};

struct RankPlace {
  int64_t tensor = 0;
  int64_t context = 0;
  int64_t sequence = 0;
  int64_t data = 0;
  int64_t expert = 0;  // of the data ranks
};

inline RankPlace place_of(const Plan& plan, int rank) {
  const int64_t of_sequence = sequence_group(plan).stride;
  const int64_t data = rank / (of_sequence * plan.sequence);
  return {rank % plan.tensor, rank / plan.tensor % plan.context, rank / of_sequence % plan.sequence,
          data, data % plan.expert};
}

// The tokens of every sequence that a rank has, earliest first; all pieces have as many. Ranks that
// exchange heads have pieces side by side.
inline std::vector<Subsequence> pieces_of(const Plan& plan, const RankPlace& place) {
  std::vector<Subsequence> pieces = ring_pieces(plan, {0, plan.sequence_length}, place.context);
  for (Subsequence& piece : pieces) {
    piece.length /= plan.sequence;
    piece.begin += place.sequence * piece.length;
  }
  return pieces;
}

// The model whose attention a rank computes: of its tensor-parallel share, the heads that it has of
// whole sequences.
inline Model attention_model(Model rank, const Plan& plan) {
  rank.heads /= plan.sequence;
  rank.kv_heads /= plan.sequence;
  return rank;
}

}  // namespace ballast
