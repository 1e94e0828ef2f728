#include "autotune/calibrate/calibrate.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/flags/arguments.h"
#include "cli/terminal/progress.h"
#include "cli/text/prediction.h"
#include "cli/text/tables.h"
#include "profiles/load.h"
#include "sim/base/atomic_file.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct CalibrateFlags {
  OutputFlags output;
  StackFlag stack;
  std::vector<std::string> files;  // beside those that are shipped
  std::vector<std::string> except;
  std::optional<std::string> folder;
};

bool parse(Words words, CalibrateFlags& flags) {
  VerbParser parser("calibrate");
  CLI::App& app = parser.app();
  app.add_option("FILE", flags.files,
                 "Files of published cases (ballast.published/1) beside the shipped ones");
  app.add_option("--except", flags.except, "Leave out the case of this id; may be repeated")
      ->allow_extra_args(false)
      ->type_name("ID");
  parser.add(flags.stack);
  app.add_option("--out-folder", flags.folder,
                 "Write every stack with its new constants, and the typical one, to this folder")
      ->type_name("FOLDER");
  parser.add(flags.output, "Write the --stack with its new constants to this file");
  return parser.parse(words);
}

std::vector<PublishedFile> files_of(const CalibrateFlags& flags) {
  std::vector<PublishedFile> files;
  for (const std::string& path : shipped_published()) files.push_back(load_published(path));
  for (const std::string& path : flags.files) files.push_back(load_published(path));
  return files;
}

void leave_out(std::vector<PublishedFile>& files, const std::vector<std::string>& except) {
  std::set<std::string> left(except.begin(), except.end());
  for (PublishedFile& file : files) {
    std::erase_if(file.entries, [&](const PublishedEntry& entry) {
      const bool out = std::find(except.begin(), except.end(), entry.id) != except.end();
      if (out) left.erase(entry.id);
      return out;
    });
  }
  if (left.empty()) return;
  throw Error("--except '" + one_line(*left.begin()) + "'", "is not the id of a case here",
              "leave it out, or correct it");
}

OrderedJson json_of(const Calibration& calibration, const std::vector<const Stack*>& stacks) {
  OrderedJson cases = OrderedJson::array();
  for (const CalibrationRow& row : calibration.rows) {
    cases.push_back({{"id", row.id},
                     {"stack", row.stack},
                     {"metric", metric_name(row.metric)},
                     {"published", row.published},
                     {"before", row.before},
                     {"fit", row.fit},
                     {"before_error_percent", row.error_percent(row.before)},
                     {"fit_error_percent", row.error_percent(row.fit)}});
  }
  OrderedJson refused = OrderedJson::array();
  for (const Refusal& one : calibration.refused) {
    refused.push_back({{"file", one.file}, {"id", one.id}, {"why", one.why}});
  }
  OrderedJson fitted = OrderedJson::array();
  for (const Stack* stack : stacks) fitted.push_back(OrderedJson::parse(stack_json(*stack)));
  return {{"schema", "ballast.calibration/2"},
          {"stacks", fitted},
          {"cases", cases},
          {"refused", refused}};
}

// The same for all that were fitted together.
std::string sustained_text(const StackConstants& constants) {
  if (constants.sustained_gemm.empty()) return "";
  std::vector<std::string> shares;
  for (const auto& [generation, share] : constants.sustained_gemm) {
    shares.push_back(fmt::format("{} {:.3g}", generation, share));
  }
  return fmt::format("products of 16 bits in a step, of what the tables of GPUs say: {}\n",
                     fmt::join(shares, ", "));
}

std::string constants_text(const std::vector<const Stack*>& stacks) {
  std::vector<Table::Column> columns = {{"stack", true}};
  for (int i = 0; i < kStackConstants; ++i) columns.push_back({std::string(constant_name(i))});
  columns.push_back({"cases"});
  Table table(columns);
  for (const Stack* stack : stacks) {
    std::vector<std::string> cells = {stack->name};
    for (int i = 0; i < kStackConstants; ++i) {
      const std::string name(constant_name(i));
      const bool fitted =
          std::find(stack->fitted.begin(), stack->fitted.end(), name) != stack->fitted.end();
      cells.push_back(fmt::format("{:.3g}{}", constant(stack->constants, i), fitted ? "*" : ""));
    }
    cells.push_back(std::to_string(stack->fitted_on.size()));
    table.add(std::move(cells));
  }
  return table.text() + "* determined by cases; the others lie near what is typical\n" +
         sustained_text(stacks.front()->constants);
}

std::string rows_text(const Calibration& calibration) {
  Table rows({{"stack", true},
              {"case", true},
              {"quantity", true},
              {"published"},
              {"fit"},
              {"before"},
              {"fitted"}});
  double mean = 0;
  for (const CalibrationRow& row : calibration.rows) {
    mean += std::abs(row.error_percent(row.fit));
    rows.add({row.stack, row.id, std::string(metric_name(row.metric)),
              fmt::format("{:.4g}", row.published), fmt::format("{:.4g}", row.fit),
              show_signed_percent(row.error_percent(row.before)),
              show_signed_percent(row.error_percent(row.fit))});
  }
  const auto count = static_cast<double>(std::max<size_t>(calibration.rows.size(), 1));
  return fmt::format(
      "{}mean absolute error of what was fitted: {} (what that is worth elsewhere: "
      "ballast validate)\n",
      rows.text(), show_percent(mean / count));
}

std::string text_of(const Calibration& calibration, const std::vector<const Stack*>& stacks) {
  std::string text = rows_text(calibration) + "\n" + constants_text(stacks);
  for (const Refusal& one : calibration.refused) {
    text += fmt::format("not used: {}: {}\n", one.id, one.why);
  }
  return text;
}

std::vector<const Stack*> chosen_stacks(const Calibration& calibration, const StackFlag& flag,
                                        const std::optional<Stack>& named) {
  std::vector<const Stack*> chosen;
  for (const Stack& stack : calibration.stacks) {
    if (!named || stack.name == named->name) chosen.push_back(&stack);
  }
  if (!named) chosen.push_back(&calibration.typical);
  if (chosen.empty()) {
    throw Error("--stack '" + one_line(*flag.name) + "'",
                "no case has a time or a memory peak to fit", "name a file with cases of it");
  }
  return chosen;
}

void save(const std::vector<const Stack*>& stacks, const CalibrateFlags& flags) {
  if (flags.output.out) save_stack(*stacks.front(), *flags.output.out);
  if (!flags.folder) return;
  for (const Stack* stack : stacks) {
    save_stack(*stack, (std::filesystem::path(*flags.folder) / (stack->name + ".json")).string());
  }
}

}  // namespace

int run_calibrate(Words words) {
  CalibrateFlags flags;
  if (!parse(words, flags)) return kDone;
  if (flags.output.out && !flags.stack.name) {
    throw Error("--out", "is the file of one stack, and none is named",
                "add --stack, or write all of them with --out-folder");
  }
  if (flags.folder) {
    try_to_write(
        (std::filesystem::path(*flags.folder) / (std::string(kTypicalStack) + ".json")).string(),
        "--out-folder " + *flags.folder);
  }
  std::vector<PublishedFile> files = files_of(flags);
  leave_out(files, flags.except);
  std::optional<Stack> named;
  if (flags.stack.name) named = load_stack(*flags.stack.name);
  const LoadedCases loaded =
      load_published_cases(files, named ? std::vector<Stack>{*named} : std::vector<Stack>{});
  Calibration calibration;
  {
    Progress progress("calibrate");
    calibration = calibrate(
        loaded.cases, load_stack(std::string(kTypicalStack)),
        [&](double share, const std::string& text) { progress.show(share, one_line(text)); });
    progress.finish(fmt::format("{} cases", loaded.cases.size()));
  }
  std::copy(loaded.refused.begin(), loaded.refused.end(), std::back_inserter(calibration.refused));
  const std::vector<const Stack*> stacks = chosen_stacks(calibration, flags.stack, named);
  save(stacks, flags);
  if (flags.output.json) {
    fmt::print("{}\n", json_of(calibration, stacks).dump(1));
  } else {
    fmt::print("{}", text_of(calibration, stacks));
    if (flags.output.out) fmt::print("wrote {}\n", *flags.output.out);
  }
  return kDone;
}

}  // namespace ballast
