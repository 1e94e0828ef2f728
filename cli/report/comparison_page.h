// The page of a comparison, for `compare --html` and `report --compare` alike.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/report/origin.h"

namespace ballast {

// `json` is what comparison_json() makes, with the key "origin". Machines are looked up by their
// names, for the sources of their figures. A title of `file` that is empty says what is compared.
void write_comparison_page(PageFile file, const nlohmann::ordered_json& json,
                           const StoreFlag& store);

}  // namespace ballast
