// Measure: the closed loop of the tuner. The most promising plans are really run, what the profile
// got wrong about their operations is refitted, and all candidates are ranked anew.
//
// Next to run is the candidate with the least predicted step. Of those that are predicted to tie
// with it, it is the one that differs in most knobs from whatever ran: a run of a few steps tells
// no tied plans apart, but another knob shows other operations.
//
// What is refitted is how long operations take alone, by cost key, as a factor on what was timed
// (profiles/corrections). An operation of a step has company, which slows it, so a measured span
// says nothing by itself; but the simulated span of the same operation at the same place has the
// same company. Hence factor' = factor * measured / simulated, of several runs with their median
// ratio, and again until the spans agree. Operations that did not run, but are like some that did
// (the same cost group), take the factor of those: else what was never tried would look best.
//
// Will not do: run anything (the caller's function does), or read and write files.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "autotune/search/search.h"
#include "profiles/corrections.h"
#include "sim/base/units.h"
#include "sim/engine/predict.h"
#include "sim/graph/core/graph.h"
#include "sim/graph/report/timeline.h"
#include "sim/spec/machine.h"
#include "sim/spec/measurements.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

// Operations of one cost key within a step.
struct OperationSpan {
  Duration mean;      // of an operation's length, in the company of the others
  int64_t count = 0;  // operations a step
};
using OperationSpans = std::map<std::string, OperationSpan>;  // by cost_key

// Of the middle half of the recorded steps by period, so that they add up to the median step. What
// costs nothing is left out. Requires that the timeline is of this graph.
OperationSpans operation_spans(const Graph& graph, const Timeline& timeline);

// One plan, as it really ran.
struct PlanRun {
  Plan plan;                            // every knob has a value
  Duration predicted;                   // its step, by what was known before it ran
  Duration step_time;                   // above 0
  std::array<Bytes, kPlaces> memory{};  // in use, by Place; 0 where the device cannot tell
  OperationSpans operations;
};

// What is known of a machine's operations.
struct Knowledge {
  Measurements timed;  // as they were timed
  Corrections corrections;
};

struct Refit {
  Knowledge knowledge;  // the new one
  // What changed, ready for the store. Operations that ran, but had never been timed, are added to
  // the timings; their factor is 1.
  Measurements added;
  Corrections changed;
  // By how much simulated operations are off, as a share of the measured time of all of them.
  double misfit_before = 0;
  double misfit_after = 0;
};
struct RefitRequest {
  const Model& model;
  const Machine& machine;
  const Knowledge& knowledge;
  std::span<const PlanRun> runs;
};
// Requires that every run fits the machine.
Refit refit(const RefitRequest& request);

struct MeasureRequest {
  const Model& model;
  const Machine& machine;
  Knowledge knowledge;
  std::vector<Candidate> candidates;  // best first; of those that tie the simplest first
  int64_t plans = 1;                  // to have run in the end, `known` among them
  std::vector<PlanRun> known{};       // ran before, on this machine and for this question
  // Candidates whose predicted steps differ by less than this share tie.
  double tie_share = 0.01;
};

struct MeasureHooks {
  // Runs a plan; nothing where it was interrupted, which ends the loop. `predicted` of the result
  // is filled in. Errors pass through.
  std::function<std::optional<PlanRun>(const Plan& plan, const Prediction& prediction)> run;
  // After every refit that changed something; may be null.
  std::function<void(const Refit& refit)> refitted;
};

struct MeasuredPlan {
  PlanRun run;
  Duration predicted_after;                       // by all that was measured
  std::array<Bytes, kPlaces> predicted_memory{};  // arenas, by Place
  bool known = false;                             // it ran before
  // Signed shares of the measured step: +0.1 where 110 ms were predicted and 100 ms measured.
  double error_before() const { return run.predicted.seconds() / run.step_time.seconds() - 1; }
  double error_after() const { return predicted_after.seconds() / run.step_time.seconds() - 1; }
};

struct MeasureResult {
  std::vector<MeasuredPlan> measured;  // fastest first
  std::vector<Candidate> others;       // that did not run, by their refitted prediction
  Measurements measurements;           // refitted
  double misfit = 0;                   // of the last refit: misfit_after
  bool interrupted = false;
};
// Requires plans >= 1 and that all candidates and known plans fit the machine.
MeasureResult measure(MeasureRequest request, const MeasureHooks& hooks);

}  // namespace ballast
