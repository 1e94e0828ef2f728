// What trainings that meet faults share.
#pragma once

#include "tests/backend/tiny_training.h"

namespace ballast::tests {

constexpr const char* kFolder = "/kept";  // of checkpoints

inline Model small_model() {
  return tiny::gpt2({.layers = 1,
                     .hidden = 16,
                     .heads = 2,
                     .kv_heads = 2,
                     .head_size = 8,
                     .ffn = 32,
                     .vocab = 256,
                     .positions = 16});
}

}  // namespace ballast::tests
