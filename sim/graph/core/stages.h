// The stages of a graph: which device holds a module, and the order of the model that they make up.
//
// The modules of a pipeline are numbered stage after stage, and a matrix of a tied embedding is in
// the first stage and the last. Whoever means the parameters of the whole model, in the order in
// which a graph of one device has them, asks here. A graph of one device is one stage.
// Will not do: say what a stage does (sim/graph/schedules).
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "sim/graph/core/graph.h"

namespace ballast {

int devices_of(const Graph& graph);  // at least 1

// By module: the device on which its state lies; 0 where it has no parameters.
std::vector<int> devices_of_modules(const Graph& graph);

// The modules that have parameters, by index, in the order of the model's flat space. Of a module
// that several stages hold only the first one's is there.
std::vector<int32_t> modules_in_order(const Graph& graph);

// The same module of other stages, by index; empty but for tied embeddings.
std::vector<int32_t> copies_of_module(const Graph& graph, int32_t module);

// Which module a tensor with its weights or gradients belongs to, on the tensor's own device.
class StageModules {
 public:
  explicit StageModules(const Graph& graph);
  // Index into the modules, or -1.
  int32_t of(const Tensor& tensor) const;

 private:
  static int64_t key(int device, int64_t layer, ModuleKind kind);
  std::unordered_map<int64_t, int32_t> by_place_;
};

}  // namespace ballast
