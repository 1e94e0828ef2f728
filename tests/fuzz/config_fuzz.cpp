// libFuzzer harness: any text as a config.json gives a model that can be counted, or an Error.
// Built and run by scripts/fuzz.sh.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "profiles/load.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ballast;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const Model model = parse_model(text, "input", "fuzzed");
    // The module table has a row for every layer: the deepest models only cost time here.
    if (model.layers <= 64) {
      const std::vector<Module> modules = modules_of(model);
      int64_t offset = 0;
      for (const Module& module : modules) {
        CHECK(module.flat_offset == offset && module.count >= 0);
        offset += module.count;
      }
      CHECK(offset > 0 && offset == parameter_count(model));
    }
    CHECK(model_flops_per_step(model, 4096, 1024).count > 0);
    // Our record of it reads back as the same record.
    const std::string record = model_json(model);
    const Model again = apply_override(model, {"layers", std::to_string(model.layers)});
    CHECK(model_json(again) == record);
  } catch (const Error&) {
    // Refusing the input is a right answer.
  }
  return 0;
}
