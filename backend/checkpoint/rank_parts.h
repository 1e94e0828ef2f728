// What of the state of a training one of its ranks keeps, by where it stands in the parameters of
// the whole model, and what of that it writes into a checkpoint: whatever several ranks keep alike
// is written by one of them, so that all ranks together write every value once.
//
// Will not do: ask other ranks, files (backend/train/checkpoint), or run while the executor does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "backend/checkpoint/element_runs.h"
#include "backend/train/parameter_state.h"
#include "backend/train/training_device.h"
#include "sim/graph/core/graph.h"

namespace ballast {

// Of one parameter of the whole model (for_parameters).
struct RankPart {
  // Elements of the parameter, and where this rank's part of it (ParameterSlices) has the first of
  // each run.
  struct Runs {
    ElementRuns whole;
    int64_t own = 0;
    int64_t own_stride = 0;
    bool operator==(const Runs&) const = default;
  };
  size_t module = 0;
  const Parameter* parameter = nullptr;
  std::vector<Runs> runs;
  int64_t count = 0;
};

// What this rank writes, in the order of parameters; without those of which it writes nothing. The
// parts refer to the graph and the device.
std::vector<RankPart> parts_to_write(const Graph& graph, const TrainingDevice& device);
// Values [begin, begin + count) of those that the part has, one after another.
RankPart piece_of(const RankPart& part, int64_t begin, int64_t count);
// Every element of a parameter that this rank keeps, in each of the modules that hold it.
std::vector<ElementRuns> kept_elements(const Graph& graph, const TrainingDevice& device,
                                       size_t module, const Parameter& parameter);

// Fills `values`, as many as the part has, in the order of its runs. `read` fills what this rank
// keeps of elements of its part of the parameter from `begin` on.
void read_part(const RankPart& part,
               const std::function<void(int64_t begin, std::span<float> values)>& read,
               std::span<float> values);

}  // namespace ballast
