#include "backend/host/linear_layout.h"

#include "sim/base/error.h"
#include "sim/spec/model_family.h"

namespace ballast::transformer {

void LinearLayout::add(int64_t width) {
  parts[count++] = {width, out, parameters, parameters + in * width};
  out += width;
  parameters += in * width + (has_bias ? width : 0);
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

}  // namespace ballast::transformer
