// Algorithms of matrix products that one process chose and another may take, wherever kept.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace ballast {

// What cuBLASLt's heuristic chose for a shape, in its own form; good for one version of the library
// on one kind of GPU, both of which the key names.
using GemmAlgorithm = std::array<uint64_t, 8>;

// Keeps algorithms from one process to the next; either may be null. Called by one thread at a
// time.
struct GemmAlgorithmStore {
  std::function<std::optional<GemmAlgorithm>(const std::string& key)> find;
  std::function<void(const std::string& key, const GemmAlgorithm& algorithm)> keep;
};

}  // namespace ballast
