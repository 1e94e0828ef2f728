// Runs of operations on the compute stream that a GPU launches as one recorded graph: what has the
// same arguments every few steps, and nothing else of the stream comes between.
//
// What other lanes follow, and what follows them, is inside as nodes that record events and wait
// for them. A graph is handed over at once, so whatever its operations follow must be handed over
// before its first. That is hardly later than without it where what is followed comes before the
// first operation in the program, or is of an earlier step, and needs no work of the CPU's lanes
// that the first does not. Will not do: record or launch (device_cuda), or note events
// (cuda_lanes).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/cuda_lanes.h"
#include "backend/cuda/cuda_runtime.h"
#include "sim/graph/core/graph.h"

namespace ballast {

struct CudaSegment {
  std::vector<OpId> ops;  // in program order, two at least
};

// Of the step's program. Requires link(graph).
// `steps`: so many graphs are recorded of each, one for every so many steps; tensors whose copies
// take turns have the same addresses in each where their count divides it. `is_apart`: what is left
// out besides.
std::vector<CudaSegment> cuda_segments(const Graph& graph, int32_t steps,
                                       const std::function<bool(const Op& op)>& is_apart = {});

// The runs of a training: plain in its first steps, then recorded once for each of the steps whose
// events take turns, and launched as one from then on.
class CudaSegments {
 public:
  using Enqueue = std::function<void(OpId id, int32_t step, CudaStream stream)>;

  // All must outlive this but `segments`, which are those of cuda_segments for kEventSteps.
  CudaSegments(const Graph& graph, CudaRuntime& runtime, CudaLanes& lanes,
               std::vector<CudaSegment> segments, Enqueue enqueue);

  // The rest of the run that the operation begins; nothing where it begins none.
  std::span<const OpId> behind(OpId id) const;
  // Whether the operation was or is part of a graph, which the first of its run launches. Of each
  // run in its order; false: whoever asks enqueues it.
  bool launch(OpId id, int32_t step);
  // Whether it is inside a graph that was launched, which waits for what it follows.
  bool waits_by_itself(OpId id) const;
  // Destroys the graphs, of which none runs any more.
  void close();

 private:
  struct Recorded {
    CudaSegment segment;
    CudaLanes::Run run;  // its operations
    std::string name;    // for profilers and messages
    int32_t first_step = -1;
    bool is_launched = false;  // what its first operation did last
    std::array<CudaGraph, CudaLanes::kEventSteps> graphs;
  };

  const Recorded* run_of(OpId id) const;
  CudaGraph record(const CudaLanes::Run& run, int32_t step, CudaStream stream);

  CudaRuntime& runtime_;
  CudaLanes& lanes_;
  Enqueue enqueue_;
  std::vector<Recorded> recorded_;
  std::vector<int32_t> recorded_of_;  // by operation of the step: index, or -1
};

}  // namespace ballast
