#include "sim/graph/core/stages.h"

#include <algorithm>
#include <limits>

namespace ballast {
namespace {

// The embedding begins the model; what else lies outside of the layers ends it.
int64_t place_in_model(const Module& module) {
  if (module.layer >= 0) return module.layer;
  return module.kind == ModuleKind::kEmbedding ? -1 : std::numeric_limits<int64_t>::max();
}

bool same_module(const Module& one, const Module& other) {
  return one.kind == other.kind && one.layer == other.layer;
}

}  // namespace

int devices_of(const Graph& graph) {
  return std::max(1, static_cast<int>(div_ceil(graph.lanes, int64_t{kLaneKinds})));
}

std::vector<int> devices_of_modules(const Graph& graph) {
  std::vector<int> devices(graph.modules.size(), 0);
  for (const Bucket& bucket : graph.buckets) {
    for (const Bucket::Piece& piece : bucket.pieces) {
      devices[static_cast<size_t>(piece.module)] = graph.tensor(bucket.master).device;
    }
  }
  return devices;
}

std::vector<int32_t> modules_in_order(const Graph& graph) {
  std::vector<int32_t> order;
  for (size_t i = 0; i < graph.modules.size(); ++i) {
    if (graph.modules[i].count > 0) order.push_back(static_cast<int32_t>(i));
  }
  const auto place = [&](int32_t i) { return place_in_model(graph.module(i)); };
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return place(a) < place(b); });
  const auto repeats = [&](int32_t a, int32_t b) {
    return same_module(graph.module(a), graph.module(b));
  };
  order.erase(std::unique(order.begin(), order.end(), repeats), order.end());
  return order;
}

std::vector<int32_t> copies_of_module(const Graph& graph, int32_t module) {
  std::vector<int32_t> copies;
  for (size_t i = 0; i < graph.modules.size(); ++i) {
    const auto other = static_cast<int32_t>(i);
    if (other != module && same_module(graph.module(module), graph.module(other))) {
      copies.push_back(other);
    }
  }
  return copies;
}

int64_t StageModules::key(int device, int64_t layer, ModuleKind kind) {
  constexpr int64_t kMostDevices = 256;
  return (layer * kModuleKinds + static_cast<int64_t>(kind)) * kMostDevices + device;
}

StageModules::StageModules(const Graph& graph) {
  const std::vector<int> devices = devices_of_modules(graph);
  for (size_t i = 0; i < graph.modules.size(); ++i) {
    const Module& module = graph.modules[i];
    by_place_.emplace(key(devices[i], module.layer, module.kind), static_cast<int32_t>(i));
  }
}

int32_t StageModules::of(const Tensor& tensor) const {
  const auto found = by_place_.find(key(tensor.device, tensor.label.layer, tensor.label.module));
  return found == by_place_.end() ? -1 : found->second;
}

}  // namespace ballast
