// Where the shipped files lie, and which file a name on the command line means.
//
// Only sources of this folder include this header. Will not do: read what the files hold.
#pragma once

#include <string>
#include <vector>

namespace ballast {

// The names (file stems) in one folder of the shipped data: "machines", "models", "strategies".
std::vector<std::string> shipped_names(const std::string& kind);

struct Found {
  std::string path;
  std::string name;  // the file's stem, or the folder's name for a config.json
};
// Throws Error, with the nearest shipped name, where there is no such file.
Found find_file(const std::string& name_or_path, const std::string& kind);

}  // namespace ballast
