// Collectives as they were measured, from profiles/fabrics, one file a fabric, schema
// "ballast.fabric/1".
//
// Only sources of this folder and tests include this header. Will not do: interpolate
// (sim/engine/tables/fabric_model.h).
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "sim/engine/tables/fabric_model.h"

namespace ballast {

// Throws Error naming the file and the key for anything missing, unknown or out of range.
FabricTables parse_fabric(std::string_view text, const std::string& source);

// The model of a shipped fabric, read once a process.
std::shared_ptr<const FabricModel> load_fabric(const std::string& name);

}  // namespace ballast
