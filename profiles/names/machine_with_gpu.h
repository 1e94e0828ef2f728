// Which described machine has the GPU that a driver names.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/base/units.h"
#include "sim/spec/machine.h"

namespace ballast {

// Of these machines the one whose GPU the driver calls `gpu` ("NVIDIA H100 80GB HBM3" is "NVIDIA
// H100 SXM 80 GB"): of the same model, on a card (PCIe, NVL) if it is on one, and nearest in
// memory; the first by name where there are several.
std::optional<Machine> machine_with_gpu(const std::vector<Machine>& machines,
                                        const std::string& gpu, Bytes memory);

}  // namespace ballast
