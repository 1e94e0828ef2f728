#include "backend/train/weights_file.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <fmt/format.h>

#include "backend/execute/operation_arguments.h"
#include "backend/train/parameter_state.h"

namespace ballast {

TensorDeclaration declare_parameter(const Parameter& parameter, const std::string& prefix) {
  TensorDeclaration declaration;
  declaration.name = prefix + parameter.name;
  declaration.type = stored_type(DType::kF32);
  declaration.shape = parameter.shape();
  return declaration;
}

const StoredTensor& tensor_of(const SafetensorsReader& reader, const std::string& name,
                              const Parameter& parameter) {
  const std::string& path = reader.path();
  const StoredTensor* tensor = reader.find(name);
  if (tensor == nullptr) {
    throw Error(path, "it has no tensor '" + name + "'", "give a file of this very model");
  }
  // Not the product of the shape: beside an extent of 0 the others may be of any size.
  const int64_t count = tensor->elements();
  if (tensor->shape.empty() || tensor->shape.back() != parameter.columns ||
      count != parameter.count()) {
    throw Error(path,
                fmt::format("tensor '{}' has {} values in rows of {}, the model {} in rows of {}",
                            name, count, tensor->shape.empty() ? 1 : tensor->shape.back(),
                            parameter.count(), parameter.columns),
                "give a file of this very model");
  }
  return *tensor;
}

std::vector<float> read_floats(const SafetensorsReader& reader, const StoredTensor& tensor,
                               int64_t count) {
  const std::optional<DType> dtype = dtype_of(tensor.type);
  if (!dtype || (*dtype != DType::kF32 && *dtype != DType::kBf16 && *dtype != DType::kF16)) {
    throw Error(reader.path(),
                fmt::format("tensor '{}' is stored as {}", tensor.name, to_string(tensor.type)),
                "store it in F32, BF16 or F16");
  }
  std::vector<std::byte> raw(static_cast<size_t>(count * size_of(*dtype)));
  reader.read(tensor, raw);
  std::vector<float> values(static_cast<size_t>(count));
  kernels::best().cast(raw.data(), format_of(*dtype), values.data(), kernels::Format::kF32, count);
  return values;
}

std::optional<size_t> first_not_finite(std::span<const float> values) {
  constexpr size_t kBlock = 1024;  // a loop without a branch, of vector instructions
  constexpr uint32_t kExponent = 0x7f80'0000;
  for (size_t begin = 0; begin < values.size(); begin += kBlock) {
    const std::span<const float> block =
        values.subspan(begin, std::min(kBlock, values.size() - begin));
    uint32_t not_finite = 0;
    for (const float value : block) {
      not_finite |= (std::bit_cast<uint32_t>(value) & kExponent) == kExponent ? 1U : 0U;
    }
    if (not_finite == 0) continue;
    const auto found =
        std::find_if(block.begin(), block.end(), [](float value) { return !std::isfinite(value); });
    return begin + static_cast<size_t>(found - block.begin());
  }
  return std::nullopt;
}

std::vector<float> read_finite(const SafetensorsReader& reader, const StoredTensor& tensor,
                               int64_t count) {
  std::vector<float> values = read_floats(reader, tensor, count);
  const std::optional<size_t> bad = first_not_finite(values);
  if (!bad) return values;
  throw Error(reader.path(),
              fmt::format("tensor '{}' has a value that is not finite: {} at {} of {}", tensor.name,
                          values[*bad], *bad, count),
              "give weights that can be trained on");
}

void export_weights(const Graph& graph, TrainingDevice& device, const Model& model,
                    const WeightsTarget& target, Files& files) {
  std::vector<TensorDeclaration> declarations;
  for_parameters(graph, device, [&](size_t, const Parameter& parameter) {
    declarations.push_back(declare_parameter(parameter, ""));
  });
  std::optional<WeightFilesWriter> writer;
  if (is_first_rank(device)) {
    writer.emplace(
        target, declarations,
        std::map<std::string, std::string>{{"format", "pt"}, {"ballast.model", model.name}}, files);
  }
  for_parameters(graph, device, [&](size_t module, const Parameter& parameter) {
    const std::vector<float> values =
        read_parameter(graph, device, module, parameter, StateArray::kMaster);
    if (writer) writer->write(std::as_bytes(std::span(values)));
  });
  if (writer) writer->commit();
}

void import_weights(const Graph& graph, TrainingDevice& device, const std::string& path) {
  const WeightFiles files(path);
  for_parameters(graph, device, [&](size_t module, const Parameter& parameter) {
    std::string name = parameter.name;
    const size_t dot = name.find('.');
    if (!files.holds(name) && files.holds(name.substr(dot + 1))) name = name.substr(dot + 1);
    const SafetensorsReader& reader = files.file_of(name);
    const StoredTensor& tensor = tensor_of(reader, name, parameter);
    write_parameter(graph, device, module, parameter, StateArray::kMaster,
                    read_finite(reader, tensor, parameter.count()));
  });
}

}  // namespace ballast
