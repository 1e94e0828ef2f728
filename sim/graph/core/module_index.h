// ModuleIndex: which module of a graph a label, or a tensor of that module, belongs to.
//
// Built once by whoever asks often; valid as long as the graph's modules stay as they are.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "sim/graph/core/graph.h"

namespace ballast {

class ModuleIndex {
 public:
  explicit ModuleIndex(const std::vector<Module>& modules) {
    by_label_.reserve(modules.size());
    for (size_t i = 0; i < modules.size(); ++i) {
      by_label_.emplace(key(modules[i].layer, modules[i].kind), static_cast<int32_t>(i));
    }
  }

  // Index into the modules, or -1: the head of a tied model has no module of its own.
  int32_t of(int64_t layer, ModuleKind kind) const {
    const auto found = by_label_.find(key(layer, kind));
    return found == by_label_.end() ? -1 : found->second;
  }
  int32_t of(const Label& label) const { return of(label.layer, label.module); }

  // By tensor: the module whose weights or gradient it is, whole or a shard; -1 for others.
  std::vector<int32_t> by_tensor(const Graph& graph) const {
    std::vector<int32_t> modules(graph.tensors.size(), -1);
    for (size_t t = 0; t < modules.size(); ++t) {
      if (is_of_module(graph.tensors[t].kind)) modules[t] = of(graph.tensors[t].label);
    }
    return modules;
  }

 private:
  static bool is_of_module(TensorKind kind) {
    return kind == TensorKind::kWeight || kind == TensorKind::kGradient ||
           kind == TensorKind::kGathered || kind == TensorKind::kFullGradient;
  }
  static int64_t key(int64_t layer, ModuleKind kind) {
    return layer * kModuleKinds + static_cast<int64_t>(kind);
  }

  std::unordered_map<int64_t, int32_t> by_label_;
};

}  // namespace ballast
