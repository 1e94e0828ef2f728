#include "backend/host/linear_layout.h"

#include "sim/base/error.h"
#include "sim/spec/model_family.h"

namespace ballast::transformer {

void LinearLayout::add(int64_t width) {
  parts[count++] = {width, out, parameters, parameters + in * width};
  out += width;
  parameters += in * width + (has_bias ? width : 0);
}

void LinearLayout::shift(int64_t by) {
  for (size_t i = 0; i < count; ++i) {
    parts[i].weight += by;
    parts[i].bias += by;
  }
  parameters += by;
}

LinearLayout linear_layout(const Model& m, ModuleKind kind) {
  const bool fused = model_family(m.architecture).gpt2_names;
  LinearLayout layout;
  layout.order = m.layout;
  switch (kind) {
    case ModuleKind::kQkv:
      layout.in = m.hidden;
      layout.has_bias = m.qkv_bias;
      if (fused) {
        layout.add(m.qkv_width());
      } else {
        layout.add(m.attention_width());
        layout.add(m.kv_heads * m.head_size);
        layout.add(m.kv_heads * m.head_size);
      }
      break;
    case ModuleKind::kAttentionOut:
      layout.in = m.attention_width();
      layout.has_bias = m.attention_out_bias;
      layout.add(m.hidden);
      break;
    case ModuleKind::kRouter:
      layout.in = m.hidden;
      layout.has_bias = m.router_bias && m.router == RouterKind::kSoftmax;
      layout.add(m.experts);
      break;
    case ModuleKind::kFc1:
      layout.in = m.hidden;
      layout.has_bias = m.mlp_bias;
      layout.add(fused ? m.fc1_width() : m.ffn);
      if (!fused) layout.add(m.ffn);
      break;
    case ModuleKind::kFc2:
      layout.in = m.ffn;
      layout.has_bias = m.mlp_bias;
      layout.add(m.hidden);
      break;
    case ModuleKind::kHead:  // [V, C] in every architecture, as the token embedding is
      layout.order = WeightLayout::kOutIn;
      layout.in = m.hidden;
      layout.add(m.vocab);
      break;
    default:
      CHECK(false && "not a linear module");
  }
  return layout;
}

namespace {

// All experts' matrices of one sort side by side, each [in, out], and then all biases.
LinearLayout stacked_layout(const Model& m, ModuleKind kind, int64_t expert) {
  LinearLayout layout;
  layout.order = WeightLayout::kInOut;
  layout.has_bias = m.mlp_bias;
  layout.in = kind == ModuleKind::kFc1 ? m.hidden : m.expert_ffn;
  const int64_t out = kind == ModuleKind::kFc1 ? m.gates() * m.expert_ffn : m.hidden;
  const int64_t weights = layout.in * out;
  layout.parts[0] = {out, 0, expert * weights, m.experts * weights + expert * out};
  layout.count = 1;
  layout.out = out;
  layout.parameters = m.experts * (weights + (m.mlp_bias ? out : 0));
  return layout;
}

}  // namespace

LatentLayout latent_layout(const Model& m) {
  CHECK(m.is_latent());
  LatentLayout all;
  int64_t offset = 0;
  const auto product = [&](int64_t in, int64_t out, bool bias) {
    LinearLayout layout;
    layout.order = m.layout;
    layout.in = in;
    layout.has_bias = bias;
    layout.add(out);
    layout.shift(offset);
    offset = layout.parameters;
    return layout;
  };
  const int64_t queries = m.heads * m.head_size;
  if (m.query_rank > 0) {
    all.query_down = product(m.hidden, m.query_rank, m.qkv_bias);
    all.query_norm = offset;
    offset += m.query_rank;
  }
  all.query_up = product(m.query_rank > 0 ? m.query_rank : m.hidden, queries, false);
  all.key_down = product(m.hidden, m.kv_rank + m.rope_size, m.qkv_bias);
  all.key_norm = offset;
  offset += m.kv_rank;
  all.key_up = product(m.kv_rank, m.heads * (m.head_size - m.rope_size + m.value_size), false);
  return all;
}

LinearLayout expert_layout(const Model& m, ModuleKind kind, int64_t expert) {
  CHECK(kind == ModuleKind::kFc1 || kind == ModuleKind::kFc2);
  if (model_family(m.architecture).stacks_experts) return stacked_layout(m, kind, expert);
  const auto of_width = [&](int64_t ffn) {
    LinearLayout layout;
    layout.order = m.layout;
    layout.has_bias = m.mlp_bias;
    layout.in = kind == ModuleKind::kFc1 ? m.hidden : ffn;
    if (kind == ModuleKind::kFc2) layout.add(m.hidden);
    for (int64_t gate = 0; kind == ModuleKind::kFc1 && gate < m.gates(); ++gate) layout.add(ffn);
    return layout;
  };
  const int64_t each = of_width(m.expert_ffn).parameters;
  const bool is_shared = expert == kSharedExperts;
  LinearLayout layout = of_width(is_shared ? m.shared_ffn() : m.expert_ffn);
  layout.shift((is_shared ? m.experts : expert) * each);
  return layout;
}

}  // namespace ballast::transformer
