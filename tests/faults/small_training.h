// What trainings that meet faults share.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "tests/backend/tiny_training.h"
#include "tests/faults/simulated_disk.h"

namespace ballast::tests {

constexpr const char* kFolder = "/kept";  // of checkpoints

// By their step, the paths of those that have their names.
inline std::map<int64_t, std::string> checkpoints_on(SimulatedDisk& disk) {
  std::map<int64_t, std::string> paths;
  for (const std::string& name : disk.names_in(kFolder)) {
    if (!name.starts_with("step-") || !name.ends_with(".safetensors")) continue;
    paths[std::stoll(name.substr(5))] = std::string(kFolder) + "/" + name;
  }
  return paths;
}

inline Model small_model() {
  return tiny::gpt2({.layers = 1,
                     .hidden = 16,
                     .heads = 2,
                     .kv_heads = 2,
                     .head_size = 8,
                     .ffn = 32,
                     .vocab = 256,
                     .positions = 16});
}

}  // namespace ballast::tests
