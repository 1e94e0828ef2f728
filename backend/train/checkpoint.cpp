#include "backend/train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <functional>
#include <vector>

#include "backend/execute/operation_arguments.h"
#include "backend/formats/safetensors.h"

namespace ballast {

namespace {

constexpr const char* kFormat = "ballast.checkpoint/1";

// Calls `visit(bucket, offset, begin, count)` for every bucket that holds a part of a parameter:
// `offset` elements from the bucket's start, `begin` from the parameter's.
void for_parts(
    const Graph& graph, size_t module, const Parameter& parameter,
    const std::function<void(size_t bucket, int64_t offset, int64_t begin, int64_t count)>& visit) {
  for (size_t b = 0; b < graph.buckets.size(); ++b) {
    for (const Bucket::Piece& piece : graph.buckets[b].pieces) {
      if (static_cast<size_t>(piece.module) != module) continue;
      const int64_t begin = std::max(parameter.offset, piece.begin);
      const int64_t end = std::min(parameter.offset + parameter.count(), piece.begin + piece.count);
      if (begin < end) {
        visit(b, piece.offset + begin - piece.begin, begin - parameter.offset, end - begin);
      }
    }
  }
}

void for_parameters(const Graph& graph,
                    const std::function<void(size_t module, const Parameter&)>& visit) {
  for (size_t i = 0; i < graph.modules.size(); ++i) {
    for (const Parameter& parameter : graph.modules[i].parameters) visit(i, parameter);
  }
}

// Whose names in a checkpoint begin so. All are written in fp32, whatever they are kept in: moments
// in fewer bits come back as they were.
std::string prefix_of(StateArray array) {
  switch (array) {
    case StateArray::kMaster:
      return "master.";
    case StateArray::kMoment1:
      return "moment1.";
    case StateArray::kMoment2:
      return "moment2.";
  }
  return "";
}

template <class T>
std::span<T> part_of(std::span<T> values, int64_t begin, int64_t count) {
  return values.subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
}

std::vector<float> gather(const Graph& graph, TrainingDevice& device, size_t module,
                          const Parameter& parameter, StateArray array) {
  std::vector<float> values(static_cast<size_t>(parameter.count()));
  for_parts(graph, module, parameter, [&](size_t b, int64_t offset, int64_t begin, int64_t count) {
    const std::vector<float> part =
        read_state(device, graph, graph.buckets[b], array, offset, count);
    std::copy(part.begin(), part.end(), values.begin() + begin);
  });
  return values;
}

void scatter(const Graph& graph, TrainingDevice& device, size_t module, const Parameter& parameter,
             StateArray array, std::span<const float> values) {
  for_parts(graph, module, parameter, [&](size_t b, int64_t offset, int64_t begin, int64_t count) {
    write_state(device, graph, graph.buckets[b], array, offset, part_of(values, begin, count));
  });
}

// Where the pending gradient of a part of a parameter lies: in its landed bucket, or, for buckets
// stepped on the GPU, in the module's own gradient.
struct GradientPart {
  TensorId tensor = -1;
  DType dtype{};
  int64_t begin = 0;  // bytes
};
class PendingGradients {
 public:
  explicit PendingGradients(const Graph& graph) : graph_(graph) {
    landed_.assign(graph.buckets.size(), -1);
    by_module_.assign(graph.modules.size(), -1);
    for (size_t t = 0; t < graph.tensors.size(); ++t) {
      const Tensor& tensor = graph.tensors[t];
      const auto id = static_cast<TensorId>(t);
      if (tensor.kind == TensorKind::kBucketGradient) {
        landed_[static_cast<size_t>(tensor.label.bucket)] = id;
      }
      if (tensor.kind != TensorKind::kGradient) continue;
      for (size_t i = 0; i < graph.modules.size(); ++i) {
        const Module& module = graph.modules[i];
        if (module.kind == tensor.label.module && module.layer == tensor.label.layer) {
          by_module_[i] = id;
        }
      }
    }
  }
  GradientPart part(size_t bucket, int64_t offset, size_t module, int64_t module_offset) const {
    const bool landed = landed_[bucket] >= 0;
    const TensorId id = landed ? landed_[bucket] : by_module_[module];
    const DType dtype = graph_.tensors[static_cast<size_t>(id)].dtype;
    return {id, dtype, (landed ? offset : module_offset) * size_of(dtype)};
  }

 private:
  const Graph& graph_;
  std::vector<TensorId> landed_, by_module_;
};

std::vector<float> gather_gradient(const Graph& graph, TrainingDevice& device,
                                   const PendingGradients& gradients, size_t module,
                                   const Parameter& parameter) {
  std::vector<float> values(static_cast<size_t>(parameter.count()));
  for_parts(graph, module, parameter, [&](size_t b, int64_t offset, int64_t begin, int64_t count) {
    const GradientPart part = gradients.part(b, offset, module, parameter.offset + begin);
    std::vector<std::byte> stored(static_cast<size_t>(count * size_of(part.dtype)));
    device.read(part.tensor, 0, part.begin, stored);
    kernels::best().cast(stored.data(), format_of(part.dtype), values.data() + begin,
                         kernels::Format::kF32, count);
  });
  return values;
}

TensorDeclaration declare(const Parameter& parameter, const std::string& prefix) {
  TensorDeclaration declaration;
  declaration.name = prefix + parameter.name;
  declaration.type = stored_type(DType::kF32);
  if (parameter.is_matrix) declaration.shape.push_back(parameter.rows);
  declaration.shape.push_back(parameter.columns);
  return declaration;
}

std::map<std::string, std::string> metadata_of(const CheckpointHeader& header) {
  std::map<std::string, std::string> metadata = {
      {"format", kFormat},
      {"model", header.model},
      {"next_step", fmt::format("{}", header.next_step)},
      {"seed", fmt::format("{}", header.seed)},
      {"optimizer_steps", fmt::format("{}", header.control.optimizer_steps)},
      {"loss_scale", header.control.loss_scale.to_text()}};
  if (header.control.pending_gradient) {
    metadata["pending_loss_scale"] =
        fmt::format("{:a}", header.control.pending_gradient->loss_scale);
    metadata["pending_loss"] = fmt::format("{:a}", header.control.pending_gradient->loss);
  }
  return metadata;
}

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw Error(path, what, "give a checkpoint that this program wrote for this model");
}

const std::string& value_of(const std::map<std::string, std::string>& metadata,
                            const std::string& key, const std::string& path) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) refuse(path, "its metadata has no '" + key + "'");
  return found->second;
}

template <class Integer>
Integer whole_number(const std::map<std::string, std::string>& metadata, const std::string& key,
                     const std::string& path) {
  const std::string& text = value_of(metadata, key, path);
  Integer value{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc{} || end != text.data() + text.size() || value < Integer{}) {
    refuse(path, fmt::format("'{}' is '{}'", key, text));
  }
  return value;
}

double hexadecimal(const std::map<std::string, std::string>& metadata, const std::string& key,
                   const std::string& path) {
  const std::string& text = value_of(metadata, key, path);
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || end != text.c_str() + text.size()) {
    refuse(path, fmt::format("'{}' is '{}'", key, text));
  }
  return value;
}

const StoredTensor& checked(const SafetensorsReader& reader, const std::string& path,
                            const std::string& name, const Parameter& parameter) {
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

// A stored tensor as fp32, whichever of the three formats it is kept in.
std::vector<float> read_floats(const SafetensorsReader& reader, const StoredTensor& tensor,
                               const std::string& path, int64_t count) {
  const std::optional<DType> dtype = dtype_of(tensor.type);
  if (!dtype || (*dtype != DType::kF32 && *dtype != DType::kBf16 && *dtype != DType::kF16)) {
    throw Error(path,
                fmt::format("tensor '{}' is stored as {}", tensor.name, to_string(tensor.type)),
                "store it in F32, BF16 or F16");
  }
  std::vector<std::byte> raw(static_cast<size_t>(count * size_of(*dtype)));
  reader.read(tensor, raw);
  std::vector<float> values(static_cast<size_t>(count));
  kernels::best().cast(raw.data(), format_of(*dtype), values.data(), kernels::Format::kF32, count);
  return values;
}

}  // namespace

void save_checkpoint(const Graph& graph, TrainingDevice& device, const CheckpointHeader& header,
                     const std::string& path) {
  const bool pending = header.control.pending_gradient.has_value();
  std::vector<TensorDeclaration> declarations;
  for (const StateArray array : kStateArrays) {
    for_parameters(graph, [&](size_t, const Parameter& parameter) {
      declarations.push_back(declare(parameter, prefix_of(array)));
    });
  }
  if (pending) {
    for_parameters(graph, [&](size_t, const Parameter& parameter) {
      declarations.push_back(declare(parameter, "gradient."));
    });
  }
  SafetensorsWriter writer(path, declarations, metadata_of(header));
  for (const StateArray array : kStateArrays) {
    for_parameters(graph, [&](size_t module, const Parameter& parameter) {
      const std::vector<float> values = gather(graph, device, module, parameter, array);
      writer.write(std::as_bytes(std::span(values)));
    });
  }
  if (pending) {
    const PendingGradients gradients(graph);
    for_parameters(graph, [&](size_t module, const Parameter& parameter) {
      const std::vector<float> values =
          gather_gradient(graph, device, gradients, module, parameter);
      writer.write(std::as_bytes(std::span(values)));
    });
  }
  writer.commit();
}

CheckpointHeader load_checkpoint_header(const std::string& path) {
  const SafetensorsReader reader(path);
  const std::map<std::string, std::string>& metadata = reader.metadata();
  if (value_of(metadata, "format", path) != kFormat) refuse(path, "it is not a checkpoint");
  CheckpointHeader header;
  header.model = value_of(metadata, "model", path);
  header.next_step = whole_number<int64_t>(metadata, "next_step", path);
  header.seed = whole_number<uint64_t>(metadata, "seed", path);
  header.control.optimizer_steps = whole_number<int64_t>(metadata, "optimizer_steps", path);
  header.control.loss_scale =
      LossScale::parse(value_of(metadata, "loss_scale", path), path + ", loss_scale");
  if (metadata.contains("pending_loss_scale")) {
    header.control.pending_gradient =
        ControlState::PendingGradient{hexadecimal(metadata, "pending_loss_scale", path),
                                      hexadecimal(metadata, "pending_loss", path)};
  }
  return header;
}

void load_checkpoint_state(const Graph& graph, TrainingDevice& device, const std::string& path) {
  const SafetensorsReader reader(path);
  for (const StateArray array : kStateArrays) {
    for_parameters(graph, [&](size_t module, const Parameter& parameter) {
      const StoredTensor& tensor =
          checked(reader, path, prefix_of(array) + parameter.name, parameter);
      scatter(graph, device, module, parameter, array,
              read_floats(reader, tensor, path, parameter.count()));
    });
  }
  if (!reader.metadata().contains("pending_loss_scale")) return;
  const PendingGradients gradients(graph);
  for_parameters(graph, [&](size_t module, const Parameter& parameter) {
    const StoredTensor& tensor = checked(reader, path, "gradient." + parameter.name, parameter);
    const std::vector<float> values = read_floats(reader, tensor, path, parameter.count());
    for_parts(
        graph, module, parameter, [&](size_t b, int64_t offset, int64_t begin, int64_t count) {
          const GradientPart part = gradients.part(b, offset, module, parameter.offset + begin);
          std::vector<std::byte> stored(static_cast<size_t>(count * size_of(part.dtype)));
          kernels::best().cast(values.data() + begin, kernels::Format::kF32, stored.data(),
                               format_of(part.dtype), count);
          device.write(part.tensor, 0, part.begin, stored);
        });
  });
}

std::string checkpoint_path(const std::string& folder, int64_t next_step) {
  return fmt::format("{}/step-{:08}.safetensors", folder, next_step);
}

namespace {

std::vector<std::string> checkpoints_in(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failure)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && name.ends_with(".safetensors")) {
      paths.push_back(entry.path().string());
    }
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

std::optional<std::string> newest_checkpoint(const std::string& folder) {
  const std::vector<std::string> paths = checkpoints_in(folder);
  if (paths.empty()) return std::nullopt;
  return paths.back();
}

void prune_checkpoints(const std::string& folder, size_t kept) {
  const std::vector<std::string> paths = checkpoints_in(folder);
  for (size_t i = 0; i + kept < paths.size(); ++i) {
    std::error_code failure;
    std::filesystem::remove(paths[i], failure);
    if (failure) {
      throw Error(paths[i], "cannot remove an old checkpoint: " + failure.message(),
                  "check the folder's permissions");
    }
  }
}

void export_weights(const Graph& graph, TrainingDevice& device, const Model& model,
                    const std::string& path) {
  std::vector<TensorDeclaration> declarations;
  for_parameters(graph, [&](size_t, const Parameter& parameter) {
    declarations.push_back(declare(parameter, ""));
  });
  SafetensorsWriter writer(path, declarations, {{"format", "pt"}, {"ballast.model", model.name}});
  for_parameters(graph, [&](size_t module, const Parameter& parameter) {
    const std::vector<float> values = gather(graph, device, module, parameter, StateArray::kMaster);
    writer.write(std::as_bytes(std::span(values)));
  });
  writer.commit();
}

void import_weights(const Graph& graph, TrainingDevice& device, const std::string& path) {
  const SafetensorsReader reader(path);
  for_parameters(graph, [&](size_t module, const Parameter& parameter) {
    std::string name = parameter.name;
    const size_t dot = name.find('.');
    if (reader.find(name) == nullptr && reader.find(name.substr(dot + 1)) != nullptr) {
      name = name.substr(dot + 1);
    }
    const StoredTensor& tensor = checked(reader, path, name, parameter);
    scatter(graph, device, module, parameter, StateArray::kMaster,
            read_floats(reader, tensor, path, parameter.count()));
  });
}

}  // namespace ballast
