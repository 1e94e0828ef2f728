#include "cli/tune/found_model.h"

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>

#include "cli/report/origin.h"
#include "sim/base/atomic_file.h"

namespace ballast {
namespace {

// Whose config.json is filled in where no model was named: the family of sizes is GPT-3's.
constexpr const char* kFamilyModel = "gpt2";

std::string file_name(const Setting& setting, const Model& named, const std::string& plan_file) {
  const Model& model = setting.model;
  std::string name = model.name;
  if (name == named.name) {
    const bool shape = model.layers != named.layers || model.hidden != named.hidden;
    name += shape ? fmt::format(" {}x{}", model.layers, model.hidden)
            : model.max_positions != named.max_positions
                ? fmt::format(" {} tokens", model.max_positions)
                : " changed";
  }
  std::replace(name.begin(), name.end(), ' ', '-');
  // Not the plan's own.
  const bool taken = std::filesystem::path(plan_file).filename() == name + ".json";
  return name + (taken ? "-model.json" : ".json");
}

std::filesystem::path folder_of(const std::string& plan_file) {
  std::error_code ignored;
  const auto status = std::filesystem::status(plan_file, ignored);
  const bool elsewhere =
      std::filesystem::exists(status) && !std::filesystem::is_regular_file(status);
  return elsewhere ? std::filesystem::path() : std::filesystem::path(plan_file).parent_path();
}

}  // namespace

FoundFiles write_found(Setting& setting, const FoundBy& by) {
  const bool family = setting.plan.model.empty();
  const std::string base = family ? kFamilyModel : setting.plan.model;
  const Model named = load_model(base);
  FoundFiles files;
  files.plan = by.plan_file;
  std::vector<std::string> words = {"--plan", by.plan_file};
  if (family || !differences(named, setting.model).empty()) {
    files.model = (folder_of(by.plan_file) / file_name(setting, named, by.plan_file)).string();
    const std::string config = config_like(base, setting.model);
    const Model written = parse_model(config, files.model, setting.model.name);
    atomic_write(files.model, config);
    setting.plan.model = files.model;
    // What no config.json of the class can say.
    for (const std::string& key : differences(written, setting.model)) {
      words.insert(words.end(), {"--set", "model." + key});
    }
  }
  save_plan(setting.plan, by.plan_file);
  for (const std::string& change : by.set) {
    if (change.starts_with("machine.")) words.insert(words.end(), {"--set", change});
  }
  if (by.store.path) words.insert(words.end(), {"--store", *by.store.path});
  if (by.stack.name) words.insert(words.end(), {"--stack", *by.stack.name});
  files.predict = command_line("predict", words);
  return files;
}

std::string text_of(const FoundFiles& files) {
  const std::string model = files.model.empty() ? "" : " and " + files.model;
  return fmt::format("wrote {}{}\nask what it does with {}\n", files.plan, model, files.predict);
}

}  // namespace ballast
