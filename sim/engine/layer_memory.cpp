#include "sim/engine/layer_memory.h"

#include <algorithm>

#include "sim/graph/build.h"
#include "sim/graph/report/memory.h"

namespace ballast {
namespace {

bool is_saved(const Tensor& tensor) {
  switch (tensor.kind) {
    case TensorKind::kOutput:
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
  Bytes states;
  std::vector<Bytes> change(graph.step.ops.size() + 1);
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    const Life& life = lives[t];
    if (life.first < 0 || tensor.device != 0 || tensor.place != Place::kHbm) continue;
    if (is_state(tensor)) states += tensor.all_bytes();
    // What no backward reads is not saved.
    if (!is_saved(tensor) ||
        graph.step.ops[static_cast<size_t>(life.last)].phase == Phase::kForward) {
      continue;
    }
    change[static_cast<size_t>(life.first)] += tensor.bytes();
    change[static_cast<size_t>(life.last) + 1] -= tensor.bytes();
  }
  LayerMemory memory;
  Bytes now;
  for (const Bytes& by : change) {
    now += by;
    memory.activations = std::max(memory.activations, now);
  }
  memory.states = {
      static_cast<int64_t>(share_of_layers(model, plan) * static_cast<double>(states.count))};
  return memory;
}

}  // namespace ballast
