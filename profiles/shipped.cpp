#include "profiles/shipped.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "profiles/json_reader.h"
#include "profiles/load.h"
#include "profiles/names/meant.h"
#include "profiles/names/words.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;

std::string name_of(const fs::path& file) {
  const fs::path whole = fs::absolute(file).lexically_normal();
  if (const std::string name = name_in_hub_cache(whole.string()); !name.empty()) return name;
  if (whole.filename() == "config.json") return whole.parent_path().filename().string();
  return whole.stem().string();
}

// A folder that only has the name of something shipped is not what is meant: a model's folder holds
// its configuration, and other kinds have none.
bool is_path(const std::string& text, const std::string& kind) {
  std::error_code ignored;
  return text.find('/') != std::string::npos || text.ends_with(".json") ||
         (kind == "models" && fs::exists(fs::path(text) / "config.json", ignored));
}

Found find_path(const std::string& text, const std::string& kind) {
  std::error_code ignored;
  fs::path path = text;
  if (fs::is_directory(path, ignored)) path /= "config.json";
  if (!fs::exists(path, ignored)) {
    if (kind == "models" && is_hub_id(text)) {
      throw Error("model " + in_quotes(text),
                  "is no file, not in the local cache of the Hub, and none of the shipped models",
                  suggestion(lower_case(last_part(text)), shipped_names(kind)) +
                      ", or give a path ending in .json");
    }
    throw Error(path.string(), "there is no such file", "check the path");
  }
  return {path.string(), name_of(path)};
}

std::string singular(const std::string& kind) {
  if (kind == "strategies") return "strategy";
  return kind == "published" ? "published file" : kind.substr(0, kind.size() - 1);
}

}  // namespace

std::string data_folder() {
  const char* given = std::getenv("BALLAST_DATA");
  return given != nullptr && *given != '\0' ? given : BALLAST_SOURCE_DIR "/profiles";
}

std::vector<std::string> shipped_names(const std::string& kind) {
  const fs::path folder = fs::path(data_folder()) / kind;
  std::vector<std::string> names;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  if (code) {
    throw Error(folder.string(), "the shipped data cannot be read: " + code.message(),
                "set BALLAST_DATA to the folder `profiles` of Ballast");
  }
  std::sort(names.begin(), names.end());
  return names;
}

Found find_file(const std::string& name_or_path, const std::string& kind) {
  if (is_path(name_or_path, kind)) return find_path(name_or_path, kind);
  const std::vector<std::string> names = shipped_names(kind);
  if (std::find(names.begin(), names.end(), name_or_path) == names.end()) {
    throw Error(singular(kind) + " " + in_quotes(name_or_path), "is not one of the shipped " + kind,
                suggestion(name_or_path, names) + ", or give a path ending in .json");
  }
  const fs::path file = fs::path(data_folder()) / kind / (name_or_path + ".json");
  return {file.string(), name_or_path};
}

}  // namespace ballast
