// The operations of training, timed over a grid of sizes: small models of one layer are run on the
// host device, so that every operation is exactly the one that a plan would run.
//
// Will not do: time a given plan (measure_operations in backend/trainer.h).
#pragma once

#include <string>
#include <vector>

#include "backend/trainer.h"

namespace ballast {

// One model of the grid and how it is run.
struct OperationCase {
  std::string name;  // "gpt2 width 256, 4 x 128 tokens, bf16"
  Model model;
  Plan plan;
};

// From small to large; `largest_width` 64 and up leaves out wider models.
std::vector<OperationCase> operation_grid(int64_t largest_width);

// One a cost key.
std::vector<OperationTime> time_case(const OperationCase& of, double seconds,
                                     int optimizer_threads);

}  // namespace ballast
