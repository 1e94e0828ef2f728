// libFuzzer harness: any text as a machine gives one that passes its check and writes to a text
// that reads back the same, or an Error. An override made of the input's first line is either
// applied or an Error. Built and run by scripts/fuzz.sh.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "profiles/load.h"

namespace {

using namespace ballast;

void check_round_trip(const Machine& machine) {
  check(machine);
  const std::string written = machine_json(machine);
  CHECK(machine_json(parse_machine(written, "again")) == written);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t line = text.find('\n');
  std::string change;
  if (!text.empty() && text[0] != '{' && line != std::string_view::npos) {
    change = std::string(text.substr(0, line));
    text.remove_prefix(line + 1);
  }
  try {
    Machine machine = parse_machine(text, "input");
    check_round_trip(machine);
    for (const Override& one : parse_overrides({"machine." + change}).machine) {
      machine = apply_override(machine, one);
      check_round_trip(machine);
    }
  } catch (const Error&) {
    // Refusing the input is a right answer.
  }
  return 0;
}
