// What ranks that share experts exchange: rows of tokens to the ranks of their experts and back,
// forward and backward, and how many these are.
//
// Rows of a rank's tokens lie in the order of all experts (backend/host/experts/routing.h), so
// those for another rank are one run. What a rank's experts are sent lies by expert, then by the
// rank that sent it, in the order in which one rank with all tokens would have it. With rows go
// their weights, and the gradients of the weights come back with those of the rows. How many rows a
// rank is sent is known only when it is: its tensors have room for an even share, and where there
// are more, all lie in memory beside the arena. Will not do: choose experts, or compute
// (backend/host).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "backend/comm/communicator.h"
#include "backend/execute/operation_arguments.h"
#include "backend/execute/rank_place.h"
#include "sim/graph/core/graph.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

// Arrays with a row for each that a rank's experts were sent.
enum class ExpertArray : uint8_t {
  kSent,
  kFc1,
  kActivation,
  kMade,
  kSentGradient,
  kFc1Gradient,
  kActivationGradient,
  kMadeGradient,
};
inline constexpr int kExpertArrays = 8;

class ExpertExchanges {
 public:
  // `model` is the whole one, or of one tensor-parallel rank. All must outlive this.
  ExpertExchanges(const Model& model, const Plan& plan, Communicator& ranks)
      : model_(model), plan_(plan), ranks_(ranks) {}

  // Of the rows of this rank's tokens, in the order of experts: where those of each expert begin
  // and the last ones end, and their weights. Before they are sent.
  void routed(const Label& label, std::span<const int64_t> first,
              std::span<const float> weights) const;
  // An all-to-all of the expert lane.
  void exchange(const Op& op, const OperationArguments& arguments, int32_t step) const;

  // What this rank's experts were sent in one layer, of one micro-batch.
  struct Sent {
    std::vector<int32_t> experts;         // by row: its expert among this rank's, ascending
    std::vector<float> weights;           // by row
    std::vector<float> weight_gradients;  // by row
    int64_t rows() const { return std::ssize(experts); }
  };
  Sent& sent(const Label& label) const { return layer_of(label).sent; }
  // Where the rows of an array lie whose planned place is the beginning of a tensor.
  std::byte* rows(const Label& label, ExpertArray array, const Argument& planned,
                  int64_t columns) const;
  // The gradients of the weights of this rank's tokens, in the order of experts.
  std::span<const float> weight_gradients(const Label& label) const {
    return layer_of(label).own_gradients;
  }
  // The most memory that there was beside the arena.
  Bytes beside() const;

 private:
  struct Layer {
    std::vector<int64_t> first;   // by expert of all: rows of this rank's tokens
    std::vector<int64_t> counts;  // by rank that sends and expert of this one: rows
    std::vector<float> own_weights, own_gradients;
    Sent sent;
    std::array<std::vector<std::byte>, kExpertArrays> beside;
  };
  Layer& layer_of(const Label& label) const;
  int64_t own_experts() const { return div_exact(model_.experts, plan_.expert); }
  int64_t even_share() const { return plan_.tokens_per_micro_batch() * model_.experts_per_token; }
  // Rows that go from this rank to each, and come from each.
  std::vector<int64_t> given(const Layer& layer) const;
  std::vector<int64_t> taken(const Layer& layer) const;
  void count(const Op& op, Layer& layer) const;
  // Rows of `size` bytes, of this rank's tokens to the experts, or back.
  void to_experts(const Op& op, const Layer& layer, const std::byte* from, int64_t size,
                  std::byte* to) const;
  void to_tokens(const Op& op, const Layer& layer, const std::byte* from, int64_t size,
                 std::byte* to) const;
  // Of one array, once nobody reads it any more.
  void give_back(std::vector<std::byte>& beside) const;
  // Calls for every run of rows of one rank and one expert: where it begins in what came rank by
  // rank, where among those of the experts, and how many they are.
  template <class Visit>
  void for_runs(const Layer& layer, const Visit& visit) const;

  const Model& model_;
  const Plan& plan_;
  Communicator& ranks_;
  mutable std::mutex mutex_;  // of the map and the sums; what is in it is ordered as operations are
  mutable int64_t beside_ = 0, most_beside_ = 0;                 // bytes
  mutable std::map<std::pair<int16_t, int16_t>, Layer> layers_;  // by layer and micro-batch
};

}  // namespace ballast
