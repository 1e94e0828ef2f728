// Device tables from profiles/kernels, one file a generation of GPUs, schema "ballast.kernels/1".
//
// Only sources of this folder and tests include this header. Will not do: interpolate
// (sim/engine/tables/kernel_model.h).
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "sim/engine/tables/kernel_model.h"

namespace ballast {

// Throws Error naming the file and the key for anything missing, unknown or out of range.
KernelTables parse_kernels(std::string_view text, const std::string& source);

// The model of a shipped generation ("hopper"), read once a process.
std::shared_ptr<const KernelModel> load_kernels(const std::string& generation);

}  // namespace ballast
