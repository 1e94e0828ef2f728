// libFuzzer harness: any text as a plan or a strategy gives one that writes and reads back the
// same and that check() accepts or refuses, or an Error. The input's first line is tried as an
// override too. Built and run by scripts/fuzz.sh.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "profiles/load.h"

namespace {

using namespace ballast;

Model tiny_model() {
  return parse_model(R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2,
                         "vocab_size": 16, "n_positions": 64})",
                     "tiny", "tiny");
}

void check_plan(const Plan& plan) {
  CHECK(parse_plan(plan_json(plan), "again") == plan);
  try {
    check(plan, tiny_model());
    CHECK(plan.tokens_per_step() > 0);
    if (plan.micro_batch) CHECK(plan.accumulation() > 0);
  } catch (const Error&) {
    // A plan may be well written and yet impossible for this model.
  }
}

void try_plan(std::string_view text) {
  try {
    check_plan(parse_plan(text, "input"));
  } catch (const Error&) {
    // Refusing the input is a right answer, here and below.
  }
}

void try_strategy(std::string_view text) {
  try {
    const Strategy strategy = parse_strategy(text, "input", "fuzzed");
    CHECK(!strategy_json(strategy).empty());
  } catch (const Error&) {
  }
}

void try_override(const std::string& line) {
  try {
    for (const Override& one : parse_overrides({"plan." + line}).plan) {
      check_plan(apply_override(Plan{}, one));
    }
  } catch (const Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try_plan(text);
  try_strategy(text);
  try_override(std::string(text.substr(0, text.find('\n'))));
  return 0;
}
