#include "backend/train/checkpoint.h"

#include <charconv>
#include <fmt/format.h>
#include <functional>
#include <map>
#include <vector>

#include "backend/formats/safetensors.h"
#include "backend/train/parameter_state.h"
#include "backend/train/resume_notes.h"
#include "backend/train/weights_file.h"

namespace ballast {

namespace {

constexpr const char* kFormat = "ballast.checkpoint/3";
constexpr const char* kWithoutChecksums = "ballast.checkpoint/2";

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

std::map<std::string, std::string> metadata_of(const CheckpointHeader& header) {
  std::map<std::string, std::string> metadata = {
      {"format", kFormat},
      {"run", header.run},
      {"model", header.model},
      {"model_record", header.model_record},
      {"data", header.data},
      {"data_fingerprint", fmt::format("{}", header.data_fingerprint)},
      {"next_step", fmt::format("{}", header.next_step)},
      {"seed", fmt::format("{}", header.seed)},
      {"optimizer_steps", fmt::format("{}", header.control.optimizer_steps)},
      {"loss_scale", header.control.loss_scale.to_text()}};
  for (const OptimizerSetting& setting : optimizer_settings()) {
    metadata[setting.key] = fmt::format("{:a}", setting.get(header.optimizer));
  }
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

bool all_finite(std::span<const float> values) { return !first_not_finite(values); }

std::vector<TensorDeclaration> declarations_of(const Graph& graph, const TrainingDevice& device,
                                               bool pending) {
  std::vector<TensorDeclaration> declarations;
  const auto add = [&](const std::string& prefix) {
    for_parameters(graph, device, [&](size_t, const Parameter& parameter) {
      declarations.push_back(declare_parameter(parameter, prefix));
    });
  };
  for (const StateArray array : kStateArrays) add(prefix_of(array));
  if (pending) add("gradient.");
  return declarations;
}

using Read = std::function<void(std::span<float> values)>;

// Calls `visit` for every tensor of a checkpoint in its order, with what reads it, and is told
// whether it is finite; of gradients that wait that is not asked. Returns the first one of an array
// that is not, and goes on no further. Every rank calls, for each tells the others what it keeps.
std::optional<std::string> visit_state(
    const Graph& graph, TrainingDevice& device, bool pending,
    const std::function<bool(const Parameter& parameter, const Read& read)>& visit) {
  std::optional<std::string> not_finite;
  for (const StateArray array : kStateArrays) {
    for_parameters(graph, device, [&](size_t module, const Parameter& parameter) {
      const bool finite = visit(parameter, [&](std::span<float> values) {
        read_parameter(graph, device, module, parameter, array, values);
      });
      if (!finite && !not_finite) not_finite = prefix_of(array) + parameter.name;
    });
    if (not_finite) return not_finite;
  }
  if (!pending) return not_finite;
  const PendingGradients gradients(graph, device);
  for_parameters(graph, device, [&](size_t module, const Parameter& parameter) {
    visit(parameter, [&](std::span<float> values) { gradients.read(module, parameter, values); });
  });
  return not_finite;
}

}  // namespace

std::optional<std::string> save_checkpoint(const Graph& graph, TrainingDevice& device,
                                           const CheckpointHeader& header, const std::string& path,
                                           Files& files) {
  const bool pending = header.control.pending_gradient.has_value();
  std::optional<SafetensorsWriter> writer;
  if (is_first_rank(device)) {
    writer.emplace(path, declarations_of(graph, device, pending), metadata_of(header), files);
  }
  const auto not_finite =
      visit_state(graph, device, pending, [&](const Parameter& parameter, const Read& read) {
        std::vector<float> values(static_cast<size_t>(parameter.count()));
        read(values);
        if (writer) writer->write(std::as_bytes(std::span(values)));
        return all_finite(values);
      });
  if (!not_finite && writer) writer->commit();
  return not_finite;
}

std::optional<std::string> CheckpointSnapshot::take(const Graph& graph, TrainingDevice& device,
                                                    const CheckpointHeader& header) {
  const bool pending = header.control.pending_gradient.has_value();
  const bool keeps = is_first_rank(device);
  declarations_ = declarations_of(graph, device, pending);
  metadata_ = metadata_of(header);
  int64_t count = 0;
  for_parameters(graph, device,
                 [&](size_t, const Parameter& parameter) { count += parameter.count(); });
  if (keeps) values_.resize(static_cast<size_t>(count) * (kStateArrays.size() + (pending ? 1 : 0)));
  std::vector<float> passed_on;  // of a rank that keeps none
  size_t at = 0;
  return visit_state(graph, device, pending, [&](const Parameter& parameter, const Read& read) {
    const auto size = static_cast<size_t>(parameter.count());
    if (!keeps) passed_on.resize(size);
    const std::span<float> values = keeps ? std::span(values_).subspan(at, size) : passed_on;
    read(values);
    at += size;
    return all_finite(values);
  });
}

void CheckpointSnapshot::write(const std::string& path, Files& files) const {
  SafetensorsWriter writer(path, declarations_, metadata_, files);
  size_t at = 0;
  for (const TensorDeclaration& tensor : declarations_) {
    size_t size = 1;
    for (const int64_t extent : tensor.shape) size *= static_cast<size_t>(extent);
    writer.write(std::as_bytes(std::span(values_).subspan(at, size)));
    at += size;
  }
  writer.commit();
}

int64_t checkpoint_bytes(const Graph& graph, const TrainingDevice& device) {
  int64_t values = 0;
  for_parameters(graph, device,
                 [&](size_t, const Parameter& parameter) { values += parameter.count(); });
  return values * static_cast<int64_t>(std::size(kStateArrays) * sizeof(float));
}

CheckpointHeader load_checkpoint_header(const std::string& path, Files& files) {
  const SafetensorsReader reader(path, files);
  const std::map<std::string, std::string>& metadata = reader.metadata();
  const std::string& format = value_of(metadata, "format", path);
  if (format != kFormat && format != kWithoutChecksums) {
    refuse(path, "it is '" + format + "', and a checkpoint is " + kFormat);
  }
  if (format == kFormat && !reader.has_checksums()) refuse(path, "it has no checksums");
  CheckpointHeader header;
  header.run = value_of(metadata, "run", path);
  header.model = value_of(metadata, "model", path);
  header.model_record = value_of(metadata, "model_record", path);
  header.data = value_of(metadata, "data", path);
  header.data_fingerprint = whole_number<uint64_t>(metadata, "data_fingerprint", path);
  for (const OptimizerSetting& setting : optimizer_settings()) {
    setting.set(header.optimizer, hexadecimal(metadata, setting.key, path));
  }
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

bool verify_checkpoint(const std::string& path, Files& files) {
  load_checkpoint_header(path, files);
  const SafetensorsReader reader(path, files);
  reader.verify();
  return reader.has_checksums();
}

void load_checkpoint_state(const Graph& graph, TrainingDevice& device, const std::string& path,
                           Files& files) {
  const SafetensorsReader reader(path, files);
  for (const StateArray array : kStateArrays) {
    for_parameters(graph, device, [&](size_t module, const Parameter& parameter) {
      const StoredTensor& tensor = tensor_of(reader, prefix_of(array) + parameter.name, parameter);
      write_parameter(graph, device, module, parameter, array,
                      read_finite(reader, tensor, parameter.count()));
    });
  }
  if (!reader.metadata().contains("pending_loss_scale")) return;
  PendingGradients gradients(graph, device);
  for_parameters(graph, device, [&](size_t module, const Parameter& parameter) {
    const StoredTensor& tensor = tensor_of(reader, "gradient." + parameter.name, parameter);
    gradients.write(module, parameter, read_floats(reader, tensor, parameter.count()));
  });
}

}  // namespace ballast
