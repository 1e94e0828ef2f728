// Seeds of simulations: so many from a first one on, by environment variables, and each by its
// number alone.
//   BALLAST_FAULT_SEEDS=5000        how many
//   BALLAST_FAULT_FIRST_SEED=4711   the first: with one of them, it again
#pragma once

#include <cstdint>
#include <cstdlib>

namespace ballast::tests {

struct Seeds {
  uint64_t first = 1;
  uint64_t count = 0;
};

inline Seeds seeds(uint64_t usual) {
  Seeds seeds{1, usual};
  if (const char* const count = std::getenv("BALLAST_FAULT_SEEDS")) {
    seeds.count = std::strtoull(count, nullptr, 10);
  }
  if (const char* const first = std::getenv("BALLAST_FAULT_FIRST_SEED")) {
    seeds.first = std::strtoull(first, nullptr, 10);
  }
  return seeds;
}

}  // namespace ballast::tests
