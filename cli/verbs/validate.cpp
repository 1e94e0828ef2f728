#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/flags/arguments.h"
#include "cli/terminal/progress.h"
#include "cli/text/validation.h"
#include "sim/base/atomic_file.h"

namespace ballast {

namespace {

void show(const OutputFlags& output, const nlohmann::ordered_json& json, const std::string& text) {
  const std::string dump =
      json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  if (output.out) atomic_write(*output.out, dump);
  fmt::print("{}", output.json ? dump : text);
}

int print_left_out(const std::vector<PublishedFile>& files, const OutputFlags& output) {
  LeftOutValidation validation;
  {
    Progress progress("validate");
    validation = validate_left_out(files, [&](double share, const std::string& what) {
      progress.show(share, one_line(what));
    });
    progress.finish(fmt::format("{} figures", validation.figures.size()));
  }
  show(output, left_out_json(validation), left_out_text(validation));
  const bool failed = !validation.refused.empty() ||
                      std::any_of(validation.figures.begin(), validation.figures.end(),
                                  [](const JudgedFigure& figure) { return !figure.error.empty(); });
  return failed ? kInfeasible : kDone;
}

}  // namespace

int run_validate(Words words) {
  VerbParser parser("validate");
  OutputFlags output;
  std::vector<std::string> paths;
  parser.app().add_option("FILE", paths,
                          "Files of published cases (ballast.published/1), or names of shipped "
                          "ones [all that are shipped]");
  bool left_out = false;
  parser.app().add_flag("--left-out", left_out,
                        "Also predict every case without its source and without its framework "
                        "(always done where no FILE is given)");
  parser.add(output, "Write the JSON to this file too");
  if (!parser.parse(words)) return kDone;

  if (paths.empty()) {
    paths = shipped_published();
    left_out = true;
  }
  std::vector<PublishedFile> files;
  for (const std::string& path : paths) files.push_back(load_published(path));
  if (left_out) return print_left_out(files, output);
  Validation validation;
  {
    Progress progress("validate");
    validation = validate(
        files, [&](double share, const std::string& id) { progress.show(share, one_line(id)); });
    progress.finish(fmt::format("{} quantities", validation.rows.size()));
  }
  show(output, validation_json(validation), validation_text(validation));
  return any_failed(validation) ? kInfeasible : kDone;
}

}  // namespace ballast
