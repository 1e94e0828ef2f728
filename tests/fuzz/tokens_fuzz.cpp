// libFuzzer harness: any bytes as a token file give a source whose batches lie inside the file and
// the vocabulary, or an Error. The first three bytes choose vocabulary, held-out share and length.
// Build: clang++ -std=c++20 -fsanitize=fuzzer,address,undefined -I. with backend/train/data.cpp,
// backend/train/random.cpp and sim/base/error.cpp.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/train/data.h"

namespace {

using namespace ballast;

void check_batches(const TokenSource& source, int64_t length) {
  for (const Split split : {Split::kTraining, Split::kValidation}) {
    std::vector<int32_t> out(static_cast<size_t>(3 * (length + 1)), -1);
    try {
      source.batch({split, 1, 2, 3, length}, out);
    } catch (const Error&) {
      CHECK(!source.holds(split, length));  // tokens have been checked when it was opened
      continue;
    }
    CHECK(source.holds(split, length));
    for (const int32_t token : out) CHECK(token >= 0 && token < source.vocab());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  TokenOptions options;
  options.vocab = int64_t{1} << (data[0] % 40);
  options.validation_share = data[1] / 256.0;
  const int64_t length = data[2] + 1;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  try {
    check_batches(TokenSource::from_token_file({bytes + 3, bytes + size}, "input", options),
                  length);
  } catch (const Error&) {
    // Refusing the input is a right answer.
  }
  try {
    const std::string text(reinterpret_cast<const char*>(data) + 3, size - 3);
    check_batches(TokenSource::from_text(text, "input", options), length);
  } catch (const Error&) {
    // As above.
  }
  return 0;
}
