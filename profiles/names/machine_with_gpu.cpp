#include "profiles/names/machine_with_gpu.h"

#include <cstdlib>
#include <regex>
#include <utility>

namespace ballast {
namespace {

// What tells GPUs apart that run at different rates: "H100", and the card that it is on.
struct GpuModel {
  std::string name;
  std::string card;  // empty: a module (SXM), which drivers do not say
  bool operator==(const GpuModel&) const = default;
};

// The model is the first word of letters and then digits, "H100" of "NVIDIA H100 80GB HBM3" and
// "GB200" of "NVIDIA Blackwell of a GB200".
GpuModel gpu_model_of(const std::string& gpu) {
  static const std::regex model("\\b[A-Z]+[0-9]+[A-Za-z]?\\b");
  static const std::regex card("\\b(PCIe|NVL)\\b");
  GpuModel found;
  std::smatch match;
  if (std::regex_search(gpu, match, model)) found.name = match.str();
  if (std::regex_search(gpu, match, card)) found.card = match.str();
  return found;
}

}  // namespace

std::optional<Machine> machine_with_gpu(const std::vector<Machine>& machines,
                                        const std::string& gpu, Bytes memory) {
  const GpuModel wanted = gpu_model_of(gpu);
  if (wanted.name.empty()) return std::nullopt;
  std::optional<Machine> found;
  const auto rank = [&](const Machine& machine) {
    return std::pair(std::llabs((machine.gpu.memory.value - memory).count), machine.name);
  };
  for (const Machine& machine : machines) {
    if (gpu_model_of(machine.gpu.name) != wanted) continue;
    if (!found || rank(machine) < rank(*found)) found = machine;
  }
  return found;
}

}  // namespace ballast
