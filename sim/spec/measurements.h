// Measurements: timed operations of one machine, by cost key; read from the store, used by cost.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "sim/base/units.h"

namespace ballast {

struct Measurement {
  Duration median;
  Duration deviation;  // median absolute deviation
  // What an operation that was not measured is interpolated from: measurements of its group, by
  // size. Set by measurement_of (sim/engine/cost.h); an empty group is not interpolated.
  std::string group;
  Flops flops;
  Bytes bytes;
};

// Keyed by cost_key(op) (sim/graph/core/graph.h).
using Measurements = std::map<std::string, Measurement>;

}  // namespace ballast
