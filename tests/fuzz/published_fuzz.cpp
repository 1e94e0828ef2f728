// libFuzzer harness: any text as a file of published cases gives cases whose plans check() accepts
// for their models, or errors that name the file; and as a stack one that writes and reads back
// the same. Built and run by scripts/fuzz.sh.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "profiles/load.h"
#include "profiles/published.h"

namespace {

using namespace ballast;

void check_entry(const PublishedEntry& entry) {
  CHECK(entry.published.has_value() == entry.error.empty());
  if (!entry.published) {
    CHECK(entry.error.starts_with("input"));
    return;
  }
  check(entry.published->plan, entry.published->model);
  CHECK(!entry.published->measured.empty());
  for (const Measured& measured : entry.published->measured) {
    CHECK(measured.metric == Metric::kFits || measured.value > 0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    for (const PublishedEntry& entry : parse_published(text, "input").entries) check_entry(entry);
  } catch (const Error&) {
    // Refusing the input is a right answer, here and below.
  }
  try {
    const Stack stack = parse_stack(text, "input", "fuzzed");
    const Stack again = parse_stack(stack_json(stack), "again", "fuzzed");
    CHECK(again.facts == stack.facts && again.fitted == stack.fitted);
  } catch (const Error&) {
  }
  return 0;
}
