// Fair rates of operations that run at the same time, for whoever keeps a clock of their own (the
// paced device, another simulator): fair_share behind one function.
//
// Will not do: know when an operation runs (the virtual clock has sim/engine/sharing/sharing.h).
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "sim/graph/core/op_cost.h"

namespace ballast {

// A function that writes the rate, 0 to 1 of full speed, of every running operation, given what
// each demands. It owns a copy of the capacities; one call at a time. Requires capacities above 0.
std::function<void(std::span<const std::span<const Demand>> running, std::span<double> rates)>
fair_rates(std::span<const Capacity> capacities);

}  // namespace ballast
