// libFuzzer harness: any text as a DeepSpeed JSON or as Megatron-LM's flags gives a plan that
// writes and reads back the same and that check() accepts or refuses, or an Error. What check()
// accepts can be exported. Built and run by scripts/fuzz.sh.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "profiles/frameworks/frameworks.h"
#include "profiles/load.h"

namespace {

using namespace ballast;

const Model& tiny_model() {
  static const Model model =
      parse_model(R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2,
                      "vocab_size": 16, "n_positions": 64})",
                  "tiny", "tiny");
  return model;
}

using Import = ImportedPlan (*)(std::string_view text, const std::string& source,
                                const Model& model, const ImportRequest& request);

void try_import(std::string_view text, Import import) {
  try {
    ImportRequest request;
    request.devices = 4;
    const Plan plan = import(text, "input", tiny_model(), request).plan;
    CHECK(parse_plan(plan_json(plan), "again") == plan);
    check(plan, tiny_model());
    for (const Framework framework : {Framework::kDeepSpeed, Framework::kMegatron}) {
      CHECK(!export_plan(plan, tiny_model(), framework).text.empty());
    }
  } catch (const Error&) {
    // Refusing the input is a right answer.
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try_import(text, import_deepspeed);
  try_import(text, import_megatron);
  return 0;
}
