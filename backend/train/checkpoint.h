// The state of a training on disk, by parameter name: any plan of the same model can read it.
//
// One safetensors file: master.NAME, moment1.NAME, moment2.NAME in fp32 and, where a delayed update
// is pending, gradient.NAME; counters in its metadata. Weights in the plan's format are not stored:
// they are the rounded masters. Written beside, synced, renamed (SafetensorsWriter).
// Will not do: decide when (trainer), or run while the executor does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "backend/execute/update_control.h"
#include "backend/train/training_device.h"
#include "sim/graph/core/graph.h"

namespace ballast {

struct CheckpointHeader {
  std::string model;      // Model::name
  int64_t next_step = 0;  // also the data's position: batches are a function of the step
  uint64_t seed = 0;
  ControlState control;
};

void save_checkpoint(const Graph& graph, TrainingDevice& device, const CheckpointHeader& header,
                     const std::string& path);

// Throws Error where the file is damaged or not a checkpoint.
CheckpointHeader load_checkpoint_header(const std::string& path);
// Fills masters, moments and pending gradients. Throws Error where the model's parameters differ.
void load_checkpoint_state(const Graph& graph, TrainingDevice& device, const std::string& path);

// "FOLDER/step-00000120.safetensors".
std::string checkpoint_path(const std::string& folder, int64_t next_step);
// The newest checkpoint of a folder, or nothing.
std::optional<std::string> newest_checkpoint(const std::string& folder);
// Removes all but the newest `kept` checkpoints.
void prune_checkpoints(const std::string& folder, size_t kept);

// Masters by Hugging Face name, as any tool reads them.
void export_weights(const Graph& graph, TrainingDevice& device, const Model& model,
                    const std::string& path);
// Sets masters from a file with Hugging Face names in fp32, bf16 or fp16 (a "transformer." or
// "model." in front may be missing). Throws Error for missing names and other shapes.
void import_weights(const Graph& graph, TrainingDevice& device, const std::string& path);

}  // namespace ballast
