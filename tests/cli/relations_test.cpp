// What must hold between predictions, whatever they say: of random questions over all strategies.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "profiles/shipped.h"
#include "tests/cli/support.h"
#include "tests/numbers.h"
#include "tests/settings.h"

namespace ballast {
namespace {

using Json = nlohmann::json;

class RandomQuestions {
 public:
  std::string next() {
    const std::string model =
        tests::one_of(numbers_, {"gpt2-xl", "llama-2-7b", "llama-3-8b", "llama-2-13b"});
    const std::string machine =
        tests::one_of(numbers_, {"alps-gh200-quad", "dgx-b200", "dgx-h100-80gb", "gh200-96gb-480gb",
                                 "hgx-a100-80gb", "hgx-h200-sxm", "rtx-4090-pcie", "gb200-nvl72"});
    const int64_t devices = int64_t{1} << numbers_.below(6);
    const int64_t sequences = devices << numbers_.below(5);
    const std::string stack =
        tests::one_of(numbers_, {"", "--stack ballast", "--stack megatron-core-2024"});
    const std::string offload =
        tests::one_of(numbers_, {"", "", "", "--set plan.activations=offload"});
    return fmt::format(
        "predict --json --model {} --machine {} --devices {} --global-batch {} --sequence-length "
        "{} --strategy {} {} {}",
        model, machine, devices, sequences, 1024 << numbers_.below(3),
        tests::one_of(numbers_, strategies_), offload, stack);
  }

 private:
  tests::Numbers numbers_{20261128};
  const std::vector<std::string> strategies_ = shipped_names("strategies");
};

Json predicted(const Workbench& bench, const std::string& question) {
  const Outcome outcome = bench.run(question + " 2> /dev/null");
  return outcome.code == 0 ? Json::parse(outcome.output) : Json();
}

struct Step {
  double seconds = 0;
  int64_t gpu_bytes = 0;
};
Step step_of(const Json& json) {
  if (json.is_null()) return {};
  return {json["step_time_s"].get<double>(), json["peak_gpu_bytes"].get<int64_t>()};
}

void expect_same(const Step& one, const Step& other, const std::string& text) {
  EXPECT_EQ(one.seconds, other.seconds) << text;
  EXPECT_EQ(one.gpu_bytes, other.gpu_bytes) << text;
}

// Twice the batch is no more than two steps, and no less than one. Where the host's optimizer
// decides, what it runs beside may be met half a percent earlier or later.
constexpr double kTwice = 0.01;

class Relations : public testing::Test {
 protected:
  void expect_batches_to_add_up(const Json& first, const std::string& again) {
    const Json& plan = first["plan"];
    const auto batch = plan["global_batch"].get<int64_t>();
    const int64_t each = plan["data"].get<int64_t>() * plan["micro_batch"].get<int64_t>();
    const auto stages = plan["pipeline"].get<int64_t>();
    // All micro-batches of TeraPipe go forward before one goes back.
    const bool all_forward = stages > 1 && plan["pipeline_schedule"] == "gpipe";
    Step before = step_of(first);
    for (const int64_t times : {2, 4, 8}) {
      const std::string text = fmt::format("{} --global-batch {}", again, times * batch);
      const Step twice = step_of(predicted(bench, text));
      EXPECT_LE(twice.seconds, 2 * (1 + kTwice) * before.seconds) << text;
      EXPECT_GE(twice.seconds, (1 - kTwice) * before.seconds) << text;
      const bool is_full = times / 2 * batch / each >= 2 * stages && !all_forward;
      const auto bytes = static_cast<double>(twice.gpu_bytes);
      if (is_full) EXPECT_LE(bytes, 1.02 * static_cast<double>(before.gpu_bytes)) << text;
      before = twice;
    }
  }

  Workbench bench;
};

// BALLAST_SETTINGS asks for more of them.
TEST_F(Relations, hold_between_predictions_of_random_questions) {
  const int count = tests::settings_or(12);
  RandomQuestions questions;
  for (int found = 0, tried = 0; found < count; ++tried) {
    ASSERT_LT(tried, 20 * count) << "too few of them fit";
    const std::string question = questions.next();
    const Json first = predicted(bench, question);
    if (first.is_null()) continue;  // it does not fit, or is not legal
    ++found;
    const Json& plan = first["plan"];
    bench.write("chosen.json", plan.dump());
    const size_t stack = question.find("--stack");
    std::string again = "predict --json --plan chosen.json ";
    if (stack != std::string::npos) again += question.substr(stack);
    expect_same(step_of(predicted(bench, again)), step_of(first), question + ", its plan named");
    // Memory that is not needed changes nothing of a plan that is named.
    for (const std::string of : {"gpu", "cpu"}) {
      const double usable = first[fmt::format("usable_{}_bytes", of)].get<double>() / 1e9;
      again += fmt::format(" --set machine.{}.memory_gb={}", of, 64 * usable);
    }
    expect_same(step_of(predicted(bench, again)), step_of(first), question + ", more memory");

    const double tokens =
        plan["global_batch"].get<double>() * plan["sequence_length"].get<double>();
    EXPECT_NEAR(first["tokens_per_s"].get<double>() * step_of(first).seconds / tokens, 1, 1e-9);
    int64_t degrees = 1;
    for (const char* of : {"data", "tensor", "pipeline", "sequence", "context"}) {
      degrees *= plan[of].get<int64_t>();
    }
    EXPECT_EQ(degrees, plan["devices"].get<int64_t>()) << question;
    expect_batches_to_add_up(first, again);
  }
}

}  // namespace
}  // namespace ballast
