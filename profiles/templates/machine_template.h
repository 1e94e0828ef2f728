// A machine that nobody shipped, from what one knows of it: the GPU is taken from a shipped machine
// that has it, and so is whatever nobody said; all of that is marked as assumed in its source.
//
// Will not do: measure anything (`ballast profile`), or invent a GPU that no shipped machine has.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/spec/machine.h"

namespace ballast {

// What is known; the rest is assumed.
struct MachineRequest {
  std::string name;
  std::string gpu;   // a part of a GPU's name in a shipped machine: "rtx-4090"
  int64_t gpus = 1;  // of a node
  int64_t nodes = 1;
  std::optional<std::string> link;   // "pcie4x16", "c2c"
  std::optional<std::string> node;   // between GPUs: GB/s, or a shipped machine
  std::string network = "none";      // Gbit/s of a GPU's card ("400gbit"), or a shipped machine
  std::optional<Bytes> cpu_memory;   // of a node
  std::optional<int64_t> cpu_cores;  // of a node
  // Of a node's CPU memory, GB/s: what programs reach, reading and writing together.
  std::optional<double> cpu_bandwidth_gb_per_s;
};

struct MachineTemplate {
  Machine machine;
  std::string like;                  // the shipped machine that its parts were taken from
  std::vector<std::string> assumed;  // "cpu.cores: 16 a GPU, as rtx-4090-pcie has", one a line
};

// Throws Error for a GPU that no shipped machine has or several names mean, and for what
// contradicts itself.
MachineTemplate machine_template(const MachineRequest& request);

// The GPUs of the shipped machines by name, each once.
std::vector<std::string> shipped_gpus();

// "256GB", "2TB": decimal units, as memory is sold to people. Throws Error for anything else.
Bytes parse_memory(const std::string& flag, const std::string& text);

}  // namespace ballast
