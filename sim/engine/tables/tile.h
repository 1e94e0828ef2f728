// Tile: the part of a product's output that one multiprocessor computes at a time.
//
// Smaller tiles run slower because each operand that they load serves fewer products (NVIDIA,
// "Matrix Multiplication Background User's Guide", tile quantisation).
// Will not do: time a product (sim/engine/gemm.cpp, sim/engine/tables/kernel_model.cpp), which each
// choose among tiles of their own.
#pragma once

#include <cstdint>

namespace ballast {

struct Tile {
  int64_t m = 0;
  int64_t n = 0;

  // Products that a loaded operand serves, on average.
  constexpr double reuse() const { return static_cast<double>(m * n) / static_cast<double>(m + n); }
  // Of the rate of `best`; `load`: multiply-adds of one operand element that take as long as
  // loading it.
  constexpr double share_of(const Tile& best, double load) const {
    return 1 / (1 + load * (1 / reuse() - 1 / best.reuse()));
  }
};

// Few tiles with a long k are split along k, in parts that each are started anew.
inline constexpr int64_t kLeastSplit = 512;  // k below which a part does not repay its start
inline constexpr int64_t kMostParts = 64;

}  // namespace ballast
