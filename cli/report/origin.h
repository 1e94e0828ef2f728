// Where the numbers of a page come from: the command, the program, and the figures of the machines
// with their sources.
//
// Will not do: draw (cli/report/*.js) or predict.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/flags/inputs.h"
#include "cli/verbs/verbs.h"

namespace ballast {

// "ballast compare --set 'a b=1'": as a shell would take it.
std::string command_line(std::string_view verb, Words words);

// {"command", "version", "commit"}: what made a file.
nlohmann::ordered_json origin_json(const std::string& command);

// {"name", "description", "figures": [{"key", "value", "points", "measured", "source"}]}: every
// number of a machine that has a source. "key" ends in the unit. Of a curve "value" is the highest
// rate and "points" says of how many; other figures have no "points".
nlohmann::ordered_json machine_figures_json(const Machine& machine);

// The same of each name that can be loaded; of the others {"name", "missing": why not}.
nlohmann::ordered_json machines_json(const std::vector<std::string>& names, const StoreFlag& store);

// A page that is made now, from data with the keys of report_page(): `data` gets the key "page",
// which holds {"command", "version", "commit", "created_utc"}.
struct PageFile {
  std::string path;
  std::string title;
  std::string command;
};
void write_page(const PageFile& file, nlohmann::ordered_json data);

}  // namespace ballast
