#include "profiles/names/meant.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <optional>
#include <vector>

#include "profiles/load.h"
#include "profiles/names/words.h"
#include "profiles/shipped.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCachePrefix = "models--";

// Endings of names on the Hub behind which the shapes are those of the name without: tuned by
// instructions, converted, or the first release.
constexpr auto kEndings =
    std::to_array<std::string_view>({"-instruct", "-base", "-hf", "-chat", "-it", "-v0.1"});
constexpr std::string_view kMaker = "meta-";

// What two names of one model have in common.
std::string stem_of(const std::string& name) {
  std::string stem = lower_case(last_part(name));
  if (stem.starts_with(kMaker)) stem.erase(0, kMaker.size());
  for (bool shortened = true; shortened;) {
    shortened = false;
    for (const std::string_view ending : kEndings) {
      if (!stem.ends_with(ending)) continue;
      stem.resize(stem.size() - ending.size());
      shortened = true;
    }
  }
  return stem;
}

std::optional<fs::path> folder_of_variable(const char* variable, const char* below) {
  const char* value = std::getenv(variable);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return fs::path(value) / below;
}

// The first that is set, as Hugging Face's own libraries look for it.
std::optional<fs::path> hub_cache() {
  for (const auto& [variable, below] :
       std::to_array<std::pair<const char*, const char*>>({{"HF_HUB_CACHE", ""},
                                                           {"HF_HOME", "hub"},
                                                           {"XDG_CACHE_HOME", "huggingface/hub"},
                                                           {"HOME", ".cache/huggingface/hub"}})) {
    if (auto folder = folder_of_variable(variable, below)) return folder;
  }
  return std::nullopt;
}

// The config.json of the snapshot that `main` names, else of the last one written.
std::optional<std::string> in_hub_cache(const std::string& id) {
  const std::optional<fs::path> cache = hub_cache();
  if (!cache) return std::nullopt;
  const size_t slash = id.find('/');
  const fs::path model =
      *cache / (kCachePrefix + id.substr(0, slash) + "--" + id.substr(slash + 1));
  std::error_code ignored;
  std::string commit;
  std::ifstream(model / "refs" / "main") >> commit;
  const fs::path named = model / "snapshots" / commit / "config.json";
  if (!commit.empty() && fs::exists(named, ignored)) return named.string();
  std::vector<std::pair<fs::file_time_type, std::string>> found;
  for (const auto& snapshot : fs::directory_iterator(model / "snapshots", ignored)) {
    const fs::path config = snapshot.path() / "config.json";
    if (fs::exists(config, ignored)) {
      found.emplace_back(fs::last_write_time(config, ignored), config.string());
    }
  }
  if (found.empty()) return std::nullopt;
  return std::max_element(found.begin(), found.end())->second;
}

std::string path_of_shipped(const std::string& kind, const std::string& name) {
  return (fs::path(data_folder()) / kind / (name + ".json")).string();
}

Meant meant_model(const std::string& text, const std::vector<std::string>& shipped) {
  if (is_hub_id(text)) {
    if (const auto config = in_hub_cache(text))
      return {*config, "taken from the cache: " + *config};
  } else if (text.find('/') != std::string::npos) {
    return {text, ""};
  }
  const std::string stem = stem_of(text);
  for (const std::string& name : shipped) {
    if (stem_of(name) != stem) continue;
    return {name,
            fmt::format("taken as the shipped {} ({})", name, path_of_shipped("models", name))};
  }
  return {text, ""};
}

}  // namespace

std::string last_part(const std::string& text) {
  const size_t slash = text.rfind('/');
  return slash == std::string::npos ? text : text.substr(slash + 1);
}

bool is_hub_id(const std::string& text) {
  std::error_code ignored;
  const size_t slash = text.find('/');
  const bool two_parts = slash != std::string::npos && slash > 0 && slash + 1 < text.size() &&
                         text.find('/', slash + 1) == std::string::npos;
  return two_parts && text.front() != '.' && text.front() != '~' && !text.ends_with(".json") &&
         !fs::exists(text, ignored);
}

std::string name_in_hub_cache(const std::string& file) {
  // .../models--ORG--NAME/snapshots/COMMIT/config.json
  const fs::path snapshots = fs::path(file).parent_path().parent_path();
  const std::string folder = snapshots.parent_path().filename().string();
  if (snapshots.filename() != "snapshots" || !folder.starts_with(kCachePrefix)) return "";
  const size_t divider = folder.rfind("--");
  return folder.substr(divider + 2);
}

Meant meant_by(const std::string& text, const std::string& kind) {
  std::error_code ignored;
  const std::vector<std::string> shipped = shipped_names(kind);
  const bool is_shipped = std::find(shipped.begin(), shipped.end(), text) != shipped.end();
  if (is_shipped || text.ends_with(".json") || fs::is_directory(text, ignored)) return {text, ""};
  if (kind == "models") return meant_model(text, shipped);
  if (kind != "machines" || text.find('/') != std::string::npos) return {text, ""};
  const std::vector<std::string> found = containing(text, shipped);
  if (found.size() != 1) return {text, ""};
  return {found[0],
          fmt::format("taken as the shipped {} ({})", found[0], path_of_shipped(kind, found[0]))};
}

}  // namespace ballast
