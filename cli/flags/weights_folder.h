// The folder of a model as transformers' from_pretrained loads it, which --export writes and
// --import reads: config.json beside model.safetensors.
//
// Will not do: the weights (backend/train/weights_file.h).
#pragma once

#include <optional>
#include <string>

#include "sim/spec/model.h"

namespace ballast {

// What --export writes: a file of that name if it ends in .safetensors or is there, else a folder.
struct ExportTarget {
  std::string weights;          // the file
  std::optional<int64_t> most;  // in a folder: bytes of a file, beyond which there are several
  std::optional<std::string> folder;  // that it is in, with config.json
  std::string config;                 // its text
};

// Of one file of weights, as huggingface_hub has it (serialization/_base.py,
// MAX_SHARD_SIZE = "5GB").
inline constexpr int64_t kMaxShardBytes = 5'000'000'000;

// `like`: the config.json that the model was read from, a name or a path. `most`: bytes of a file,
// as named; nothing: kMaxShardBytes in a folder. Makes the folder. Throws Error where it cannot be
// written, or the disk has too little room, where a config.json cannot say what the model is, where
// one file is to be several, and where a model.safetensors that is there would be loaded in place
// of several.
ExportTarget export_target(const std::string& path, const std::string& like, const Model& model,
                           std::optional<int64_t> most);

// Writes config.json where there is a folder.
void write_config(const ExportTarget& target);

// In what the config.json beside weights that are imported is another model than the one that is
// trained, in one line; empty where there is none or it is the same.
std::string other_model_beside(const std::string& weights, const Model& model);

}  // namespace ballast
