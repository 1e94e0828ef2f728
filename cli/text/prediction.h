// What `predict` says about one plan, as JSON and as text; `verify` and `report` use parts of it.
//
// Will not do: predict (sim/engine), or choose knobs (cli/run/completion.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/flags/inputs.h"
#include "sim/engine/predict.h"

namespace ballast {

using OrderedJson = nlohmann::ordered_json;

// "compute", or "2 compute" where several devices are simulated.
std::string lane_name(const Graph& graph, LaneId lane);
// "GPU memory", "CPU memory", "NVMe".
std::string memory_name(Place place);

// [{"kind", "seconds", "operations"}], longest first.
OrderedJson kinds_json(const std::vector<KindTime>& kinds);
OrderedJson lanes_json(const Graph& graph, const std::vector<LaneUse>& lanes);

// The keys of design.md. Rates and lanes are null where the plan does not fit.
OrderedJson prediction_json(const Case& of, const Prediction& prediction);

// Everything about one plan, for a terminal of 100 columns.
std::string prediction_text(const Case& of, const Prediction& prediction);
// "superoffload: 8 sequences of 2048 tokens as 4 x 2, bf16, ...": the knobs in one or two lines.
std::string plan_text(const Plan& plan);

// "recompute norm1 activation, offload qkv of 50 % of the layers"; "keep all".
std::string activations_text(const std::optional<ActivationPlan>& plan);

// One line a plan, for plans side by side.
std::string prediction_table(const std::vector<Case>& cases,
                             const std::vector<Prediction>& predictions);

OrderedJson or_null(const std::optional<double>& value);

}  // namespace ballast
