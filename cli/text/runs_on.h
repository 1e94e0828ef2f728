// Whether this build can run a plan, and on which device: one line for people, and "runs_on" of
// every plan in JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/graph/core/capabilities.h"
#include "sim/spec/stack.h"

namespace ballast {

// Of the plan as `stack` runs it. Only Ballast is run: others are predicted.
std::vector<DeviceVerdict> runs_on(const Model& model, const Plan& plan, const Stack& stack);

// [{"device": "host", "runs": true, "missing": null, "knob": null, "remedy": null}, ...]
nlohmann::ordered_json runs_on_json(const std::vector<DeviceVerdict>& verdicts);

// "this build runs it on host; not on cuda: WHAT (KNOB)".
std::string runs_on_text(const std::vector<DeviceVerdict>& verdicts);
// For a column: "host", or "no: KNOB" by the first device.
std::string runs_on_cell(const std::vector<DeviceVerdict>& verdicts);

}  // namespace ballast
