// libFuzzer harness: any bytes as a safetensors file give a header that tiles the file, or an
// Error. Build: clang++ -std=c++20 -fsanitize=fuzzer,address,undefined -I. with
// backend/formats/safetensors.cpp, backend/formats/flat_json.cpp, sim/base/atomic_file.cpp and
// sim/base/error.cpp.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/formats/safetensors.h"

namespace {

using namespace ballast;

// What was accepted can be written again and is then the same.
void check_round_trip(const SafetensorsHeader& header) {
  std::vector<TensorDeclaration> declarations;
  int64_t offset = 0;
  for (const StoredTensor& tensor : header.tensors) {
    if (offset % size_of(tensor.type) != 0) return;  // accepted, but not what the writer makes
    declarations.push_back({tensor.name, tensor.type, tensor.shape});
    offset += tensor.bytes;
  }
  const std::string preamble = safetensors_preamble(declarations, header.metadata);
  const int64_t file_bytes = static_cast<int64_t>(preamble.size()) + offset;
  const int64_t length =
      safetensors_header_bytes(std::as_bytes(std::span(preamble)), file_bytes, "again");
  CHECK(length + 8 == static_cast<int64_t>(preamble.size()));
  const SafetensorsHeader again =
      parse_safetensors(std::string_view(preamble).substr(8), file_bytes, "again");
  CHECK(again.metadata == header.metadata);
  CHECK(again.tensors.size() == header.tensors.size());
  for (size_t i = 0; i < again.tensors.size(); ++i) {
    CHECK(again.tensors[i].name == header.tensors[i].name);
    CHECK(again.tensors[i].shape == header.tensors[i].shape);
    CHECK(again.tensors[i].type == header.tensors[i].type);
    CHECK(again.tensors[i].bytes == header.tensors[i].bytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  const auto file_bytes = static_cast<int64_t>(size);
  try {
    const int64_t length = safetensors_header_bytes(file, file_bytes, "input");
    const std::string_view json(reinterpret_cast<const char*>(data) + 8,
                                static_cast<size_t>(length));
    const SafetensorsHeader header = parse_safetensors(json, file_bytes, "input");
    int64_t covered = header.data_begin;
    for (const StoredTensor& tensor : header.tensors) {
      CHECK(tensor.begin == covered && tensor.bytes >= 0);
      covered += tensor.bytes;
    }
    CHECK(covered == file_bytes);
    check_round_trip(header);
  } catch (const Error&) {
    // Refusing the input is a right answer.
  }
  return 0;
}
