#include "cli/flags/weights_folder.h"

#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "profiles/load.h"
#include "sim/base/atomic_file.h"
#include "sim/base/error.h"
#include "sim/base/fault.h"
#include "sim/base/files.h"
#include "sim/base/units.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr const char* kConfigFile = "config.json";

// The configuration that the model came from, of weights in fp32. What the model's record was
// changed in must be in it too, or another model would be loaded without a word.
std::string config_of(const std::string& path, const std::string& like, const Model& model) {
  OrderedJson config = OrderedJson::parse(config_like(like, model));
  config.erase("dtype");
  config["torch_dtype"] = "float32";
  std::string text = config.dump(1) + "\n";
  const std::vector<std::string> lost = differences(parse_model(text, path, model.name), model);
  if (lost.empty()) return text;
  throw Error("--export " + path,
              fmt::format("its config.json cannot say model.{}", fmt::join(lost, ", model.")),
              "export the weights alone: --export FILE.safetensors");
}

// Weights in fp32; those of that name that are there go when they are whole.
void require_room_for(const Model& model, const std::string& path, const std::string& folder) {
  const Bytes bytes{parameter_count(model) * size_of(DType::kF32)};
  require_room(system_files(), folder, static_cast<double>(bytes.count), "--export " + path,
               "the weights take " + bytes_text(bytes));
}

}  // namespace

// What cannot be written is known before the steps are run, not after them.
ExportTarget export_target(const std::string& path, const std::string& like, const Model& model,
                           std::optional<int64_t> most) {
  std::error_code failure;
  const bool is_file = fs::path(path).extension() == ".safetensors" ||
                       (fs::exists(path, failure) && !fs::is_directory(path, failure));
  if (is_file) {
    if (most) {
      throw Error("--max-shard-size", "--export " + path + " is one file",
                  "export a folder, or leave the size out");
    }
    if (fs::path(path).extension() != ".safetensors" && fs::is_regular_file(path, failure)) {
      throw Error("--export " + path, "it is a file that is there already, and may be anything",
                  "name FILE.safetensors, or a folder");
    }
    try_to_write(path, "--export " + path);
    require_room_for(model, path, folder_of(path));
    return {path, std::nullopt, std::nullopt, ""};
  }
  ExportTarget target{path + "/model.safetensors", most.value_or(kMaxShardBytes), path,
                      config_of(path, like, model)};
  const bool several = parameter_count(model) * size_of(DType::kF32) > *target.most;
  if (several && fs::exists(target.weights, failure)) {
    throw Error("--export " + path,
                "it holds a model.safetensors, which would be loaded in place of several files",
                "remove it, or name another folder");
  }
  fs::create_directory(path, failure);
  if (failure) {
    throw Error("--export " + path, "the folder cannot be made: " + failure.message(),
                fault_remedy(failure.value()));
  }
  try_to_write(target.weights, "--export " + target.weights);
  try_to_write(path + "/" + kConfigFile);
  require_room_for(model, path, path);
  return target;
}

void write_config(const ExportTarget& target) {
  if (target.folder) atomic_write(*target.folder + "/" + kConfigFile, target.config);
}

std::string other_model_beside(const std::string& weights, const Model& model) {
  std::error_code ignored;
  const fs::path folder =
      fs::is_directory(weights, ignored) ? fs::path(weights) : fs::path(weights).parent_path();
  const std::string config = (folder / kConfigFile).string();
  if (!fs::exists(config, ignored)) return "";
  const std::vector<std::string> other = differences(load_model(config), model);
  if (other.empty()) return "";
  return fmt::format("{} is of another model: here {}", config, fmt::join(other, ", "));
}

}  // namespace ballast
