#include "cli/report/comparison_page.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/compare/comparison.h"

namespace ballast {

void write_comparison_page(PageFile file, const nlohmann::ordered_json& json,
                           const StoreFlag& store) {
  std::vector<std::string> machines;
  for (const nlohmann::ordered_json& cell : json["cells"]) {
    const nlohmann::ordered_json& plan = cell["plan"];
    if (!plan.is_object() || !plan.contains("machine")) continue;
    const std::string name = plan["machine"];
    if (std::find(machines.begin(), machines.end(), name) == machines.end())
      machines.push_back(name);
  }
  if (file.title.empty()) file.title = comparison_title(json);
  write_page(file, {{"comparison", json}, {"machines", machines_json(machines, store)}});
}

}  // namespace ballast
