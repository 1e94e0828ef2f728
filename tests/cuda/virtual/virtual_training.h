// Trainings on a GH200 that is played: what takes how long, and what a run is measured by.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/device_cuda.h"
#include "sim/engine/cost.h"
#include "sim/engine/engine.h"
#include "tests/cuda/virtual/virtual_device.h"

namespace ballast::tests {

// Whose mathematics runs on the streams.
enum class Arithmetic : uint8_t {
  kHost,      // the CPU's kernels: the bits of the host device
  kEmulated,  // the CUDA kernels, emulated, and plain products
  kNone,      // none, of the CUDA kernels' launches: time alone
};

// A machine by its tables, for one graph. All that is given must outlive it.
PlayedMachine played(const Machine& machine, const Plan& plan, const Graph& graph);

// A run of some steps from 0, for the time that it lasts.
class VirtualRun {
 public:
  VirtualRun(const Machine& machine, Arithmetic arithmetic, int32_t steps)
      : machine_(machine), arithmetic_(arithmetic), steps_(steps) {}
  // Once.
  std::unique_ptr<TrainingDevice> make_device(const Training& training, const DeviceOptions& with,
                                              const ControlState& state);

  // Before: no stream or thread waits for another stream.
  void forget_waits() { follows_ = false; }

  VirtualCuda& runtime() const { return *runtime_; }
  const VirtualDevice& device() const { return *device_; }
  const PlayedMachine& playing() const { return playing_; }

  // Of the second half of the run's steps, when all lanes have their rhythm: one span an operation,
  // from the begin of the first thing that it did to the end of its last. Its `step_time` is their
  // mean.
  Timeline timeline() const;
  // The share of them in which the GPU computes nothing.
  double idle_share(const Graph& graph) const;
  // The mean over all operations that are handed to the GPU.
  HostTime host_time(const Graph& graph) const;
  // What the calls of the compute lane's thread take in all.
  Duration compute_calls_of_a_step(const Graph& graph) const;
  // Edges whose consumer began before its producer had ended, in words.
  std::vector<std::string> out_of_order(const Graph& graph) const;

 private:
  int32_t first_measured() const { return steps_ / 2; }

  const Machine& machine_;
  Arithmetic arithmetic_;
  int32_t steps_;
  bool follows_ = true;
  PlayedMachine playing_;
  VirtualCuda* runtime_ = nullptr;  // both live as long as the device that was made
  VirtualDevice* device_ = nullptr;
};

}  // namespace ballast::tests
