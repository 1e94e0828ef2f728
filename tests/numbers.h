// Numbers that look random and are the same everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ballast::tests {

class Numbers {
 public:
  explicit Numbers(uint64_t seed = 1) : state_(seed * 0x9e3779b97f4a7c15ULL + 1) {}

  int64_t below(int64_t bound) {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<int64_t>((state_ >> 33) % static_cast<uint64_t>(bound));
  }

 private:
  uint64_t state_ = 1;
};

inline std::string one_of(Numbers& numbers, const std::vector<std::string>& all) {
  return all[static_cast<size_t>(numbers.below(static_cast<int64_t>(all.size())))];
}

}  // namespace ballast::tests
