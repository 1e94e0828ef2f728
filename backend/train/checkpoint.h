// The state of a training on disk, by parameter name: any plan of the same model can read it.
//
// One safetensors file: master.NAME, moment1.NAME, moment2.NAME in fp32 and, where a delayed update
// is pending, gradient.NAME; counters, and what the run was begun with, in its metadata. Weights in
// the plan's format are not stored: they are the rounded masters. Written beside, synced, renamed
// (SafetensorsWriter), with a checksum of every tensor and one of the whole.
// Of several ranks each writes a shard, what it keeps, and the first one last of all a manifest of
// that name with the same metadata (backend/checkpoint/shards.h): no rank gathers what is
// another's. Will not do: decide when (trainer), know of other checkpoints (checkpoint_folder), or
// run while the executor does.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/checkpoint/shards.h"
#include "backend/comm/communicator.h"
#include "backend/execute/arena.h"
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
  std::map<std::string, std::string> knobs;  // learning_knobs() of its plan; empty: not known
};

// Every rank calls; the header is the first one's. Keeps nothing and returns the name of a tensor,
// on every rank, where the state of any has a value that is not finite: nobody can go on from such
// a state.
std::optional<std::string> save_checkpoint(const Graph& graph, TrainingDevice& device,
                                           const CheckpointHeader& header, const std::string& path,
                                           Files& files = system_files());

// A copy in memory of what this rank writes of a checkpoint while training goes on.
class CheckpointSnapshot {
 public:
  // Gets memory for a copy of so many bytes, and backs it, so that `take` need not. Throws Error
  // where the system has not got it.
  void reserve(Bytes size);
  // Takes the copy on so many threads, while nothing else runs. Every rank calls; the header is the
  // first one's. Returns the name of a tensor that has a value that is not finite, of any rank, and
  // is then no copy.
  std::optional<std::string> take(const Graph& graph, TrainingDevice& device,
                                  const CheckpointHeader& header, int threads);
  // Writes what was taken, to the bytes of save_checkpoint but for the names of shards. Needs
  // neither graph nor device, but the ranks' communicator. Every rank calls, from any thread.
  void write(const std::string& path, Files& files = system_files()) const;

 private:
  Communicator* ranks_ = nullptr;  // null: this one is alone
  ShardName name_;
  std::vector<TensorDeclaration> declarations_;
  StoredMetadata metadata_;        // of the checkpoint
  StoredMetadata shard_metadata_;  // of this rank's shard
  std::unique_ptr<Arena> memory_;  // used again
  std::span<float> values_;        // of all tensors, one after another
};

// What the state of a checkpoint takes, in bytes: all of it, but for gradients that wait, and what
// this rank copies and writes, with gradients that wait or without.
int64_t checkpoint_bytes(const Graph& graph, const TrainingDevice& device);
int64_t copied_bytes(const Graph& graph, const TrainingDevice& device, bool pending);

// The files of its shards; none of a checkpoint of one file. Throws Error where the file is
// damaged.
std::vector<std::string> shards_of_checkpoint(const std::string& path,
                                              Files& files = system_files());

// Throws Error where the file is damaged or not a checkpoint.
CheckpointHeader load_checkpoint_header(const std::string& path, Files& files = system_files());
// Reads the whole of it, shards too. Throws Error where a byte is not as it was written. False
// where it was written before checkpoints had checksums: then only its header was looked at.
bool verify_checkpoint(const std::string& path, Files& files = system_files());
// Fills masters, moments and pending gradients, of which each of several ranks reads what it keeps.
// Throws Error where the model's parameters differ, data are not as they were written, or a value
// is not finite.
void load_checkpoint_state(const Graph& graph, TrainingDevice& device, const std::string& path,
                           Files& files = system_files());

}  // namespace ballast
