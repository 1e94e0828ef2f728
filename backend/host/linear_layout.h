// The matrices of a linear module: where they lie in its flat parameters, and which columns of its
// output they make. Shared by every device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "sim/spec/model.h"

namespace ballast::transformer {

// One matrix of a module: its place in the flat parameters and its columns of y.
struct LinearPart {
  int64_t out = 0;
  int64_t column = 0;  // first column of y
  int64_t weight = 0;  // element offsets in the module's array
  int64_t bias = 0;    // if has_bias
};

// The matrices of a module in the order of its Module::parameters.
struct LinearLayout {
  WeightLayout order = WeightLayout::kOutIn;
  int64_t in = 0;
  int64_t out = 0;  // of all parts
  bool has_bias = false;
  std::array<LinearPart, 3> parts{};
  size_t count = 0;
  int64_t parameters = 0;

  void add(int64_t width);
  // From here on, `count` elements later.
  void shift(int64_t count);
};

// Of kQkv, kAttentionOut, kRouter, kFc1, kFc2 or kHead. kFc1 and kFc2: of a layer without experts.
LinearLayout linear_layout(const Model& model, ModuleKind kind);

// Of latent attention's kQkv: the four products, and where the weights of the two norms begin.
// query_down has no part where queries are made of the hidden state. Columns are those of the
// latents and of [T, H*D] queries; key_up's are, a head after the other, its columns of keys
// without a position and its values.
struct LatentLayout {
  LinearLayout query_down, query_up, key_down, key_up;
  int64_t query_norm = 0, key_norm = 0;
};
LatentLayout latent_layout(const Model& model);

// Of kFc1 or kFc2 in a layer with experts: those of one expert, or of the shared ones, which lie
// after all. Offsets are from the start of the module.
inline constexpr int64_t kSharedExperts = -1;
LinearLayout expert_layout(const Model& model, ModuleKind kind, int64_t expert);

}  // namespace ballast::transformer
