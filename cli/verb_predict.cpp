#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/completion.h"
#include "cli/prediction.h"
#include "cli/trace.h"
#include "sim/base/atomic_file.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

OrderedJson json_of(const std::vector<Case>& cases, const std::vector<Prediction>& predictions) {
  if (cases.size() == 1) return prediction_json(cases[0], predictions[0]);
  OrderedJson list = OrderedJson::array();
  for (size_t i = 0; i < cases.size(); ++i) {
    list.push_back(prediction_json(cases[i], predictions[i]));
  }
  return {{"cases", list}};
}

void write_trace(const std::string& path, const Prediction& prediction) {
  if (!prediction.fits) {
    throw Error("--trace " + path, "the plan does not fit, so there is no timeline",
                "change the plan, or leave --trace out");
  }
  atomic_write(path, chrome_trace({{"predicted", &prediction.graph, &prediction.timeline}}));
}

}  // namespace

int run_predict(Words words) {
  VerbParser parser("predict");
  OutputFlags output;
  PlanFlags flags;
  StoreFlag store;
  StackFlag stack;
  std::optional<std::string> trace;
  parser.add(flags, VerbParser::Lists::kYes);
  parser.add(store);
  parser.add(stack);
  parser.add(output, "Write the JSON to this file too");
  parser.app()
      .add_option("--trace", trace, "Write the timeline as a Chrome trace (one plan only)")
      ->type_name("FILE");
  if (!parser.parse(words)) return kDone;

  std::vector<Case> cases = load_cases(flags, store);
  if (trace && cases.size() > 1) {
    throw Error("--trace " + *trace, "there are several plans",
                "name one model, machine, "
                "strategy and number of devices");
  }
  std::vector<Prediction> predictions;
  for (Case& of : cases) {
    of.stack = stack_of(stack);
    const Measurements measurements = measurements_of(of.machine, store);
    Completed completed = complete_case(std::move(of), measurements);
    of = std::move(completed.of);
    predictions.push_back(std::move(completed.prediction));
  }
  if (trace) write_trace(*trace, predictions[0]);
  if (output.json || output.out) {
    const std::string json = json_of(cases, predictions).dump(1) + "\n";
    if (output.out) atomic_write(*output.out, json);
    if (output.json) fmt::print("{}", json);
  }
  if (!output.json) {
    fmt::print("{}", cases.size() == 1 ? prediction_text(cases[0], predictions[0])
                                       : prediction_table(cases, predictions));
  }
  const bool any = std::any_of(predictions.begin(), predictions.end(),
                               [](const Prediction& prediction) { return prediction.fits; });
  return any ? kDone : kInfeasible;
}

}  // namespace ballast
