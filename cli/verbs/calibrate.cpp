#include "autotune/calibrate/calibrate.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/flags/arguments.h"
#include "cli/text/prediction.h"
#include "cli/text/progress.h"
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
  std::vector<std::string> words;  // files, or ids of shipped cases
  std::vector<std::string> except;
};

bool parse(Words words, CalibrateFlags& flags) {
  VerbParser parser("calibrate");
  CLI::App& app = parser.app();
  app.add_option("CASE", flags.words,
                 "Files of published cases, or ids of shipped ones; of files those of the stack "
                 "are taken [all shipped cases of the stack]");
  app.add_option("--except", flags.except, "Leave out the case of this id; may be repeated")
      ->allow_extra_args(false)
      ->type_name("ID");
  parser.add(flags.stack);
  parser.add(flags.output, "Write the stack with its new constants to this file");
  return parser.parse(words);
}

bool is_file(const std::string& word) {
  return word.find('/') != std::string::npos || word.ends_with(".json");
}

const PublishedCase& readable(const PublishedEntry& entry) {
  if (!entry.of) throw Error("calibrate", entry.error, "correct the case, or --except it");
  return *entry.of;
}

// The cases that the words name, in the order of their files.
class CaseFinder {
 public:
  explicit CaseFinder(const CalibrateFlags& flags) : flags_(flags) {
    const std::vector<std::string> shipped = shipped_published();
    for (const std::string& word : flags.words) {
      if (is_file(word)) {
        files_.push_back(load_published(word));
      } else {
        ids_.insert(word);
      }
    }
    if (flags.words.empty() || !ids_.empty()) {
      for (const std::string& path : shipped) shipped_.push_back(load_published(path));
    }
  }

  std::vector<PublishedCase> find(const std::string& stack) {
    std::vector<PublishedCase> found;
    for (const PublishedFile& file : files_) take(file, stack, found);
    for (const PublishedFile& file : shipped_) {
      if (flags_.words.empty()) take(file, stack, found);
      for (const PublishedEntry& entry : file.entries) {
        if (ids_.erase(entry.id) > 0) found.push_back(readable(entry));
      }
    }
    for (const std::string& id : flags_.except) {
      if (!knows(id)) {
        throw Error("--except '" + one_line(id) + "'", "is not the id of a case here",
                    "leave it out, or correct it");
      }
    }
    if (!ids_.empty()) {
      throw Error("case '" + one_line(*ids_.begin()) + "'", "is not one of the shipped cases",
                  "give an id of a file in profiles/published, or a file ending in .json");
    }
    return found;
  }

 private:
  bool knows(const std::string& id) const {
    const auto holds = [&](const PublishedFile& file) {
      return std::any_of(file.entries.begin(), file.entries.end(),
                         [&](const PublishedEntry& entry) { return entry.id == id; });
    };
    return std::any_of(files_.begin(), files_.end(), holds) ||
           std::any_of(shipped_.begin(), shipped_.end(), holds);
  }

  void take(const PublishedFile& file, const std::string& stack,
            std::vector<PublishedCase>& found) const {
    for (const PublishedEntry& entry : file.entries) {
      const bool excepted =
          std::find(flags_.except.begin(), flags_.except.end(), entry.id) != flags_.except.end();
      if (!excepted && readable(entry).stack == stack) found.push_back(*entry.of);
    }
  }

  const CalibrateFlags& flags_;
  std::vector<PublishedFile> files_;
  std::vector<PublishedFile> shipped_;
  std::set<std::string> ids_;
};

bool can_be_fitted_to(const PublishedCase& of) {
  return std::any_of(of.measured.begin(), of.measured.end(), [](const Measured& one) {
    return is_time(one.metric) || one.metric == Metric::kPeakMemory;
  });
}

std::vector<CaseSetup> setups_of(const CalibrateFlags& flags, const Stack& stack) {
  std::vector<CaseSetup> setups;
  for (const PublishedCase& of : CaseFinder(flags).find(stack.name)) {
    if (!can_be_fitted_to(of)) continue;
    Machine machine = load_machine(of.machine);
    check(machine);
    setups.push_back({of, std::move(machine), stack});
  }
  if (setups.empty()) {
    throw Error("stack " + stack.name, "no case has a time or a memory peak to fit",
                "name cases that have");
  }
  return setups;
}

std::optional<double> left_out_error(const CalibrationRow& row) {
  if (!row.left_out) return std::nullopt;
  return row.error_percent(*row.left_out);
}

OrderedJson json_of(const Calibration& calibration) {
  OrderedJson cases = OrderedJson::array();
  for (const CalibrationRow& row : calibration.rows) {
    cases.push_back({{"id", row.id},
                     {"metric", metric_name(row.metric)},
                     {"published", row.published},
                     {"before", row.before},
                     {"fit", row.fit},
                     {"left_out", or_null(row.left_out)},
                     {"before_error_percent", row.error_percent(row.before)},
                     {"fit_error_percent", row.error_percent(row.fit)},
                     {"left_out_error_percent", or_null(left_out_error(row))}});
  }
  return {{"schema", "ballast.calibration/1"},
          {"stack", OrderedJson::parse(stack_json(calibration.stack))},
          {"cases", cases}};
}

std::string text_of(const Stack& before, const Calibration& calibration) {
  const Stack& stack = calibration.stack;
  Table constants({{"constant", true}, {"prior"}, {"before"}, {"now"}, {"", true}});
  for (int i = 0; i < kStackConstants; ++i) {
    const std::string name(constant_name(i));
    const bool fitted =
        std::find(stack.fitted.begin(), stack.fitted.end(), name) != stack.fitted.end();
    constants.add({name, fmt::format("{:.3g}", prior_of(i).value),
                   fmt::format("{:.3g}", constant(before.constants, i)),
                   fmt::format("{:.3g}", constant(stack.constants, i)),
                   fitted ? "fitted" : "no case depends on it"});
  }
  Table rows({{"case", true},
              {"quantity", true},
              {"published"},
              {"fit"},
              {"before"},
              {"fitted"},
              {"left out"}});
  double mean_fit = 0;
  double mean_left_out = 0;
  for (const CalibrationRow& row : calibration.rows) {
    const auto left_out = left_out_error(row);
    mean_fit += std::abs(row.error_percent(row.fit));
    mean_left_out += std::abs(left_out.value_or(0));
    rows.add({row.id, std::string(metric_name(row.metric)), fmt::format("{:.4g}", row.published),
              fmt::format("{:.4g}", row.fit), show_signed_percent(row.error_percent(row.before)),
              show_signed_percent(row.error_percent(row.fit)),
              left_out ? show_signed_percent(*left_out) : "only case"});
  }
  const auto count = static_cast<double>(calibration.rows.size());
  const bool several = calibration.stack.fitted_on.size() > 1;
  return fmt::format("{}\n{}\n{}mean absolute error: {} fitted, {}\n", stack.name + ":",
                     constants.text(), rows.text(), show_percent(mean_fit / count),
                     several ? show_percent(mean_left_out / count) + " left out"
                             : "none left out: there is one case only");
}

}  // namespace

int run_calibrate(Words words) {
  CalibrateFlags flags;
  if (!parse(words, flags)) return kDone;
  if (!flags.stack.name) {
    throw Error("--stack", "no stack is given", "name one of profiles/stacks, or a file");
  }
  const Stack before = load_stack(*flags.stack.name);
  const std::vector<CaseSetup> setups = setups_of(flags, before);
  Calibration calibration;
  {
    Progress progress("calibrate");
    calibration = calibrate(before, setups, [&](const CalibrationProgress& at) {
      progress.show(at.share, one_line(at.text));
    });
    progress.finish(fmt::format("{} cases", setups.size()));
  }
  if (flags.output.out) save_stack(calibration.stack, *flags.output.out);
  if (flags.output.json) {
    fmt::print("{}\n", json_of(calibration).dump(1));
  } else {
    fmt::print("{}", text_of(before, calibration));
    if (flags.output.out) fmt::print("wrote {}\n", *flags.output.out);
  }
  return kDone;
}

}  // namespace ballast
