#include "sim/graph/passes/decoder/decoder_latent.h"

namespace ballast {

namespace {

Label part_of(Label label, ChainPart part) {
  label.part = part;
  return label;
}

}  // namespace

TensorId DecoderLatent::latent_tensor(TensorKind kind, Label label, int64_t width) {
  return tensor(kind, Category::kActivations, label, split_tokens() * width);
}

DecoderLatent::Latent DecoderLatent::down(Label label, TensorId x, int64_t width, int64_t normed) {
  Latent latent;
  latent.made = latent_tensor(TensorKind::kOutput, label, width);
  emit(OpKind::kGemm, Phase::kForward, label,
       GemmWork{split_tokens(), width, model_.hidden, plan_.dtype, false},
       {read(x, Role::kInput), read(weight(label), Role::kWeight),
        write(latent.made, Role::kOutput)});
  latent.normed = latent_tensor(TensorKind::kOutput, label, normed);
  latent.statistics = statistics(label);
  emit(OpKind::kNorm, Phase::kForward, label,
       rows_of(split_tokens(), normed, norm_values(Phase::kForward, normed), 8),
       {read(latent.made, Role::kInput), read(weight(label), Role::kWeight),
        write(latent.normed, Role::kOutput), write(latent.statistics, Role::kStatistics)});
  return latent;
}

void DecoderLatent::latent_qkv(Label label, LayerSaved& saved) {
  const Label query_up = part_of(label, ChainPart::kQueryUp);
  const Label key_up = part_of(label, ChainPart::kKeyUp);
  TensorId from = saved.norm1;
  int64_t in = model_.hidden;
  if (model_.query_rank > 0) {
    in = model_.query_rank;
    saved.query = down(part_of(label, ChainPart::kQueryDown), saved.norm1, in, in);
    from = saved.query.normed;
  }
  emit(OpKind::kGemm, Phase::kForward, query_up,
       GemmWork{tokens(), queries(), in, plan_.dtype, false},
       {read(from, Role::kInput), read(weight(label), Role::kWeight),
        write(saved.qkv, Role::kOutput)});
  saved.key = down(part_of(label, ChainPart::kKeyDown), saved.norm1,
                   model_.kv_rank + model_.rope_size, model_.kv_rank);
  emit(OpKind::kGemm, Phase::kForward, key_up,
       GemmWork{tokens(), keys_and_values(), model_.kv_rank, plan_.dtype, false},
       {read(saved.key.normed, Role::kInput), read(saved.key.made, Role::kResidual),
        read(weight(label), Role::kWeight), update(saved.qkv, Role::kOutput)});
}

void DecoderLatent::down_backward(Label label, const LayerSaved& saved, const Latent& latent,
                                  TensorId dnormed, int64_t width, int64_t normed, TensorId dqkv,
                                  TensorId dx) {
  const TensorId dmade = latent_tensor(TensorKind::kOutputGradient, label, width);
  Access dweight = gradient(label);
  dweight.mode = AccessMode::kReadWrite;
  std::vector<Access> accesses = {
      read(latent.made, Role::kInput),    read(latent.statistics, Role::kStatistics),
      read(weight(label), Role::kWeight), read(dnormed, Role::kOutputGradient),
      write(dmade, Role::kInputGradient), dweight};
  if (dqkv >= 0) accesses.push_back(read(dqkv, Role::kResidualGradient));
  emit(OpKind::kNorm, Phase::kBackward, label,
       rows_of(split_tokens(), normed, norm_values(Phase::kBackward, normed), 14),
       std::move(accesses));
  BackwardOf backward{label, saved.norm1, dmade, dx};
  backward.follows = true;
  backward.rows = split_tokens();
  product_backward(backward, {model_.hidden, width});
}

TensorId DecoderLatent::latent_qkv_backward(Label label, Label norm, const LayerSaved& saved,
                                            TensorId dqkv) {
  const Label key_up = part_of(label, ChainPart::kKeyUp);
  const Label query_up = part_of(label, ChainPart::kQueryUp);
  const TensorId dx = output_gradient(norm, model_.hidden);
  if (model_.query_rank > 0) {
    const int64_t width = model_.query_rank;
    const TensorId dquery = latent_tensor(TensorKind::kOutputGradient, query_up, width);
    product_backward({query_up, saved.query.normed, dqkv, dquery}, {width, queries()});
    down_backward(part_of(label, ChainPart::kQueryDown), saved, saved.query, dquery, width, width,
                  -1, dx);
  } else {
    product_backward({query_up, saved.norm1, dqkv, dx}, {model_.hidden, queries()});
  }
  const TensorId dkey = latent_tensor(TensorKind::kOutputGradient, key_up, model_.kv_rank);
  BackwardOf backward{key_up, saved.key.normed, dqkv, dkey};
  backward.follows = true;
  product_backward(backward, {model_.kv_rank, keys_and_values()});
  down_backward(part_of(label, ChainPart::kKeyDown), saved, saved.key, dkey,
                model_.kv_rank + model_.rope_size, model_.kv_rank, dqkv, dx);
  return dx;
}

}  // namespace ballast
