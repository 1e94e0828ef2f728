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
#include <vector>

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
  int64_t length = 0;     // S, or of a part of every sequence
  int64_t begin = 0;      // of the part in its sequence
  int64_t whole = 0;      // S where they are parts; 0: they are whole
  int64_t first = 0;      // position of the first of these tokens' ids, where ranks share sequences
  // Where a rank has two pieces of every sequence, of which each counts as a sequence here: the
  // position of the first ids of the second ones.
  int64_t second = -1;
  int64_t pieces() const { return second < 0 ? 1 : 2; }
  int64_t tokens() const { return sequences * length; }
  int64_t position(int64_t token) const {
    const bool is_second = second >= 0 && token / length % 2 == 1;
    return (is_second ? second : first) + begin + token % length;
  }
  // Of a token in rows of S + 1 ids.
  int64_t id_at(int64_t token) const {
    return token / length * ((whole > 0 ? whole : length) + 1) + begin + token % length;
  }
};

// Which of a vocabulary that ranks share this one has, where its model's is of one rank: ids
// [first, first + count), of which the model may have more rows, which stay zeros.
struct VocabularyPart {
  int64_t first = 0;
  int64_t count = 0;           // 0: it is not shared
  int64_t all = 0;             // of all ranks
  bool adds_positions = true;  // one of the ranks does, as what each makes is summed
  bool is_shared() const { return count > 0; }
};

// Token ids are int32 [B, S+1]: inputs are columns 0..S-1, targets 1..S. Embedding of the model:
// token vectors, plus position vectors where learned. params: embedding module. out: [T, C].
// Of a shared vocabulary the vectors of tokens that other ranks have are zeros.
void embedding_forward(const Model&, Shape, const int32_t* tokens, ConstView params, View out,
                       const VocabularyPart& part = {});
// Adds (or, with accumulate false, first clears) the gradient of the embedding module. dout: [T,
// C]. With tied embeddings call with accumulate true after the head has written its share. Throws
// Error on a token id outside the vocabulary, or a sequence longer than the learned positions.
void embedding_backward(const Model&, Shape, const int32_t* tokens, ConstView dout, View dparams,
                        bool accumulate, const VocabularyPart& part = {});

// out = norm of the first columns of x, as many as out has; statistics: fp32 (fp64 in fp64) [T, 2],
// mean (0 for RMSNorm) and 1/deviation. epsilon 0: the model's.
void norm_forward(const Model&, ConstView x, ConstView params, View out, View statistics,
                  double epsilon = 0);
// dx = gradient through the norm + residual_gradient (absent: data null; may be the same array as
// dx); of columns beyond those of dout dx is not written.
void norm_backward(const Model&, ConstView x, ConstView statistics, ConstView params,
                   ConstView dout, ConstView residual_gradient, View dx, View dparams,
                   bool accumulate);

// Writes a module's gradient, or adds to it in fp32 and rounds once. Overwrites `sums`.
void put_gradient(std::span<float> sums, View dparams, bool adds);

// A linear module (kQkv, kAttentionOut, kRouter, kHead; kFc1 and kFc2 without experts): y = x W (+
// bias) (+ residual). The module's parameters may be several matrices (q, k, v or gate, up) whose
// outputs lie side by side in y, each followed by its bias where the model has one. For kHead with
// tied embeddings params is the embedding module's array: its first V*C elements are used, and of
// dparams written; the rest of dparams (positions) is cleared unless accumulate is set. residual:
// data null if there is none; may be the same array as y. Without adds_bias the bias is left to
// whoever sums partial products.
void linear_forward(const Model&, ModuleKind, ConstView x, ConstView params, ConstView residual,
                    View y, bool adds_bias = true);
void linear_backward_input(const Model&, ModuleKind, ConstView dy, ConstView params, View dx,
                           bool accumulate = false);
void linear_backward_weight(const Model&, ModuleKind, ConstView dy, ConstView x, View dparams,
                            bool accumulate);

// Latent attention's way from the hidden state to heads (DeepSeek-V2, arXiv 2405.04434, section
// 2.1), a product at a time: queries down to their latent and up, keys and values down, with the
// keys' rotary columns, and up; between the two the caller normalises (norm_forward).
// That of the norms between them, whatever the model's (transformers, DeepseekV3RMSNorm).
inline constexpr double kLatentNormEpsilon = 1e-6;
enum class LatentProduct : uint8_t { kQueryDown, kQueryUp, kKeyDown, kKeyUp };
// y: [T, query_rank], qkv, [T, kv_rank + rope_size], qkv. kQueryUp writes the queries of qkv,
// kKeyUp its keys and values; it takes the rotary columns, which all heads share, from `rotary`,
// what kKeyDown made.
void latent_forward(const Model&, LatentProduct, ConstView x, ConstView params, ConstView rotary,
                    View y);
void latent_backward_input(const Model&, LatentProduct, ConstView dy, ConstView params, View dx,
                           bool accumulate);
void latent_backward_weight(const Model&, LatentProduct, ConstView dy, ConstView x, View dparams,
                            bool accumulate);
// The last columns of dlatent [T, kv_rank + rope_size]: sums over the heads of dqkv.
void latent_rotary_backward(const Model&, ConstView dqkv, View dlatent);

// Whose attention: its layer decides the window, and its parameters, the module kCoreAttention, are
// the norms of the heads' q and k (Qwen3, arXiv 2505.09388: RMSNorm over D, before RoPE) and the
// sinks (gpt_oss: one more logit a head in the softmax, without a value). Data null without any.
struct AttentionOf {
  int64_t layer = 0;
  ConstView params;
};

// Causal attention with grouped KV heads, RoPE applied to q and k on the fly where the model has it
// (Hugging Face llama's rotate-half convention; with latent attention to the last rope_size columns
// of a head). A token sees the window of its layer. qkv: [T, H*D + K*D + K*value size], q heads,
// then k, then v. out: [T, H*value size]; log_sum_exp: fp32 (fp64) [B*H, S]. Scores are never
// stored whole beyond one head's tile; backward recomputes them from log_sum_exp. dqkv like qkv;
// dparams like the parameters, added to where `accumulate` is set.
void attention_forward(const Model&, Shape, ConstView qkv, View out, View log_sum_exp,
                       const AttentionOf& attention = {});
void attention_backward(const Model&, Shape, ConstView qkv, ConstView out, ConstView log_sum_exp,
                        ConstView dout, View dqkv, const AttentionOf& attention = {},
                        View dparams = {}, bool accumulate = false);

// The same for a part of the sequences. q: [T, H*D] of its own tokens. keys_values: [T', K*D +
// K*value size] of it and of parts before it, side by side in the sequences, at least those that it
// sees; its own are the last.
void part_attention_forward(const Model&, Shape, ConstView q,
                            const std::vector<ConstView>& keys_values, View out, View log_sum_exp,
                            const AttentionOf& attention = {});
// Where gradients of the keys and values of one part add up, fp32 (fp64); like keys_values, but of
// keys as attention takes them. adds: to what is there.
struct KeyGradient {
  View sums;
  bool adds = false;
};
struct PartOfAttention {
  ConstView q;
  std::vector<ConstView> keys_values;
  std::vector<KeyGradient> before;  // of all in keys_values but the last
  ConstView after;                  // what parts after it have left of its own; without data: none
};
// What the forward of a part made, and the gradient of its output.
struct PartResult {
  ConstView out;
  ConstView log_sum_exp;
  ConstView dout;
};
// dqkv: [T, H*D + K*D + K*value size], complete: no part after it may follow.
void part_attention_backward(const Model&, Shape, const PartOfAttention& part,
                             const PartResult& result, View dqkv, const AttentionOf& attention = {},
                             View dparams = {}, bool accumulate = false);
// The same in two calls, between which other ranks find more for `after`: the gradients of the
// part's own rows as attention has them, heads: like dqkv, fp32 (fp64), in which `after` has no say
// yet; and from there dqkv and the gradients of the norms, which are added to dparams.
void part_heads_backward(const Model&, Shape, const PartOfAttention& part, const PartResult& result,
                         View heads, const AttentionOf& attention, View dparams, bool accumulate);
void part_rows_backward(const Model&, Shape, const PartOfAttention& part, View heads, View dqkv,
                        const AttentionOf& attention, View dparams);
// kQkv forward, whose queries [T, H*D] lie apart from keys and values [T, K*D + K*value size].
void part_qkv_forward(const Model&, ConstView x, ConstView params, View q, View keys_values);

// Of layers without experts (transformer_experts.h has the others).
// h: [T, fc1 width]; a: [T, F]. SwiGLU: a = silu(gate) * up with gate the first F columns.
void activation_forward(const Model&, ConstView h, View a);
void activation_backward(const Model&, ConstView h, ConstView da, View dh);

// Mean cross-entropy in nats (returned, double, summed in a fixed order) over tokens [first, first
// + N) of the micro-batch, whose logits [N, V] are replaced by their gradient times gradient_factor
// (which folds 1/(T * accumulation) and the loss scale; the mean's 1/N is NOT applied again).
double loss_forward_backward(const Model&, Shape, const int32_t* tokens, View logits,
                             double gradient_factor, int64_t first = 0);

// The same of a vocabulary that ranks share (Megatron-LM, megatron/core/tensor_parallel/
// cross_entropy.py: VocabParallelCrossEntropy). What a rank tells of a token: its largest logit,
// the sum of the exponentials beyond that, and the target's logit, 0 where another rank has it;
// sums: [N, 3] in fp32.
void loss_sums(const Model&, Shape, const int32_t* tokens, ConstView logits,
               const VocabularyPart& part, View sums, int64_t first = 0);
// `sums` += those of another rank; in the same order on all of them.
void add_loss_sums(ConstView other, View sums);
// `sums`: of all ranks.
double shared_loss_forward_backward(const Model&, Shape, const int32_t* tokens, View logits,
                                    const VocabularyPart& part, ConstView sums,
                                    double gradient_factor, int64_t first = 0);

}  // namespace ballast::transformer
