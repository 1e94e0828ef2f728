// The whole prediction: will this plan fit, how long is a step, what decides its length, and what
// fills the memory. Everything that `ballast predict` prints.
//
// Will not do: choose knobs (autotune), read files (profiles), or print (cli).
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/graph/core/graph.h"
#include "sim/graph/core/op_cost.h"
#include "sim/graph/report/memory.h"
#include "sim/graph/report/timeline.h"
#include "sim/spec/machine.h"
#include "sim/spec/measurements.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"
#include "sim/spec/stack.h"

namespace ballast {

class CostModel;

inline constexpr int kProvenances = 3;

// Of a step of many micro-batches, which is not simulated whole (sim/engine/repetition.h).
struct Repetition {
  int64_t simulated = 0;      // micro-batches of Prediction::graph and its timeline
  int64_t all = 0;            // those of the step
  int64_t micro_batches = 0;  // of a period
  Duration period;
  // The first operations of three micro-batches that are a period apart; none where it is a mean.
  std::vector<OpId> apart;

  // The time of the step by those of the one simulated and of the one that is a period shorter.
  Duration lengthen(Duration shorter, Duration longer) const;
};

struct Prediction {
  // An infeasible plan is not simulated: everything below `peaks` is then zero or empty.
  bool fits = false;
  std::string reason;  // why it does not fit, with numbers and the nearest remedy; else empty
  std::vector<PlacePeak> peaks;
  Bytes gpu_peak;  // what a device's allocator would report: the tensors' peak and its slack

  Duration step_time;
  bool settled = false;  // else the period had not settled and step_time is a mean
  double tokens_per_s = 0;
  double tokens_per_s_per_device = 0;
  FlopRate model_rate;     // per device: model FLOPs, without recompute, over step_time
  FlopRate hardware_rate;  // per device: FLOPs of all operations of the GPU, with recompute
  // model_rate over the GPU's nominal dense 16-bit peak, as published MFUs are counted: also where
  // products are in 8 bits, so that it may then be above 1. Over the machine's best rate of the
  // plan's products where it names no nominal peak.
  double mfu = 0;
  // The same over the best rate of the plan's products that was measured on such a GPU, where the
  // machine names that beside the nominal peak.
  struct OfMeasured {
    double mfu = 0;
    FlopRate peak;
  };
  std::optional<OfMeasured> of_measured;
  Flops gpu_work;  // of all operations on the GPUs that are simulated, in a step
  std::vector<LaneUse> lanes;
  std::vector<KindTime> kinds;
  LongestPath longest_path;
  // Share of the busy time of the compute lanes by where their durations came from; sums to 1.
  std::array<double, kProvenances> provenance{};
  // Extra time of a step that is rolled back: the repair, and the operations before the commit
  // once more. Empty where nothing speculates.
  std::optional<Duration> rollback_time;

  // Where these are of a shorter step than the plan's. What is above is of the plan's step, but for
  // the chain of the longest path.
  std::optional<Repetition> repetition;
  std::shared_ptr<const Prediction> shorter;  // a period less; null where the step is simulated

  Graph graph;
  CostTable costs;  // of graph.step
  Timeline timeline;
};

// Requires check(model), check(machine) and check(plan, model) to pass and every knob of the plan
// to have a value. `measurements` may be null. Throws Error where the machine lacks a number that
// the plan needs.
Prediction predict(const Model& model, const Plan& plan, const Machine& machine,
                   const Measurements* measurements);
// The same as another framework would run the plan; above it is Ballast itself. Of a long step that
// repeats itself a shorter one is simulated (Prediction::repetition), but where the machine is one
// that runs it itself.
Prediction predict(const Model& model, const Plan& plan, const Machine& machine, const Stack& stack,
                   const Measurements* measurements);

// The same for a graph that is built already, which is moved into the result.
Prediction predict(Graph graph, const Model& model, const Plan& plan, const Machine& machine,
                   const Measurements* measurements);
Prediction predict(Graph graph, const Model& model, const Plan& plan, const Machine& machine,
                   const Stack& stack, const Measurements* measurements);

// The memory half of a prediction, which is all that a question about what fits needs: `fits`,
// `reason`, `peaks` and the sums of memory.
Prediction predict_memory(Graph graph, const Plan& plan, const Machine& machine,
                          const Stack& stack);

// The other half, without the rates: `fits` is taken for granted.
Prediction predict_time(Graph graph, const Plan& plan, const CostModel& costs);

// What the operations of graph.step take, blocks timed from a standing start.
CostTable costs_of(const Graph& graph, const CostModel& costs);
// Of the graph of a prediction with other costs.
CostTable costs_of(const Prediction& prediction, const CostModel& costs);

// How long a step is, of what one costs that has the graph of a prediction: `costs_of` is asked of
// that prediction and, where it repeats and does not do so evenly with these costs, of the shorter
// one.
Duration step_time_of(const Prediction& prediction, const Plan& plan,
                      const std::function<CostTable(const Prediction&)>& costs_of);
Duration step_time_of(const Prediction& prediction, const Plan& plan, const CostModel& costs);

// The step time alone, of a linked graph: what a search asks for thousands of times.
Duration step_time_of(const Graph& graph, const Plan& plan, const CostModel& costs);
Duration step_time_of(const Graph& graph, const Plan& plan, const CostTable& costs);

// Bytes of a memory that tensors may take: what the machine has less what is reserved; none of the
// NVMe that it does not describe.
Bytes usable(const Machine& machine, Place place);
// The memory that a machine has there: of a GPU or of its CPU, which `place` is one of.
Sourced<Bytes>& memory_at(Machine& machine, Place place);

// A memory that is overfilled.
struct Shortfall {
  Place place = Place::kHbm;
  Bytes needed;
  Bytes usable;
  Bytes lacking() const { return needed - usable; }
};
// Every memory that these peaks overfill, in their order; none where they fit. Whatever says how
// much a plan lacks says this.
std::vector<Shortfall> shortfalls(const std::vector<PlacePeak>& peaks, const Machine& machine);
// "241.56 GiB too much".
std::string lacking_text(const Shortfall& shortfall);
std::string memory_name(Place place);  // "GPU memory"

// What may come where a plan that fits fills its GPU's memory so far that published runs which were
// predicted to fill as much were at times far slower than predicted (docs/validation.md): in one
// line, of frameworks whose memory an allocator manages.
std::optional<std::string> nearly_full_note(const Prediction& prediction, const Machine& machine,
                                            const Stack& stack);

// Why these peaks do not fit the machine, in one sentence with the nearest remedy; empty if they
// do.
std::string reason_not_to_fit(const std::vector<PlacePeak>& peaks, const Plan& plan,
                              const Machine& machine);

}  // namespace ballast
