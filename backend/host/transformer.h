// The decoder's modules on the host device, forward and backward, on plain row-major arrays.
//
// Storage is fp32, bf16, fp16 or (for gradient checks) fp64; arithmetic is fp32, in fp64 storage
// fp64. A call runs on the calling thread and on those that are lent to it (compute_threads.h);
// results do not depend on anything but the arguments, so a repeated (recomputed) forward gives the
// same bits on any number of threads. Will not do: allocate beyond the scratch of its threads, know
// the graph, or start threads.
//
// Rows are tokens, T = sequences * length. Nothing overlaps unless said. `params` is a module's
// flat parameter array in the order of its Module::parameters (sim/spec/model.h).
#pragma once

#include <cstdint>
#include <span>

#include "sim/spec/dtype.h"
#include "sim/spec/model.h"

namespace ballast::transformer {

// Row-major [rows, columns] of `dtype`, contiguous.
struct View {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
};
struct ConstView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
  ConstView() = default;
  ConstView(const void* d, DType t, int64_t r, int64_t c)
      : data(d), dtype(t), rows(r), columns(c) {}
  ConstView(const View& v) : data(v.data), dtype(v.dtype), rows(v.rows), columns(v.columns) {}
};

struct Shape {
  int64_t sequences = 0;  // B
  int64_t length = 0;     // S
  int64_t tokens() const { return sequences * length; }
};

// Token ids are int32 [B, S+1]: inputs are columns 0..S-1, targets 1..S. Embedding of the model:
// token vectors, plus position vectors where learned. params: embedding module. out: [T, C].
void embedding_forward(const Model&, Shape, const int32_t* tokens, ConstView params, View out);
// Adds (or, with accumulate false, first clears) the gradient of the embedding module. dout: [T,
// C]. With tied embeddings call with accumulate true after the head has written its share. Throws
// Error on a token id outside the vocabulary, or a sequence longer than the learned positions.
void embedding_backward(const Model&, Shape, const int32_t* tokens, ConstView dout, View dparams,
                        bool accumulate);

// out = norm(x); statistics: fp32 (fp64 in fp64) [T, 2], mean (0 for RMSNorm) and 1/deviation.
void norm_forward(const Model&, ConstView x, ConstView params, View out, View statistics);
// dx = gradient through the norm + residual_gradient (absent: data null; may be the same array as
// dx).
void norm_backward(const Model&, ConstView x, ConstView statistics, ConstView params,
                   ConstView dout, ConstView residual_gradient, View dx, View dparams,
                   bool accumulate);

// A linear module (kQkv, kAttentionOut, kFc1, kFc2, kHead): y = x W (+ bias) (+ residual). The
// module's parameters may be several matrices (q, k, v or gate, up) whose outputs lie side by side
// in y, each followed by its bias where the model has one. For kHead with tied embeddings params is
// the embedding module's array: its first V*C elements are used, and of dparams written; the rest
// of dparams (positions) is cleared unless accumulate is set. residual: data null if there is none;
// may be the same array as y.
void linear_forward(const Model&, ModuleKind, ConstView x, ConstView params, ConstView residual,
                    View y);
void linear_backward_input(const Model&, ModuleKind, ConstView dy, ConstView params, View dx);
void linear_backward_weight(const Model&, ModuleKind, ConstView dy, ConstView x, View dparams,
                            bool accumulate);

// Causal attention with grouped KV heads, RoPE applied to q and k on the fly where the model has it
// (Hugging Face llama's rotate-half convention). qkv: [T, (H+2K)*D], q heads, then k, then v.
// Throws Error for a model with qk_norm. out: [T, H*D]; log_sum_exp: fp32 (fp64) [B*H, S]. Scores
// are never stored whole beyond one head's [S, S] scratch; backward recomputes them from
// log_sum_exp. dqkv: [T, (H+2K)*D].
void attention_forward(const Model&, Shape, ConstView qkv, View out, View log_sum_exp);
void attention_backward(const Model&, Shape, ConstView qkv, ConstView out, ConstView log_sum_exp,
                        ConstView dout, View dqkv);

// h: [T, fc1 width]; a: [T, F]. SwiGLU: a = silu(gate) * up with gate the first F columns.
void activation_forward(const Model&, ConstView h, View a);
void activation_backward(const Model&, ConstView h, ConstView da, View dh);

// Mean cross-entropy over all T tokens of the micro-batch in nats (returned, double, summed in a
// fixed order). logits [T, V] are replaced by their gradient times gradient_factor (which folds
// 1/(T * accumulation) and the loss scale; the mean's 1/T is NOT applied again).
double loss_forward_backward(const Model&, Shape, const int32_t* tokens, View logits,
                             double gradient_factor);

}  // namespace ballast::transformer
