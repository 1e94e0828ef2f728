// Prediction beside measurement: one plan's step time, time by operation kind, lane use and memory
// on both clocks, as text and as JSON.
//
// Will not do: run anything (cli/verbs/verify.cpp).
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "backend/train/trainer.h"
#include "cli/text/prediction.h"
#include "sim/engine/predict.h"

namespace ballast {

// What one clock says.
struct ClockView {
  Duration step_time;
  std::vector<KindTime> kinds;
  std::vector<LaneUse> lanes;
  std::map<Place, Bytes> memory;  // places that hold anything
};

struct Verification {
  ClockView predicted;
  ClockView measured;
  std::vector<std::map<Place, Bytes>> memory_of_ranks;  // measured; of several, by rank
};
// `graph` is the one that ran, equal to the prediction's. Requires at least one step in `result`.
Verification verification_of(const Prediction& prediction, const Graph& graph,
                             const TrainResult& result);

// Signed, of the prediction: +10 where 110 was predicted and 100 measured.
double error_percent(double predicted, double measured);

std::string verification_text(const Graph& graph, const Verification& verification);

// The keys "predicted", "measured" and "error_percent" of design.md.
OrderedJson verification_json(const Graph& graph, const Verification& verification);

// The last recorded step as [lane, begin_us, end_us, group, label] lists, for drawing. group is
// forward, recompute, backward, adam, copy or other.
OrderedJson timeline_json(const Graph& graph, const Timeline& timeline);

}  // namespace ballast
