// What checkpoints take: the state of the optimizer in fp32, as often as the plan says. Training
// rests while each device copies its part into CPU memory, and its lanes, which drained for it,
// then fill anew; the copy is written to its NVMe beside the steps, which it slows where these use
// the same memory or, on this machine, the same cores.
//
// Will not do: add to a step's time (a graph is one step, and most write nothing), or know of disks
// that a machine's file does not describe.
#pragma once

#include <optional>

#include "sim/base/units.h"
#include "sim/engine/predict.h"
#include "sim/spec/machine.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

struct CheckpointCost {
  int64_t period_steps = 0;
  Bytes total;   // master weights and both moments, and a delayed update's gradients
  Bytes device;  // that one device writes: each part of the state is written once
  // At the rate of the device's NVMe, which is the least that it takes; empty where there is none.
  std::optional<Duration> time;
  std::optional<Duration> time_per_step;  // spread over the period
};

// Empty where the plan writes none.
std::optional<CheckpointCost> checkpoint_cost(const Model& model, const Plan& plan,
                                              const Machine& machine);

// What it takes where training goes on while a checkpoint is written (CheckFreq, FAST 2021).
struct BackgroundCheckpoint {
  Duration copy;                        // for which training rests
  Duration refill;                      // what the next step takes longer, from a standing start
  std::optional<Duration> write;        // beside the steps; empty where nothing tells of a disk
  std::optional<Duration> step_beside;  // how long a step is meanwhile
  // Share of the steps' time that checkpoints cost at the plan's period. Where the write is longer
  // than the period, training waits for the rest of it, which is counted.
  std::optional<double> overhead;
};

// `write`: how long one takes to write, if not as the machine's NVMe tells. Requires a period, and
// that the prediction is of this plan and fits.
BackgroundCheckpoint background_checkpoint(const CheckpointCost& cost, const Prediction& prediction,
                                           const Plan& plan, const Machine& machine,
                                           std::optional<Duration> write = {});

}  // namespace ballast
