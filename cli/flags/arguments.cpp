#include "cli/flags/arguments.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>

#include "cli/flags/memory_limit.h"
#include "cli/terminal/standard_error.h"
#include "profiles/names/meant.h"
#include "profiles/names/words.h"
#include "profiles/store.h"
#include "sim/base/atomic_file.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

std::string summary_of(const std::string& name) {
  for (const Verb& verb : verbs()) {
    if (verb.name == name) return std::string(verb.summary);
  }
  CHECK(false);
}

// `is_good` of a finite number; else "VALUE WHAT".
CLI::Validator number_check(bool (*is_good)(double), const char* what) {
  return {[is_good, what](const std::string& text) {
            double value = 0;
            const bool is_number = CLI::detail::lexical_cast(text, value);
            if (is_number && std::isfinite(value) && is_good(value)) return std::string();
            return fmt::format("{} {}", text, what);
          },
          ""};
}

namespace fs = std::filesystem;

// A flag and a file that it names.
struct NamedFile {
  std::string flag;
  std::string path;
};

// Pipes and terminals take what several write.
bool can_be_lost(const std::string& path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  return !path.empty() && (!fs::exists(status) || fs::is_regular_file(status));
}

// What would only be known when the work is done.
void check_folder(const NamedFile& file) {
  std::error_code ignored;
  const fs::path folder = fs::absolute(file.path, ignored).parent_path();
  if (!fs::exists(folder, ignored)) {
    throw Error(file.flag + " " + file.path, "there is no folder " + folder.string(),
                "make it, or name another file");
  }
  if (!fs::is_directory(folder, ignored)) {
    throw Error(file.flag + " " + file.path, folder.string() + " is no folder",
                "name another file");
  }
}

bool is_one_file(const std::string& a, const std::string& b) {
  std::error_code code;
  if (fs::equivalent(a, b, code) && !code) return true;
  const auto whole = [&](const std::string& path) {
    const fs::path absolute = fs::absolute(path, code);
    return code ? fs::path() : fs::weakly_canonical(absolute, code);
  };
  const fs::path first = whole(a);
  return !code && first == whole(b) && !code;
}

// What a number's flag may be given and no formula takes.
void check_finite(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (type == "NAME" || type == "FILE" || type == "DIR" || type == "PATH" || type == "PLAN") {
      continue;
    }
    for (const std::string& text : option->results()) {
      char* end = nullptr;
      const double value = std::strtod(text.c_str(), &end);
      if (end == text.c_str() || *end != '\0' || std::isfinite(value)) continue;
      throw Error(option->get_name() + " " + text, "is no finite number", "give one");
    }
  }
}

// The files that a flag for inputs names; what is no path is a shipped name.
std::vector<NamedFile> files_read(const CLI::Option& option) {
  std::vector<NamedFile> files;
  for (std::string path : option.results()) {
    std::error_code ignored;
    if (fs::is_directory(path, ignored)) path += "/config.json";
    const bool is_path = path.find('/') != std::string::npos || path.ends_with(".json");
    if (is_path || option.get_type_name() != "NAME") files.push_back({option.get_name(), path});
  }
  return files;
}

// Where the names of a knob are kept that may be several; null for one of which there is one.
std::vector<std::string>* names_of(PlanFlags& flags, KnobId id) {
  if (id == KnobId::kModel) return &flags.models;
  if (id == KnobId::kMachine) return &flags.machines;
  return id == KnobId::kStrategy ? &flags.strategies : nullptr;
}

std::string store_by_default() {
  try {
    return default_store_path();
  } catch (const Error&) {
    return "";
  }
}

}  // namespace

std::string name_meant(const std::string& flag, const std::string& text, const std::string& kind) {
  const Meant meant = meant_by(text, kind);
  if (!meant.note.empty()) {
    print_to_stderr("{} {}: {}\n", flag, one_line(text), one_line(meant.note));
  }
  return meant.name;
}

CLI::Validator above_zero() {
  return number_check([](double value) { return value > 0; }, "is no finite number above 0");
}

CLI::Validator zero_or_more() {
  return number_check([](double value) { return value >= 0; }, "is no finite number from 0 on");
}

CLI::Validator whole_number() {
  return CLI::Validator(
      [](const std::string& text) {
        uint64_t value = 0;
        const char* const end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data(), end, value);
        if (error == std::errc() && rest == end) return std::string();
        return "'" + text + "' is no whole number from 0 to " +
               std::to_string(std::numeric_limits<uint64_t>::max());
      },
      "");
}

CLI::Validator share_below_one() {
  return number_check([](double value) { return value >= 0 && static_cast<float>(value) < 1.0f; },
                      "is no number from 0 to below 1");
}

VerbParser::VerbParser(const std::string& name)
    : name_(name), app_("ballast " + name + ": " + summary_of(name), "ballast " + name) {
  app_.set_help_flag("-h,--help", "Print this and stop");
  app_.get_formatter()->column_width(36);
  app_.get_formatter()->label("OPTIONS", "flags");
  app_.add_option_function<std::string>(
          "--memory-limit",
          [](const std::string& text) { limit_memory(memory_limit_of(text), "--memory-limit"); },
          "Memory that this process may take: 4GB, 50% [what there is; 90% where nothing trains]")
      ->type_name("SIZE");
}

void VerbParser::add(OutputFlags& flags, const std::string& out_help) {
  app_.add_flag("--json", flags.json, "Print JSON instead of text");
  if (out_help.empty()) return;
  writes(app_.add_option("--out", flags.out, out_help)->type_name("FILE"));
}

void VerbParser::add(PlanFlags& flags, const Knob& knob, Lists lists) {
  const KnobFlag& flag = knob.flag;
  const std::string name(flag.name);
  const std::string help(flag.help);
  const auto store = [&flags, id = knob.id](const auto& value) { flags.knobs[id] = value; };
  CLI::Option* option = nullptr;
  if (flag.one_of_many) {
    const bool many = lists == Lists::kYes;
    const std::string text = help + (many ? "; several with commas" : "");
    std::vector<std::string>* names = names_of(flags, knob.id);
    option = names != nullptr ? reads(app_.add_option(name, *names, text))
                              : app_.add_option(name, flags.devices, text);
    option->delimiter(many ? ',' : '\0')->allow_extra_args(false);
    if (!many) option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  } else if (knob.type == KnobType::kWhole) {
    option = app_.add_option_function<int64_t>(name, store, help);
  } else {
    option = app_.add_option_function<std::string>(name, store, help);
  }
  if (knob.type == KnobType::kWhole) {
    // A count in a plan file may be 0, for "not said yet"; one that is said is not.
    option->check(flag.unit == "COUNT" ? above_zero() : CLI::Range(knob.least, knob.most));
  }
  option->type_name(std::string(flag.unit))->group("The plan");
}

void VerbParser::add(PlanFlags& flags, Lists lists) {
  plans_.push_back(&flags);
  for (const Knob& knob : knobs()) {
    if (!knob.flag.name.empty()) add(flags, knob, lists);
  }
  reads(
      app_.add_option("--plan", flags.plan_file, "Start from this plan; the other flags change it")
          ->type_name("FILE")
          ->group("The plan"));
  app_.add_option("--set", flags.set,
                  "Change one key: plan.optimizer.cast=cpu, machine.gpu.memory_gb=80, "
                  "model.layers=48; may be repeated")
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE")
      ->group("The plan");
}

void VerbParser::add(StoreFlag& flag) {
  writes(app_.add_option("--store", flag.path,
                         "Where measurements are kept [$XDG_DATA_HOME/ballast/store.db]")
             ->type_name("FILE"),
         {.otherwise = store_by_default(), .makes_folder = true});
}

void VerbParser::add(StackFlag& flag, const std::string& otherwise) {
  reads(app_.add_option("--stack", flag.name,
                        "Framework: a name of profiles/stacks, or a file [" + otherwise + "]")
            ->type_name("NAME"));
}

CLI::Option* VerbParser::writes(CLI::Option* option, Written how) {
  outputs_.push_back({option, std::move(how)});
  return option;
}

CLI::Option* VerbParser::reads(CLI::Option* option) {
  inputs_.push_back(option);
  return option;
}

void VerbParser::check_files() const {
  std::error_code ignored;
  std::vector<NamedFile> written;
  for (const auto& [option, how] : outputs_) {
    const std::string path = option->count() > 0 ? option->results().back() : how.otherwise;
    if (option->count() > 0 && path.empty()) {
      throw Error(option->get_name(), "an empty text names no file", "name one");
    }
    if (fs::is_directory(path, ignored) && !how.may_be_folder) {
      throw Error(option->get_name() + " " + path, "is a folder", "name a file");
    }
    if (!can_be_lost(path)) continue;
    const std::string flag = option->get_name() + (option->count() > 0 ? "" : " (by default)");
    if (!how.makes_folder) check_folder({option->get_name(), path});
    for (const NamedFile& other : written) {
      if (!is_one_file(other.path, path)) continue;
      throw Error("ballast " + name_,
                  fmt::format("{} and {} would both write {}", other.flag, flag, path),
                  "name a file for each");
    }
    written.push_back({flag, path});
    for (const CLI::Option* input : inputs_) {
      if (input->get_name() == how.replaces) continue;
      for (const NamedFile& read : files_read(*input)) {
        if (!is_one_file(read.path, path)) continue;
        throw Error("ballast " + name_,
                    fmt::format("{} would overwrite {}, which {} reads", flag, path, read.flag),
                    "name another file to write");
      }
    }
  }
}

// Whose files are made as they are named: the others are tried where they are made.
void VerbParser::try_files() const {
  for (const auto& [option, how] : outputs_) {
    const std::string path = option->count() > 0 ? option->results().back() : how.otherwise;
    if (path.empty() || how.makes_folder || how.may_be_folder) continue;
    try_to_write(path, option->get_name() + " " + path);
  }
}

namespace {

// "did you mean --devices?", of the first word that is no flag and nearly one; else empty.
std::string flag_meant(const CLI::App& app, Words words) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const std::string& word : words) {
    const std::string flag = word.substr(0, word.find('='));
    if (!flag.starts_with("--") || std::find(names.begin(), names.end(), flag) != names.end()) {
      continue;
    }
    const std::string near = nearest(flag, names);
    if (!near.empty()) return "did you mean " + near + "?; ";
  }
  return "";
}

// In the order in which they were given, which CLI11's own message turns around.
std::string not_expected(const CLI::App& app) {
  const std::vector<std::string> words = app.remaining();
  return one_line(fmt::format("The following argument{} not expected: {}",
                              words.size() == 1 ? " was" : "s were", fmt::join(words, " ")));
}

// "--devices is given 2 times", of the first flag that takes one value and got several.
std::string given_twice(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const bool takes_one = option->get_multi_option_policy() == CLI::MultiOptionPolicy::Throw &&
                           option->get_items_expected_max() == 1;
    if (!takes_one || option->results().size() < 2) continue;
    return fmt::format("{} is given {} times", option->get_name(), option->results().size());
  }
  return "";
}

}  // namespace

bool VerbParser::parse(Words words) {
  std::vector<std::string> reversed(words.rbegin(), words.rend());
  try {
    app_.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app_.help());
    return false;
  } catch (const CLI::ParseError& error) {
    const std::string twice = given_twice(app_);
    if (!twice.empty()) throw Error("ballast " + name_, twice, "give it once");
    const bool is_extra = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
    throw Error("ballast " + name_, is_extra ? not_expected(app_) : one_line(error.what()),
                flag_meant(app_, words) + "ballast " + name_ + " --help lists the flags");
  }
  check_finite(app_);
  check_files();
  try_files();
  for (PlanFlags* flags : plans_) {
    for (std::string& name : flags->models) name = name_meant("--model", name, "models");
    for (std::string& name : flags->machines) name = name_meant("--machine", name, "machines");
  }
  return true;
}

}  // namespace ballast
