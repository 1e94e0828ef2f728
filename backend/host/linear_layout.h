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
};

// Of kQkv, kAttentionOut, kFc1, kFc2 or kHead.
LinearLayout linear_layout(const Model& model, ModuleKind kind);

}  // namespace ballast::transformer
