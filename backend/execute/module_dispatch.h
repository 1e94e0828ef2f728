// Which of a device's modules carries out an operation: the one place that lists their kinds.
#pragma once

#include "sim/base/error.h"
#include "sim/graph/core/graph.h"

namespace ballast {

// Calls the one of six that the kind asks for. Requires an operation of a module.
template <class Embedding, class Norm, class Gemm, class Attention, class Activation, class Permute>
void dispatch_module(OpKind kind, Embedding embedding, Norm norm, Gemm gemm, Attention attention,
                     Activation activation, Permute permute) {
  switch (kind) {
    case OpKind::kEmbedding:
      return embedding();
    case OpKind::kNorm:
      return norm();
    case OpKind::kGemm:
      return gemm();
    case OpKind::kAttention:
      return attention();
    case OpKind::kActivation:
      return activation();
    case OpKind::kPermute:
    case OpKind::kCombine:
      return permute();
    default:
      CHECK(false && "not a module");
  }
}

}  // namespace ballast
