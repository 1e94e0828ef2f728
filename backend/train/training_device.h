// TrainingDevice: a device that holds the state of a training, as the trainer and its checkpoints
// see it, wherever that state lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/comm/communicator.h"
#include "backend/cuda/libraries/gemm_algorithms.h"
#include "backend/disk/state_file.h"
#include "backend/execute/device.h"
#include "backend/execute/optimizer_state.h"
#include "backend/execute/parameter_slices.h"
#include "backend/execute/rank_shares.h"
#include "backend/execute/update_control.h"
#include "backend/train/data.h"
#include "sim/base/units.h"
#include "sim/graph/core/capabilities.h"
#include "sim/graph/core/graph.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

class BucketRanges;

// One of several ranks: the way to the others, and how they agree to end.
struct RankOptions {
  Communicator* ranks = nullptr;  // null: this one is alone
  // Bits of why this rank would end the run. Once any has some, as the losses of a step are judged:
  // the latest step that this rank has begun, after which it begins none; then, with the latest of
  // all ranks and the bits of all, what ends the run there.
  std::function<int()> wishes;
  std::function<int32_t()> hold;
  std::function<void(int32_t last_step, int wishes)> agreed;
  // The others are not there (LoneRank): between GPUs nothing is exchanged.
  bool without_others = false;
};

struct DeviceOptions {
  int optimizer_threads = 1;
  int compute_threads = 1;  // of the host device's compute lane
  OptimizerOptions optimizer;
  DiskOptions disk;  // where the plan keeps state on NVMe
  // A factor on the loss's gradient by step, for tests; null: 1.
  std::function<double(int32_t step)> gradient_factor;
  RankOptions of_rank;
  // On a GPU: launch runs of operations whose arguments are the same every few steps as one graph.
  bool captures = false;
  // On a GPU: operations are timed in every so many steps; in others, only steps are.
  int32_t timed_steps_apart = 1;
  // On a GPU: algorithms of matrix products that were chosen before, and where new ones go.
  GemmAlgorithmStore gemm_algorithms;
};

// What a device is made for. All that is referred to must outlive it.
struct Training {
  const Model& model;
  const Plan& plan;
  const Graph& graph;
  const TokenSource& data;
};

struct MemoryUse {
  Place place{};
  Bytes planned;   // the arena's size, as predicted
  Bytes resident;  // what is really taken, but for what Gpu::reserved counts
};

constexpr Bytes kCachedRead{int64_t{256} << 10};
constexpr Bytes kRequestedRead{int64_t{16} << 20};

class TrainingDevice : public Device {
 public:
  virtual UpdateControl& control() = 0;
  // What this rank has of the state; null where it has all.
  virtual const RankShares* shares() const { return nullptr; }
  // What this tensor-parallel rank has of every parameter; null where it has all.
  virtual const ParameterSlices* slices() const { return nullptr; }

  // Bytes [begin, begin + size) of a tensor; of copy `copy` where it has two. While nothing runs;
  // several threads may read and write different bytes at once.
  virtual void read(TensorId tensor, int copy, int64_t begin, std::span<std::byte> to) = 0;
  virtual void write(TensorId tensor, int copy, int64_t begin, std::span<const std::byte> from) = 0;

  // So many bytes of a tensor at this place are best read at once: of what lies in this process's
  // memory as many as a core's cache holds, of others enough that what a request costs is little.
  virtual Bytes read_at_once(Place place) const {
    return place == Place::kDram ? kCachedRead : kRequestedRead;
  }

  // Writes the weights of every module that lives on the GPU, and the home of those that flow, from
  // the masters. At the start of a run, while nothing runs.
  virtual void spread_weights() = 0;
  // Recomputes the norm partials of gradients that were restored into the buckets (delay).
  virtual void restore_partials(int32_t step) = 0;

  // Keeps a queued lane busy for some tenths of a millisecond, so that what is handed over next is
  // there whole when it begins: what is timed alone is not what the host took to hand it over.
  virtual void hold(LaneId) {}

  // Mean loss of forward operations over held-out data; see Trainer::validation_loss.
  virtual double evaluate(int64_t batch, int32_t step) = 0;

  // Of the GPU's memory and the CPU's.
  virtual std::vector<MemoryUse> memory() = 0;

  // What it does otherwise than one may take for granted, and why; a line each.
  virtual std::vector<std::string> notes() const { return {}; }
};

// What every training device carries out: the decoder's modules and the updates of buckets, on one
// device. Each begins its own table with this one and adds or takes away beside its switch.
Capabilities training_capabilities(const std::string& device, const std::string& described = "");

// True of a device that is alone.
bool is_first_rank(const TrainingDevice& device);

// What every rank of a training says of its memory, by rank; all call, each with its own. What is
// planned is the same on all.
std::vector<std::vector<MemoryUse>> memory_of_ranks(const TrainingDevice& device,
                                                    const std::vector<MemoryUse>& own);

// Throws Error that names the knob if the device lacks something that the training asks for.
void require(const Capabilities& capabilities, const Training& training);

// What the ranks of a plan know together, as this one's control asks. Beside the losses each tells
// whether it would end the run. All that is referred to must outlive it.
RankViews rank_views(const RankShares& shares, const Plan& plan, const RankOptions& own);

// The batch that a kLoadBatch of `step` loads: of several ranks each trains on other micro-batches,
// one rank after another.
BatchRequest batch_request(const Plan& plan, const Op& op, Split split, int32_t step, int rank = 0);

// Elements [begin, begin + count) of an array that lies in this rank's memory, from and to how it
// is stored. While nothing runs.
std::vector<float> read_values(TrainingDevice& device, const StateHome& home, int64_t begin,
                               int64_t count);
// The same, where the values are to go.
void read_values(TrainingDevice& device, const StateHome& home, int64_t begin,
                 std::span<float> values);
void write_values(TrainingDevice& device, const StateHome& home, int64_t begin,
                  std::span<const float> values);

// What TrainingDevice::spread_weights does, by reading and writing, on so many threads.
struct Spread {
  const Graph& graph;
  const BucketRanges& ranges;
  DType dtype{};
  int threads = 1;
};
void spread_weights(TrainingDevice& device, const Spread& spread);

// Calls `run` for the operations of one forward of the first micro-batch, in order: the batch is
// loaded as that of step `batch`, everything else runs as of `step`.
void run_forward(const Graph& graph, int64_t batch, int32_t step,
                 const std::function<void(OpId id, int32_t step)>& run);
// Calls `run` for the operations that make the norm partials of a step and bring them to the CPU,
// in order. Gradients that the CPU steps are brought to the GPU before, by copies that are no
// operations of the graph: they are summed where they leave from.
void run_norms(const Graph& graph, const std::function<void(const Op& op)>& run);

}  // namespace ballast
