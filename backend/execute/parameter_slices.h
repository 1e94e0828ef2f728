// Which part of every parameter a rank has of those that split modules. Tensor-parallel ranks have
// heads, feed-forward columns and ids of the vocabulary in equal runs, the last of which may be
// short, and then ends with zeros. Ranks that share experts have consecutive experts, as many each:
// whole parameters, or a run of one that holds all experts. What is not split, norms and the like,
// every rank has whole.
//
// Will not do: know where a rank keeps its part (parameter_state), or which of the ranks that hold
// the same weights steps it (rank_shares).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "backend/comm/communicator.h"
#include "backend/execute/rank_place.h"
#include "sim/graph/core/graph.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

class ParameterSlices {
 public:
  // `model` is the whole one. The communicator and the graph must outlive this.
  ParameterSlices(const Graph& graph, const Model& model, const Plan& plan, Communicator& ranks);

  // The modules of the whole model; of one that the graph has, by the graph's index.
  const Module& whole(size_t module) const;
  // This rank's part of a parameter of the whole module, as the graph's module has it; null where
  // other ranks have all of it.
  const Parameter* own(size_t module, const Parameter& whole) const;
  // Elements that lie side by side both in the whole parameter and in this rank's part of it.
  struct Run {
    int64_t whole = 0, own = 0, count = 0;
  };
  std::vector<Run> own_runs(size_t module, const Parameter& whole) const;
  // Ranks that split modules and have the same of this parameter as this one.
  RankCopies copies(size_t module, const Parameter& whole) const;
  // Elements of the graph's module that all ranks have alike, as (begin, count).
  std::vector<std::pair<int64_t, int64_t>> alike(size_t module) const;

  // A part of values of the whole parameter.
  std::vector<float> cut(size_t module, const Parameter& whole,
                         std::span<const float> values) const;
  // The whole of every rank's part, which is empty where it has none; all ranks call.
  std::vector<float> join(size_t module, const Parameter& whole,
                          std::span<const float> own_values) const;

 private:
  // Equal runs of `width` of the whole, of which rank r has those from r * own_width on.
  struct Section {
    int64_t begin = 0, width = 0;
    int64_t own_begin = 0, own_width = 0;
  };
  std::vector<Section> sections_of(size_t module, const Parameter& whole) const;
  // Calls for every run of values that a rank has: from where in the whole, to where in its part.
  template <class Visit>
  void for_runs(size_t module, const Parameter& whole, int64_t rank, const Visit& visit) const;
  // The only rank of the group that has a parameter, or -1: each has a part, or all of it.
  int64_t holder_of(size_t module, const Parameter& whole) const;
  size_t index_of(size_t module, const Parameter& whole) const;
  // Where the part of a rank that has one stands among those of its module.
  size_t own_index(size_t module, const Parameter& whole) const;
  bool is_split(size_t module, const Parameter& whole) const;
  bool splits_experts() const { return plan_.expert > 1; }
  RankGroup group() const { return splits_experts() ? expert_group(plan_) : tensor_group(plan_); }
  int64_t self() const;

  const Graph& graph_;
  const Plan& plan_;
  Model model_;
  Communicator& ranks_;
  std::vector<Module> modules_;  // by index in the graph
};

}  // namespace ballast
