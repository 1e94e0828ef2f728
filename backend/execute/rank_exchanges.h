// What tensor-parallel ranks and those that share sequences exchange, as the graph's collectives
// say: sums of partial products, rows gathered by token, heads for tokens and back.
//
// Sums go in the order of the ranks, in fp32, and are rounded once to the type that they are stored
// in, so every rank has the same bits. Every lane of every stage has a channel of its own.
// Will not do: what ranks of data parallelism exchange (rank_shares, bucket_ranges).
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <tuple>
#include <vector>

#include "backend/comm/communicator.h"
#include "backend/execute/operation_arguments.h"
#include "backend/execute/rank_place.h"
#include "sim/graph/core/graph.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

class RankExchanges {
 public:
  // `rank_model`: of a tensor-parallel rank. All of what is referred to must outlive this.
  RankExchanges(const Model& rank_model, const Plan& plan, const OperationArguments& arguments,
                Communicator& ranks)
      : model_(rank_model), plan_(plan), arguments_(arguments), ranks_(ranks) {}

  // A collective of the tensor lane that sums or gathers rows.
  void tensor(const Op& op, int32_t step) const;
  // An all-to-all of the sequence lane, or a round of its ring.
  void sequence(const Op& op, int32_t step) const;
  // Within the attention of a ring of two: the keys and values of the other rank, which the ring
  // brings beside it. Waits for them; throws Error where this rank has failed.
  const std::byte* arrived(const Op& attention) const;
  // Gradients of keys and values that one rank of a ring of two found for the other's: given by
  // rank `from`, taken by the other.
  void pass_back(LaneId lane, int64_t from, std::span<float> gradients) const;
  // Whoever waits for a ring does so no longer.
  void fail() const;
  // `values` (fp32) of all ranks of a group, summed on each, in place; within an operation of this
  // lane.
  void sum(LaneId lane, const RankGroup& group, std::span<float> values) const;
  // The same bytes of every tensor-parallel rank one after another.
  std::vector<std::byte> all_of(LaneId lane, std::span<const std::byte> own) const;

 private:
  // Columns of one rank among those of all, which lie side by side by section: queries, keys,
  // values.
  struct Columns {
    int64_t begin = 0, count = 0;
  };
  std::vector<Columns> columns_of(ModuleKind kind, int64_t rank) const;
  void to_heads(const Op& op, const Argument& from, const Argument& to) const;
  void to_tokens(const Op& op, const Argument& from, const Argument& to) const;
  void exchange(const Op& op, const std::vector<std::byte>& given, std::byte* taken,
                int64_t bytes) const;

  void ring(const Op& op, int32_t step) const;

  const Model& model_;
  const Plan& plan_;
  const OperationArguments& arguments_;
  Communicator& ranks_;
  // What a ring has brought and its attention has not taken, by label: the two run side by side.
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable std::map<std::tuple<int16_t, int16_t, Phase>, const std::byte*> arrived_;
  mutable bool failed_ = false;
};

}  // namespace ballast
