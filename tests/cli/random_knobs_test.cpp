// Whatever a plan is asked to be, it is predicted or refused in a line: of random values of all
// knobs over all strategies.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "profiles/shipped.h"
#include "tests/cli/support.h"
#include "tests/numbers.h"
#include "tests/settings.h"

namespace ballast {
namespace {

using Json = nlohmann::json;

// `knobs`: as `ballast knobs --json` lists them.
class RandomPlans {
 public:
  explicit RandomPlans(const Json& knobs) {
    for (const Json& knob : knobs) {
      if (knob["group"] != "names" && knob["type"] != "text") knobs_.push_back(knob);
    }
  }

  std::string next() {
    const std::string model =
        tests::one_of(numbers_, {"gpt2-xl", "llama-3-8b", "llama-2-70b", "gpt-oss-20b"});
    const std::string machine = tests::one_of(
        numbers_,
        {"alps-gh200-quad", "dgx-h100-80gb", "hgx-a100-80gb", "gh200-96gb-480gb", "rtx-4090-pcie"});
    const std::string stack = tests::one_of(numbers_, {"", "--stack ballast", "--stack ideal"});
    const std::string devices =
        tests::one_of(numbers_, {"1", "2", "4", "6", "8", "16", "32", "64"});
    const std::string batch =
        tests::one_of(numbers_, {"1", "6", "7", "8", "24", "40", "64", "80", "100", "128", "1000"});
    std::string question = fmt::format(
        "predict --json --model {} --machine {} --strategy {} --devices {} --global-batch {} {}",
        model, machine, tests::one_of(numbers_, strategies_), devices, batch, stack);
    for (int64_t left = 1 + numbers_.below(5); left > 0; --left) {
      const Json& knob = knobs_[numbers_.below(knobs_.size())];
      std::string path = knob["path"];
      // Of fates that is the group: one for every module.
      if (knob["type"] == "choices") path = path.substr(0, path.find('.'));
      question += fmt::format(" --set plan.{}={}", path, value_of(knob));
    }
    return question;
  }

 private:
  std::string value_of(const Json& knob) {
    const std::string type = knob["type"];
    if (type == "true or false") return tests::one_of(numbers_, {"true", "false"});
    if (type == "share") return tests::one_of(numbers_, {"0", "0.1", "0.25", "0.5", "1"});
    if (type == "bytes") return std::to_string(int64_t{1} << numbers_.below(34));
    if (type == "choice" || type == "choices")
      return tests::one_of(numbers_, choices_of(knob["values"]));
    return tests::one_of(numbers_,
                         {"0", "1", "2", "3", "4", "6", "8", "12", "16", "32", "64", "100"});
  }

  // "1f1b, gpipe, eager-1f1b"
  static std::vector<std::string> choices_of(const std::string& list) {
    std::vector<std::string> choices;
    std::istringstream words(list);
    for (std::string word; words >> word;) {
      if (word.ends_with(',')) word.pop_back();
      choices.push_back(word);
    }
    return choices;
  }

  tests::Numbers numbers_{20261128};
  std::vector<Json> knobs_;
  const std::vector<std::string> strategies_ = shipped_names("strategies");
};

// BALLAST_SETTINGS asks for more of them.
TEST(RandomKnobs, end_in_a_prediction_or_a_line) {
  const Workbench bench;
  RandomPlans plans(Json::parse(bench.run("knobs --json").output));
  int predicted = 0;
  const int count = tests::settings_or(40);
  for (int i = 0; i < count; ++i) {
    const std::string question = plans.next();
    const Outcome outcome = bench.run(question);
    predicted += outcome.code <= 1;
    EXPECT_TRUE(outcome.code >= 0 && outcome.code <= 2) << question << "\n" << outcome.output;
    EXPECT_FALSE(outcome.says("internal error")) << question << "\n" << outcome.output;
    if (outcome.code == 2) EXPECT_EQ(outcome.lines(), 1) << question << "\n" << outcome.output;
  }
  EXPECT_GT(predicted, count / 10) << "nearly none is legal";
}

// Found by them.
TEST(RandomKnobs, that_once_aborted_do_not) {
  const Workbench bench;
  for (const std::string question :
       {"--model llama-3-8b --machine alps-gh200-quad --strategy megatron --stack ballast "
        "--devices 8 --global-batch 1000",
        "--model llama-3-8b --machine dgx-h100-80gb --strategy megatron-activation-offload "
        "--stack ideal --devices 8 --global-batch 8 --pipeline 2 "
        "--set plan.activations.offload_part=0.5"}) {
    const Outcome outcome = bench.run("predict --json " + question);
    EXPECT_EQ(outcome.code, 0) << question << "\n" << outcome.output;
  }
}

}  // namespace
}  // namespace ballast
