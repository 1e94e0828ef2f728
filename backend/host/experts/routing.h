// Routers of layers with experts on plain arrays: which experts a token is sent to, with which
// weights, which of the experts' rows it has, and the gradients of its scores.
//
// What is chosen is a tensor of its own (choice, int32 [T, experts a token], best first); weights
// and rows follow from scores and choice, and are derived wherever they are needed. A token's best
// are the largest scores, of equal ones the lowest expert. Letters and views are those of
// transformer.h. Will not do: allocate beyond the scratch of its threads.
#pragma once

#include <cstdint>

#include "backend/host/transformer.h"

namespace ballast::transformer {

// scores: [T, E], the router's products; params: its module, read where the family corrects its
// choice (RouterKind::kSigmoid with router_bias), else of any length.
void choose_experts(const Model&, ConstView scores, ConstView params, View choice);

// The rows of a layer's experts: those of expert 0 first, an expert's in the order of its tokens.
// In scratch of the calling thread, until it asks for others.
struct ExpertRows {
  int64_t experts = 0;
  int64_t per_token = 0;
  int64_t tokens = 0;
  const int32_t* choice = nullptr;    // [T, experts a token]
  const int64_t* first = nullptr;     // [E + 1]: the rows of expert e are first[e] to first[e + 1]
  const int64_t* of_token = nullptr;  // [T, experts a token]: the row for each choice
  int64_t count() const { return tokens * per_token; }
};
ExpertRows expert_rows(const Model&, ConstView choice);

// weights: [T, experts a token], with what the experts' results are multiplied. In scratch of the
// calling thread, until it asks for others.
template <class Real>
const Real* choice_weights(const Model&, ConstView scores, ConstView choice);

// How evenly a layer's tokens are spread adds to balance, [2, E] in fp64: tokens sent to each
// expert, and probabilities (softmax over all experts). Cleared before where `first` is set.
void add_balance(const Model&, ConstView scores, ConstView choice, bool first, double* balance);
// The loss that balances experts, over `rows` tokens of all layers together; the second half of
// balance becomes its gradient by a token's probabilities, times gradient_factor.
double balance_loss(const Model&, int64_t rows, double gradient_factor, double* balance);

// dscores: [T, E]; holds the gradients of the weights at the chosen experts and anything elsewhere,
// and becomes the gradient of the scores. balance: as balance_loss left it, or null.
void scores_backward(const Model&, ConstView scores, ConstView choice, const double* balance,
                     View dscores);

}  // namespace ballast::transformer
