// Random draws that are the same on every library: no distribution of the standard's is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace ballast::tests {

class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {}

  size_t below(size_t count) { return random_() % count; }
  std::string one_of(const std::vector<std::string>& all) { return all[below(all.size())]; }

 private:
  std::mt19937 random_;
};

}  // namespace ballast::tests
