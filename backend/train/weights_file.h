// Weights by Hugging Face name, as any tool reads and writes them, and the tensors of a parameter
// in such files.
//
// Will not do: config.json (profiles), or anything of the optimizer (checkpoint).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/formats/safetensors.h"
#include "backend/formats/weight_files.h"
#include "backend/train/training_device.h"
#include "sim/graph/core/graph.h"
#include "sim/spec/model.h"

namespace ballast {

// Masters in fp32. Every rank calls, and the first one writes.
void export_weights(const Graph& graph, TrainingDevice& device, const Model& model,
                    const WeightsTarget& target, Files& files = system_files());
// Sets masters from a file, or from the files of a folder (WeightFiles), with Hugging Face names in
// fp32, bf16 or fp16 (a "transformer." or "model." in front may be missing). Throws Error for
// missing names, other shapes, and values that are not finite.
void import_weights(const Graph& graph, TrainingDevice& device, const std::string& path);

// The name is `prefix` and that of the parameter; fp32.
TensorDeclaration declare_parameter(const Parameter& parameter, const std::string& prefix);
// The tensor of that name. Throws Error where there is none, or one of another shape.
const StoredTensor& tensor_of(const SafetensorsReader& reader, const std::string& name,
                              const Parameter& parameter);
// A stored tensor as fp32, whichever of the three formats it is kept in.
std::vector<float> read_floats(const SafetensorsReader& reader, const StoredTensor& tensor,
                               int64_t count);
// The same of a tensor that is trained on: throws Error where a value is not finite.
std::vector<float> read_finite(const SafetensorsReader& reader, const StoredTensor& tensor,
                               int64_t count);
// The index of the first value that is infinite or not a number.
std::optional<size_t> first_not_finite(std::span<const float> values);

}  // namespace ballast
