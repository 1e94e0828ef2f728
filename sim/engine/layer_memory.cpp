#include "sim/engine/layer_memory.h"

#include <algorithm>

#include "sim/graph/build.h"
#include "sim/graph/report/memory.h"

namespace ballast {
namespace {

bool is_saved(const Tensor& tensor) {
  switch (tensor.kind) {
    case TensorKind::kOutput:
    case TensorKind::kKeysValues:
    case TensorKind::kNormStatistics:
    case TensorKind::kLogSumExp:
    case TensorKind::kScores:
    case TensorKind::kMask:
    case TensorKind::kSaved:
      return tensor.label.layer >= 0;
    default:
      return false;
  }
}

bool is_state(const Tensor& tensor) {
  switch (tensor.kind) {
    case TensorKind::kWeight:
    case TensorKind::kGradient:
    case TensorKind::kReduced:
    case TensorKind::kMaster:
    case TensorKind::kMoment1:
    case TensorKind::kMoment2:
      return true;
    default:
      return false;
  }
}

// Of the parameters on the device, the share that is of layers.
double share_of_layers(const Model& model, const Plan& plan) {
  int64_t in_layers = 0;
  int64_t all = 0;
  for (const Module& module : modules_of(rank_model(model, plan))) {
    const bool on_device = module.layer < 0 ? module.kind == ModuleKind::kEmbedding
                                            : module.layer < model.layers / plan.pipeline;
    if (plan.pipeline > 1 && !on_device) continue;
    all += module.count;
    in_layers += module.layer < 0 ? 0 : module.count;
  }
  return static_cast<double>(in_layers) / static_cast<double>(all);
}

}  // namespace

LayerMemory layer_memory(const Graph& graph, const Model& model, const Plan& plan) {
  const std::vector<Life> lives = lives_of(graph);
  const auto on_gpu = [&](size_t t) {
    const Tensor& tensor = graph.tensors[t];
    return lives[t].first >= 0 && tensor.device == 0 && tensor.place == Place::kHbm;
  };
  Bytes states;
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    if (on_gpu(t) && is_state(graph.tensors[t])) states += graph.tensors[t].all_bytes();
  }
  LayerMemory memory;
  memory.activations = peak_of(live_bytes(graph, lives, [&](size_t t) {
                         // What no backward reads is not saved.
                         return on_gpu(t) && is_saved(graph.tensors[t]) &&
                                graph.op(lives[t].last).phase != Phase::kForward;
                       })).live;
  memory.states = {
      static_cast<int64_t>(share_of_layers(model, plan) * static_cast<double>(states.count))};
  return memory;
}

}  // namespace ballast
