// What `predict` says about one plan, as JSON and as text; `verify` and `report` use parts of it.
//
// Will not do: predict (sim/engine), or choose knobs (autotune/complete/complete.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/flags/inputs.h"
#include "cli/text/bottlenecks.h"
#include "sim/engine/interval.h"
#include "sim/engine/predict.h"
#include "sim/graph/core/capabilities.h"

namespace ballast {

using OrderedJson = nlohmann::ordered_json;

// "GPU memory", "CPU memory", "NVMe".

// [{"kind", "seconds", "operations"}], longest first.
OrderedJson kinds_json(const std::vector<KindTime>& kinds);
OrderedJson lanes_json(const Graph& graph, const std::vector<LaneUse>& lanes);

// A plan that was predicted, and how sure that is; no confidence where its stack was never held
// against anything.
struct Predicted {
  Setting setting;
  Prediction prediction;
  std::optional<Confidence> confidence;
  std::optional<Bottlenecks> bottlenecks{};  // as bottlenecks_of() has them
  std::string refusal{};  // of a list: why there is no prediction of this one; else empty
  std::vector<DeviceVerdict> runs_on{};  // as runs_on() has them
};
// `prediction` must be of these arguments.
Predicted judged(Setting setting, Prediction prediction, const Measurements& measurements,
                 AskLimits ask = AskLimits::kIfQuick);

// The keys of design.md. Rates and lanes are null where the plan does not fit. checkpoint_write:
// how long one is written, if not as the machine's NVMe tells.
OrderedJson prediction_json(const Predicted& predicted,
                            std::optional<Duration> checkpoint_write = {});

// Everything about one plan, for a terminal of 100 columns.
std::string prediction_text(const Predicted& predicted,
                            std::optional<Duration> checkpoint_write = {});
// "superoffload: 8 sequences of 2048 tokens as 4 x 2, bf16, ...": the knobs in one or two lines.
// `buckets`: of a rank, where they were counted.
std::string plan_text(const Plan& plan, std::optional<int64_t> buckets = std::nullopt);

// What a framework makes of a plan, in one line and in short: whether it fits, time and speed with
// their intervals.
std::string outcome_text(const Predicted& predicted);
OrderedJson outcome_json(const Predicted& predicted);

// One line a plan, for plans side by side.
std::string prediction_table(const std::vector<Predicted>& cases);

// What is to be known of it: where it departs from the model's configuration (sim/spec/caveats.h),
// and that memory is nearly full.
std::vector<std::string> notes_of(const Predicted& predicted);
// One line each: "note: ...".
std::string notes_text(const std::vector<std::string>& notes);

OrderedJson or_null(const std::optional<double>& value);

}  // namespace ballast
