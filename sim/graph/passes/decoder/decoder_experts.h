// The operations of layers with experts: a token's way to its experts and back.
//
// Forward, of one layer:
//   router         scores [T, E]
//   rows out       chooses experts for each token, sorts the tokens' rows by expert
//   (all-to-all)   to the ranks that hold the experts
//   fc1            each expert's product with its rows; shared experts with all tokens
//   activation     times the weight of the choice, so that fc2's results need not be kept
//   fc2            of the shared experts, onto the residual; each expert's product
//   (all-to-all)   back
//   rows back      sums the rows of each token onto that
// The rows of all experts together are T times experts a token, whoever is sent how many: buffers
// are exact, and nothing is dropped. Will not do: layers without experts (decoder.cpp).
#pragma once

#include <vector>

#include "sim/graph/passes/decoder/decoder_latent.h"

namespace ballast {

class DecoderExperts : protected DecoderLatent {
 protected:
  using DecoderLatent::DecoderLatent;

  // Before the first layer of a micro-batch.
  void start_balance(int16_t micro);
  // How evenly experts are used in a micro-batch, where that is part of the loss; else, or where no
  // layer wrote it, as in a chunk of the head alone, -1.
  TensorId balance() const { return balanced_ ? balance_ : -1; }

  void route(Label label, LayerSaved& saved);
  void experts_up(Label label, const LayerSaved& saved);
  // What an activation needs besides in a layer with experts.
  void add_routing(std::vector<Access>& accesses, const LayerSaved& saved) const;
  void experts_down(Label label, const LayerSaved& saved, TensorId y);

  // Gradients that the backward of one layer's experts passes on.
  struct ExpertGradients {
    TensorId scores = -1;  // of the router's scores; first of the weights of what was chosen
    TensorId activation = -1;
  };
  ExpertGradients experts_down_backward(Label label, Label activation, const LayerSaved& saved,
                                        TensorId dy);
  // From the gradient of fc1's output to that of the norm before the layer.
  TensorId experts_up_backward(Label label, Label router, Label norm, const LayerSaved& saved,
                               const ExpertGradients& gradients, TensorId dh);

 private:
  // Tokens times the experts that each is sent to, the shared ones not counted.
  int64_t sent_rows() const { return tokens() * model_.experts_per_token; }
  int64_t own_experts() const { return div_ceil(model_.experts, plan_.expert); }
  TensorId sent_tensor(TensorKind kind, Label label);
  // To the ranks that hold the experts, or back.
  TensorId exchange(TensorId from, Phase phase, Label label);
  // Rows of tokens put in the order of experts, or put back and summed. `bias_bytes`: that passes
  // over the experts' biases move beside, for each value.
  void move_rows(OpKind kind, Phase phase, Label label, std::vector<Access> accesses,
                 int64_t bias_bytes = 0);
  void product(Label label, const Product& product, int64_t experts, std::vector<Access> accesses);

  TensorId balance_ = -1;
  bool balanced_ = false;  // a layer of the micro-batch has written it
};

// routing.cpp: makes the rank that a plain graph is of the busiest one (Plan::routing_percent):
// more rows come to its experts, which multiply, keep and send back as many.
void load_busiest_rank(Graph& graph, const Model& model, const Plan& plan);

}  // namespace ballast
