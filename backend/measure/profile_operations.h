// The operations of training, timed over a grid of sizes: models of one layer are run on the device
// at hand, so that every operation is exactly the one that a plan would run.
//
// Will not do: time a given plan (measure_operations in backend/train/trainer.h).
#pragma once

#include <string>
#include <vector>

#include "backend/measure/operation_times.h"

namespace ballast {

// One model of the grid and how it is run.
struct OperationCase {
  std::string name;  // "gpt2 width 256, 4 x 128 tokens, bf16"
  Model model;
  Plan plan;
};

// From small to large; `largest_width` 64 and up leaves out wider models.
std::vector<OperationCase> operation_grid(int64_t largest_width);

// One layer of each of these models at full width, in bf16: those that a device can run, each shape
// once, narrow ones first. Layers of up to `largest_layer` parameters; a vocabulary is cut where
// its embedding has more.
std::vector<OperationCase> layer_grid(const std::vector<Model>& models, int64_t largest_layer);

// Every product of one layer, embedding and head of these models, at these numbers of tokens, each
// once (by cost key), by FLOPs; only of models without biases, where an operation is its product
// and no more.
std::vector<Op> product_grid(const std::vector<Model>& models, const std::vector<int64_t>& tokens);

// One a cost key. `options` says the device and the optimizer's threads.
std::vector<OperationTime> time_case(const OperationCase& operation, double seconds,
                                     const TrainerOptions& options);

}  // namespace ballast
