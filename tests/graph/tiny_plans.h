// Models and plans small enough to count their operations by hand.
#pragma once

#include "sim/graph/build.h"

namespace ballast::tiny {

// C=8, H=2, F=32, V=16, 2 layers; every module has fewer than kSegment parameters, so each is one
// segment.
inline Model model() {
  Model model;
  model.name = "tiny";
  model.architecture = "llama";
  model.layers = 2;
  model.hidden = 8;
  model.heads = model.kv_heads = 2;
  model.head_size = 4;
  model.ffn = 32;
  model.vocab = 16;
  model.max_positions = 64;
  model.norm = NormKind::kRmsNorm;
  model.position = PositionKind::kRope;
  model.activation = ActivationKind::kSwiGlu;
  return model;
}

// One micro-batch of 2 x 4 tokens, waits, casts on the GPU, one bucket a module.
inline Plan plan() {
  Plan plan;
  plan.global_batch = 2;
  plan.micro_batch = 2;
  plan.sequence_length = 4;
  plan.weights.flow_share = 0;
  plan.optimizer.gpu_buckets = 0;
  plan.optimizer.bucket_bytes = {1};
  plan.optimizer.sync = SyncMode::kWait;
  plan.activations = ActivationPlan{};
  return plan;
}

inline int64_t count(const Graph& graph, OpKind kind, Phase phase) {
  int64_t found = 0;
  for (const Op& op : graph.step.ops) found += op.kind == kind && op.phase == phase;
  return found;
}

inline int64_t count(const Graph& graph, OpKind kind) {
  int64_t found = 0;
  for (const Op& op : graph.step.ops) found += op.kind == kind;
  return found;
}

inline OpId first(const Graph& graph, OpKind kind) {
  for (size_t i = 0; i < graph.step.ops.size(); ++i) {
    if (graph.step.ops[i].kind == kind) return static_cast<OpId>(i);
  }
  return -1;
}

}  // namespace ballast::tiny
