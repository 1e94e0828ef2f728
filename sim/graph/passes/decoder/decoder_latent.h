// The products of latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): from the hidden
// state down to a latent, its norm, and up to the heads; queries so, and keys with values so.
//
// What the ranks of a tensor-parallel group hold of a layer are heads; the latents they all make,
// of the tokens that norms have on one rank. Will not do: attention itself (decoder.cpp).
#pragma once

#include "sim/graph/passes/decoder/decoder_ops.h"

namespace ballast {

class DecoderLatent : protected DecoderOps {
 protected:
  using DecoderOps::DecoderOps;

  // saved.qkv from saved.norm1.
  void latent_qkv(Label label, LayerSaved& saved);
  // The gradient of norm1 from that of qkv.
  TensorId latent_qkv_backward(Label label, Label norm, const LayerSaved& saved, TensorId dqkv);

 private:
  TensorId latent_tensor(TensorKind kind, Label label, int64_t width);
  // The latent of `width` columns, of which the first `normed` are normalised.
  Latent down(Label label, TensorId x, int64_t width, int64_t normed);
  // dqkv: of keys, whose latent holds the columns that rotate, for all heads; else -1.
  void down_backward(Label label, const LayerSaved& saved, const Latent& latent, TensorId dnormed,
                     int64_t width, int64_t normed, TensorId dqkv, TensorId dx);
  int64_t queries() const { return model_.heads * model_.head_size; }
  int64_t keys_and_values() const {
    return model_.heads * (model_.head_size - model_.rope_size + model_.value_size);
  }
};

}  // namespace ballast
