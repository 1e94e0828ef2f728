// Layers with experts on plain arrays: tokens to experts and back, the experts' products and
// activations, forward and backward.
//
// No token is dropped: each expert takes the rows that it is sent, in the order of their tokens, so
// every sum has one order (dropless, as MegaBlocks: Gale et al., arXiv 2211.15841). What experts
// make of a token is weighted in front of kFc2, so that nothing of fc2 need be kept for the
// gradients of the weights. Views are those of transformer.h; rows [T * experts a token, columns]
// are ordered as routing.h says. Will not do: choose experts (routing.h).
#pragma once

#include <span>

#include "backend/host/experts/routing.h"
#include "backend/host/transformer.h"

namespace ballast::transformer {

// to[row of a choice] = x[its token]. x: [T, C].
void send_rows(const ExpertRows& rows, ConstView x, View to);
// to[token] = start[token] + the sum of its rows, best choice first. start: [T, C], which may be
// `to`; data null: 0.
void sum_rows(const ExpertRows& rows, ConstView from, ConstView start, View to);

// Products of kFc1 and kFc2: each expert's rows with its weights. x: [rows, in], y: [rows, out].
// A layer's parameters as in Module::parameters; dparams of an expert without rows become 0.
void experts_forward(const Model&, ModuleKind, ConstView x, const ExpertRows& rows,
                     ConstView params, View y);
void experts_backward_input(const Model&, ModuleKind, ConstView dy, const ExpertRows& rows,
                            ConstView params, View dx);
void experts_backward_weight(const Model&, ModuleKind, ConstView dy, ConstView x,
                             const ExpertRows& rows, View dparams, bool accumulate);
// The same of the shared experts, which every token passes: as linear_forward and its gradients.
void shared_forward(const Model&, ModuleKind, ConstView x, ConstView params, ConstView residual,
                    View y);
void shared_backward_input(const Model&, ModuleKind, ConstView dy, ConstView params, View dx);
void shared_backward_weight(const Model&, ModuleKind, ConstView dy, ConstView x, View dparams,
                            bool accumulate);

// A layer's scores [T, E] and the choice made of them. Of rows that ranks were sent, in the order
// of this rank's experts: the expert of each, [rows, 1], and their weights, which come with them.
struct Routed {
  ConstView scores;
  ConstView choice;
  const float* weights = nullptr;  // [rows], or null: they follow from the scores
};

// kFc2's biases of experts (gpt_oss) count as often as their weights say.
//   forward:   y[row] += weight * bias        y: [rows, C]
//   weight:    dbias += weight * dy[row], after experts_backward_weight has written the rest
//   input:     dscores[token, expert] = dy[row] . bias, the others of it are not written
void add_weighted_biases(const Model&, const Routed& routed, ConstView params, View y);
void weighted_biases_backward(const Model&, const Routed& routed, ConstView dy, View dparams,
                              bool accumulate);
void bias_weights_backward(const Model&, const Routed& routed, ConstView dy, ConstView params,
                           View dscores);

// h: [rows, gates * F of one expert]; a: [rows, F], the activation times the weight of the row.
void experts_activation_forward(const Model&, const Routed& routed, ConstView h, View a);
// dscores: [T, E] at the chosen experts becomes the gradient of their weights, or is added to where
// `adds` is set; elsewhere it is not written. Of rows that were sent: [rows, 1].
void experts_activation_backward(const Model&, const Routed& routed, ConstView h, ConstView da,
                                 View dh, View dscores, bool adds);
// Puts the gradients of the weights of all rows, in the order of experts, where the two functions
// before leave theirs.
void put_weight_gradients(const ExpertRows& rows, std::span<const float> by_row, View dscores);
// Of the shared experts, unweighted: h: [T, gates * F of them].
void shared_activation_forward(const Model&, ConstView h, View a);
void shared_activation_backward(const Model&, ConstView h, ConstView da, View dh);

}  // namespace ballast::transformer
