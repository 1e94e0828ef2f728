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

#include "backend/cuda/libraries/gemm_algorithms.h"
#include "backend/execute/device.h"
#include "backend/execute/update_control.h"
#include "backend/train/data.h"
#include "sim/base/units.h"
#include "sim/graph/core/graph.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

struct DeviceOptions {
  int optimizer_threads = 1;
  OptimizerOptions optimizer;
  // A factor on the loss's gradient by step, for tests; null: 1.
  std::function<double(int32_t step)> gradient_factor;
  // On a GPU: launch runs of kernels whose arguments never change as one recorded graph.
  bool captures = false;
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
  Bytes resident;  // what is really taken
};

class TrainingDevice : public Device {
 public:
  virtual UpdateControl& control() = 0;

  // Bytes [begin, begin + size) of a tensor; of copy `copy` where it has two. While nothing runs.
  virtual void read(TensorId tensor, int copy, int64_t begin, std::span<std::byte> to) = 0;
  virtual void write(TensorId tensor, int copy, int64_t begin, std::span<const std::byte> from) = 0;

  // Writes the weights of every module that lives on the GPU, and the home of those that flow, from
  // the masters. At the start of a run, while nothing runs.
  virtual void spread_weights() = 0;
  // Recomputes the norm partials of gradients that were restored into the buckets (delay).
  virtual void restore_partials(int32_t step) = 0;

  // Mean loss of forward operations over held-out data; see Trainer::validation_loss.
  virtual double evaluate(int64_t batch, int32_t step) = 0;

  // Of the GPU's memory and the CPU's.
  virtual std::vector<MemoryUse> memory() = 0;
};

// Throws Error where the model needs a module that no device has yet, or the plan more devices than
// one. `device`: its name for the message.
void refuse_what_cannot_run(const Model& model, const Plan& plan, const std::string& device);

// The batch that a kLoadBatch of `step` loads.
BatchRequest batch_request(const Plan& plan, const Op& op, Split split, int32_t step);

// fp32 values [begin, begin + count) of a tensor.
std::vector<float> read_floats_of(TrainingDevice& device, TensorId tensor, int64_t begin,
                                  int64_t count);

}  // namespace ballast
