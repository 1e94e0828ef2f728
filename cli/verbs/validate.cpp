#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/flags/arguments.h"
#include "cli/text/progress.h"
#include "cli/text/validation.h"
#include "sim/base/atomic_file.h"

namespace ballast {

int run_validate(Words words) {
  VerbParser parser("validate");
  OutputFlags output;
  std::vector<std::string> paths;
  parser.app().add_option("FILE", paths,
                          "Files of published cases (ballast.published/1), or names of shipped "
                          "ones [all that are shipped]");
  parser.add(output, "Write the JSON to this file too");
  if (!parser.parse(words)) return kDone;

  if (paths.empty()) paths = shipped_published();
  std::vector<PublishedFile> files;
  for (const std::string& path : paths) files.push_back(load_published(path));
  Validation validation;
  {
    Progress progress("validate");
    validation = validate(
        files, [&](double share, const std::string& id) { progress.show(share, one_line(id)); });
    progress.finish(fmt::format("{} quantities", validation.rows.size()));
  }
  if (output.json || output.out) {
    const std::string json =
        validation_json(validation)
            .dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
        "\n";
    if (output.out) atomic_write(*output.out, json);
    if (output.json) fmt::print("{}", json);
  }
  if (!output.json) fmt::print("{}", validation_text(validation));
  return any_failed(validation) ? kInfeasible : kDone;
}

}  // namespace ballast
