// Figures of a machine: its rates and memories, each alone, and the machine with one of them
// changed.
//
// Will not do: predict what that changes (sim/engine/bottlenecks.h), or search the plan for it
// (autotune/studies/sensitivity.h).
#pragma once

#include <string>
#include <vector>

#include "sim/spec/dtype.h"
#include "sim/spec/machine.h"
#include "sim/spec/plan.h"

namespace ballast {

// A number of a machine. The key is that of --set where there is one for all that is multiplied.
struct MachineFigure {
  std::string key;   // "machine.link.host_to_device_gb_per_s"
  std::string name;  // "link to the GPU"
  std::string unit;  // "GB/s"
  double value = 0;
};
// Rates of matrix products (of this type, attention with them), bandwidths and memories of GPU and
// CPU, Adam of the CPU, the link to the CPU, disks, the interconnect of a node, the network: what
// this machine has.
std::vector<MachineFigure> machine_figures(const Machine& machine, DType dtype);
// The rates alone, of all that a step of this plan may go through: without memories, with products
// in 8 bits where it has any, vector arithmetic, and casts and norms of the CPU.
std::vector<MachineFigure> machine_rates(const Machine& machine, const Plan& plan);
// Curves are multiplied at every size. Requires a key of one of these lists and factor > 0.
Machine with_figure(const Machine& machine, const MachineFigure& figure, double factor);

}  // namespace ballast
