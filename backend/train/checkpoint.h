// The state of a training on disk, by parameter name: any plan of the same model can read it.
//
// One safetensors file: master.NAME, moment1.NAME, moment2.NAME in fp32 and, where a delayed update
// is pending, gradient.NAME; counters, and what the run was begun with, in its metadata. Weights in
// the plan's format are not stored: they are the rounded masters. Written beside, synced, renamed
// (SafetensorsWriter), with a checksum of every tensor and one of the whole.
// Will not do: decide when (trainer), know of other checkpoints (checkpoint_folder), or run while
// the executor does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/execute/update_control.h"
#include "backend/formats/safetensors.h"
#include "backend/train/training_device.h"
#include "sim/graph/core/graph.h"

namespace ballast {

struct CheckpointHeader {
  std::string run;           // the id of the run that wrote it
  std::string model;         // Model::name
  std::string model_record;  // see TrainerOptions
  int64_t next_step = 0;     // also the data's position: batches are a function of the step
  uint64_t seed = 0;
  std::string data;  // for messages: the path, and how many tokens it had
  uint64_t data_fingerprint = 0;
  OptimizerOptions optimizer;
  ControlState control;
};

// Every rank calls, and the first one writes; the header is its. Writes nothing and returns the
// name of a tensor where its state has a value that is not finite: nobody can go on from such a
// state.
std::optional<std::string> save_checkpoint(const Graph& graph, TrainingDevice& device,
                                           const CheckpointHeader& header, const std::string& path,
                                           Files& files = system_files());

// A copy in memory of what a checkpoint holds, which is written while training goes on.
class CheckpointSnapshot {
 public:
  // Takes the copy, while nothing runs. Every rank calls, and the first one keeps it; the header is
  // its. Returns the name of a tensor that has a value that is not finite, and is then no copy.
  std::optional<std::string> take(const Graph& graph, TrainingDevice& device,
                                  const CheckpointHeader& header);
  // Writes what was taken, to the bytes of save_checkpoint. Needs neither graph nor device.
  void write(const std::string& path, Files& files = system_files()) const;

 private:
  std::vector<TensorDeclaration> declarations_;
  StoredMetadata metadata_;
  std::vector<float> values_;  // of all tensors, one after another; its memory is used again
};

// What the state of a checkpoint takes, in bytes, but for gradients that wait.
int64_t checkpoint_bytes(const Graph& graph, const TrainingDevice& device);

// Throws Error where the file is damaged or not a checkpoint.
CheckpointHeader load_checkpoint_header(const std::string& path, Files& files = system_files());
// Reads the whole file. Throws Error where a byte of it is not as it was written. False where it
// was written before checkpoints had checksums: then only its header was looked at.
bool verify_checkpoint(const std::string& path, Files& files = system_files());
// Fills masters, moments and pending gradients. Throws Error where the model's parameters
// differ, data are not as they were written, or a value is not finite.
void load_checkpoint_state(const Graph& graph, TrainingDevice& device, const std::string& path,
                           Files& files = system_files());

}  // namespace ballast
