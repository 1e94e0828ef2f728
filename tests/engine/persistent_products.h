// A GPU whose products run as persistent kernels (KernelTables::product_beside_collective).
#pragma once

#include <memory>
#include <utility>

#include "sim/engine/tables/kernel_model.h"
#include "sim/spec/machine.h"

namespace ballast::tests {

// The machine, which has a node, with products that keep six tenths of their speed beside
// collectives in it that hold 20 multiprocessors.
inline Machine with_persistent_products(Machine machine) {
  machine.node->multiprocessors.emplace().value = 20;
  KernelTables tables;
  tables.generation = "generation";
  tables.parts.emplace_back().name = "part";
  tables.product_beside_collective = {0.6, "by hand"};
  machine.gpu.kernels = {"generation", "part", std::make_shared<KernelModel>(std::move(tables))};
  return machine;
}

}  // namespace ballast::tests
