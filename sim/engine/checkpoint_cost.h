// What writing checkpoints takes beside the steps: the state of the optimizer in fp32, as often as
// the plan says, to the NVMe of each device. Training rests meanwhile.
//
// Will not do: add to a step's time (a graph is one step, and most write nothing), or know of disks
// that a machine's file does not describe.
#pragma once

#include <optional>

#include "sim/base/units.h"
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

}  // namespace ballast
