#include "backend/train/checkpoint.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <fmt/format.h>
#include <map>
#include <vector>

#include "backend/checkpoint/rank_parts.h"
#include "backend/checkpoint/shard_write.h"
#include "backend/formats/safetensors.h"
#include "backend/train/parameter_state.h"
#include "backend/train/resume_notes.h"
#include "backend/train/weights_file.h"
#include "kernels/threads.h"
#include "sim/base/units.h"

namespace ballast {

namespace {

constexpr const char* kFormat = "ballast.checkpoint/3";
constexpr const char* kOfShards = "ballast.checkpoint/4";
constexpr const char* kWithoutChecksums = "ballast.checkpoint/2";
constexpr std::string_view kKnob = "knob.";  // before a knob's path, in a checkpoint's metadata
constexpr const char* kShardFormat = "ballast.checkpoint.shard/1";

// Whose names in a checkpoint begin so. All are written in fp32, whatever they are kept in: moments
// in fewer bits come back as they were.
constexpr const char* kGradientPrefix = "gradient.";
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

std::map<std::string, std::string> metadata_of(const CheckpointHeader& header,
                                               const Communicator* ranks) {
  std::map<std::string, std::string> metadata = {
      {"format", ranks == nullptr ? kFormat : kOfShards},
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
  for (const auto& [path, value] : header.knobs) metadata[std::string(kKnob) + path] = value;
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

// The other ranks, each of which writes a shard; null where this one is alone.
Communicator* others_of(const TrainingDevice& device) {
  if (device.shares() == nullptr || device.shares()->ranks().size() == 1) return nullptr;
  return &device.shares()->ranks();
}

// Tensors of a shard are flat, for what a rank keeps of a parameter is mostly no whole rows.
std::vector<TensorDeclaration> declarations_of(const std::vector<RankPart>& parts, bool pending,
                                               const Communicator* ranks) {
  std::vector<TensorDeclaration> declarations;
  const auto add = [&](const std::string& prefix) {
    for (const RankPart& part : parts) {
      TensorDeclaration& one =
          declarations.emplace_back(declare_parameter(*part.parameter, prefix));
      if (ranks != nullptr) one.shape = {part.count};
    }
  };
  for (const StateArray array : kStateArrays) add(prefix_of(array));
  if (pending) add(kGradientPrefix);
  return declarations;
}

StoredMetadata shard_metadata(const std::vector<RankPart>& parts, const ShardName& name) {
  StoredMetadata metadata = {{"format", kShardFormat},
                             {"next_step", fmt::format("{}", name.next_step)},
                             {"mark", name.mark},
                             {"rank", fmt::format("{}", name.rank)},
                             {"ranks", fmt::format("{}", name.ranks)}};
  for (const RankPart& part : parts) {
    std::vector<ElementRuns> elements;
    for (const RankPart::Runs& runs : part.runs) elements.push_back(runs.whole);
    metadata[elements_key(part.parameter->name)] = text_of(elements);
  }
  return metadata;
}

// What the shards of this checkpoint are called; all ranks call.
ShardName shard_name(Communicator* ranks, const CheckpointHeader& header) {
  ShardName name;
  name.next_step = header.next_step;
  if (ranks == nullptr) return name;
  name.mark = told_by_first(*ranks, ranks->rank() == 0 ? new_shard_mark() : "");
  name.rank = ranks->rank();
  name.ranks = ranks->size();
  return name;
}

std::string shard_beside(const std::string& path, const ShardName& name) {
  return folder_of(path) + "/" + shard_file(name);
}

int64_t arrays_of(bool pending) { return std::ssize(kStateArrays) + (pending ? 1 : 0); }
int64_t values_of(const std::vector<RankPart>& parts) {
  int64_t values = 0;
  for (const RankPart& part : parts) values += part.count;
  return values;
}

// What this rank writes of a checkpoint, in its order: array after array, of each part after part.
class WrittenState {
 public:
  // All must outlive this. `pending`: the gradients of a delayed update are the last array.
  WrittenState(const Graph& graph, TrainingDevice& device, const std::vector<RankPart>& parts,
               bool pending)
      : graph_(graph), device_(device), parts_(parts) {
    if (pending) gradients_.emplace(graph, device);
  }

  const std::vector<RankPart>& parts() const { return parts_; }
  size_t arrays() const { return static_cast<size_t>(arrays_of(gradients_.has_value())); }
  std::string name(size_t array, const RankPart& part) const {
    return prefix_of(kStateArrays.at(array)) + part.parameter->name;
  }
  // Fills the values of a part or of a piece of one. False where one of a state's arrays is not
  // finite; of gradients that is not asked. Several threads may read different ones.
  bool read(size_t array, const RankPart& part, std::span<float> values) const {
    const Parameter& own = *own_part(device_, part.module, *part.parameter);
    bool finite = true;
    const auto look = [&](std::span<const float> block) {
      finite = finite && !first_not_finite(block);
    };
    read_part(
        part,
        [&](int64_t begin, std::span<float> to) {
          if (array == kStateArrays.size()) {
            gradients_->read_kept(part.module, own, begin, to);
          } else {
            read_kept(graph_, device_, part.module, own, begin, kStateArrays.at(array), to, look);
          }
        },
        values);
    return finite;
  }

 private:
  const Graph& graph_;
  TrainingDevice& device_;
  const std::vector<RankPart>& parts_;
  std::optional<PendingGradients> gradients_;
};

// Some of what is copied: where it goes among all values, and what it is.
struct CopiedPiece {
  size_t to = 0;
  size_t array = 0;
  RankPart part;
};
std::vector<CopiedPiece> pieces_of(const WrittenState& state) {
  constexpr int64_t kPiece = int64_t{1} << 21;  // values: few enough that threads end together
  std::vector<CopiedPiece> pieces;
  size_t to = 0;
  for (size_t array = 0; array < state.arrays(); ++array) {
    for (const RankPart& part : state.parts()) {
      for (int64_t begin = 0; begin < part.count; begin += kPiece) {
        const int64_t count = std::min(kPiece, part.count - begin);
        pieces.push_back({to, array, piece_of(part, begin, count)});
        to += static_cast<size_t>(count);
      }
    }
  }
  return pieces;
}

// Copies all of it, on so many threads. The name of the first tensor that is not finite.
std::optional<std::string> copy_state(const WrittenState& state, int threads,
                                      std::span<float> values) {
  const std::vector<CopiedPiece> pieces = pieces_of(state);
  std::atomic<size_t> next = 0;
  std::atomic<size_t> not_finite = pieces.size();
  kernels::Workers crew(threads, kernels::Pinning::kNone);
  crew.for_tiles(crew.count(), 1, [&](int64_t, int64_t) {
    for (size_t i = next++; i < pieces.size(); i = next++) {
      const CopiedPiece& piece = pieces[i];
      const auto count = static_cast<size_t>(piece.part.count);
      if (state.read(piece.array, piece.part, values.subspan(piece.to, count))) continue;
      size_t first = not_finite;
      while (i < first && !not_finite.compare_exchange_weak(first, i)) {
      }
    }
  });
  if (not_finite == pieces.size()) return std::nullopt;
  const CopiedPiece& first = pieces[not_finite];
  return state.name(first.array, first.part);
}

}  // namespace

std::optional<std::string> save_checkpoint(const Graph& graph, TrainingDevice& device,
                                           const CheckpointHeader& header, const std::string& path,
                                           Files& files) {
  const bool pending = header.control.pending_gradient.has_value();
  Communicator* const ranks = others_of(device);
  const std::vector<RankPart> parts = parts_to_write(graph, device);
  const ShardName name = shard_name(ranks, header);
  const StoredMetadata metadata = metadata_of(header, ranks);
  std::optional<SafetensorsWriter> writer;
  auto not_finite = first_of_ranks(ranks, [&]() -> std::optional<std::string> {
    writer.emplace(ranks == nullptr ? path : shard_beside(path, name),
                   declarations_of(parts, pending, ranks),
                   ranks == nullptr ? metadata : shard_metadata(parts, name), files);
    const WrittenState state(graph, device, parts, pending);
    for (size_t array = 0; array < state.arrays(); ++array) {
      for (const RankPart& part : parts) {
        std::vector<float> values(static_cast<size_t>(part.count));
        if (!state.read(array, part, values)) return state.name(array, part);
        writer->write(std::as_bytes(std::span(values)));
      }
    }
    return std::nullopt;
  });
  if (not_finite) return not_finite;
  const auto commit = [&] { return writer->commit(); };
  if (ranks == nullptr) {
    commit();
  } else {
    write_shards(*ranks, Channel::kControl, path, name, commit, metadata, files);
  }
  return std::nullopt;
}

void CheckpointSnapshot::reserve(Bytes size) {
  if (memory_ && size <= memory_->size()) return;
  values_ = {};
  memory_.reset();  // first, for both may be too much
  try {
    memory_ = std::make_unique<Arena>("of a checkpoint's copy", size, ArenaBacking::kWhole);
  } catch (const Error&) {
    throw Error("--checkpoint",
                fmt::format("a checkpoint is copied before it is written, and the system has no {} "
                            "for that",
                            bytes_text(size)),
                "add --pause-for-checkpoints, which needs no copy, or grant more memory");
  }
}

std::optional<std::string> CheckpointSnapshot::take(const Graph& graph, TrainingDevice& device,
                                                    const CheckpointHeader& header, int threads) {
  const bool pending = header.control.pending_gradient.has_value();
  ranks_ = others_of(device);
  name_ = shard_name(ranks_, header);
  metadata_ = metadata_of(header, ranks_);
  return first_of_ranks(ranks_, [&] {
    const std::vector<RankPart> parts = parts_to_write(graph, device);
    declarations_ = declarations_of(parts, pending, ranks_);
    shard_metadata_ = shard_metadata(parts, name_);
    const int64_t count = values_of(parts) * arrays_of(pending);
    reserve({count * size_of(DType::kF32)});
    values_ = {reinterpret_cast<float*>(memory_->at(0)), static_cast<size_t>(count)};
    return copy_state(WrittenState(graph, device, parts, pending), threads, values_);
  });
}

void CheckpointSnapshot::write(const std::string& path, Files& files) const {
  const auto write = [&](const std::string& file, const StoredMetadata& metadata) {
    SafetensorsWriter writer(file, declarations_, metadata, files);
    writer.write(std::as_bytes(values_));
    return writer.commit();
  };
  if (ranks_ == nullptr) {
    write(path, metadata_);
    return;
  }
  write_shards(
      *ranks_, Channel::kCheckpoint, path, name_,
      [&] { return write(shard_beside(path, name_), shard_metadata_); }, metadata_, files);
}

int64_t copied_bytes(const Graph& graph, const TrainingDevice& device, bool pending) {
  return values_of(parts_to_write(graph, device)) * arrays_of(pending) * size_of(DType::kF32);
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
  if (format != kFormat && format != kOfShards && format != kWithoutChecksums) {
    refuse(path, "it is '" + format + "', and a checkpoint is " + kFormat + " or " + kOfShards);
  }
  if (format != kWithoutChecksums && !reader.has_checksums()) refuse(path, "it has no checksums");
  if ((format == kOfShards) == shards_of(metadata, path).empty()) {
    refuse(path, "it is '" + format + "', and does not name its shards as one is meant to");
  }
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
  for (const auto& [key, value] : metadata) {
    if (key.starts_with(kKnob)) header.knobs[key.substr(kKnob.size())] = value;
  }
  if (metadata.contains("pending_loss_scale")) {
    header.control.pending_gradient =
        ControlState::PendingGradient{hexadecimal(metadata, "pending_loss_scale", path),
                                      hexadecimal(metadata, "pending_loss", path)};
  }
  return header;
}

std::vector<std::string> shards_of_checkpoint(const std::string& path, Files& files) {
  std::vector<std::string> paths;
  for (const Shard& shard : shards_of(SafetensorsReader(path, files).metadata(), path)) {
    paths.push_back(folder_of(path) + "/" + shard.file);
  }
  return paths;
}

bool verify_checkpoint(const std::string& path, Files& files) {
  load_checkpoint_header(path, files);
  const SafetensorsReader reader(path, files);
  reader.verify();
  ShardReaders(path, shards_of(reader.metadata(), path), files).verify();
  return reader.has_checksums();
}

void load_checkpoint_state(const Graph& graph, TrainingDevice& device, const std::string& path,
                           Files& files) {
  const SafetensorsReader reader(path, files);
  const std::vector<Shard> shards = shards_of(reader.metadata(), path);
  const ShardReaders of_ranks(path, shards, files);
  using Values = ShardReaders::Values;
  const auto read = [&](const std::string& prefix, size_t module, const Parameter& parameter,
                        Values kind) {
    if (!shards.empty()) {
      return of_ranks.read(prefix, parameter.name, parameter.count(),
                           kept_elements(graph, device, module, parameter), kind);
    }
    const StoredTensor& tensor = tensor_of(reader, prefix + parameter.name, parameter);
    return kind == Values::kFinite ? read_finite(reader, tensor, parameter.count())
                                   : read_floats(reader, tensor, parameter.count());
  };
  for (const StateArray array : kStateArrays) {
    for_parameters(graph, device, [&](size_t module, const Parameter& parameter) {
      write_parameter(graph, device, module, parameter, array,
                      read(prefix_of(array), module, parameter, Values::kFinite));
    });
  }
  if (!reader.metadata().contains("pending_loss_scale")) return;
  PendingGradients gradients(graph, device);
  for_parameters(graph, device, [&](size_t module, const Parameter& parameter) {
    gradients.write(module, parameter, read(kGradientPrefix, module, parameter, Values::kAny));
  });
}

}  // namespace ballast
