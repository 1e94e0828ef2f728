// What limits a step, in words and as JSON: what each rate and each lane gives where it is 10 %
// faster. `predict`, `report`, `verify` and `tune` say it from here.
//
// Will not do: find that out (sim/engine/bottlenecks.h).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "autotune/complete/setting.h"
#include "sim/engine/bottlenecks.h"
#include "sim/spec/measurements.h"

namespace ballast {

// Whether to ask what limits a step whose graph is so large that the answer takes seconds.
enum class AskLimits : uint8_t { kNever, kIfQuick, kAlways };
inline constexpr const char* kLimitsFlag = "--bottlenecks";
inline constexpr const char* kLimitsHelp =
    "Ask what 10 % more of each rate gives also of graphs of 150,000 operations and more, which "
    "takes seconds";

// Nothing where the plan does not fit, or where it was not asked. `prediction` must be of this
// setting.
std::optional<Bottlenecks> bottlenecks_of(const Setting& setting, const Prediction& prediction,
                                          const Measurements& measurements, AskLimits ask);

// {"faster_percent", "rates", "all_rates_gain", "rate_tie", "lanes", "all_lanes_gain", "lane_tie"}:
// gains as shares of the step time; null where there are none.
nlohmann::ordered_json bottlenecks_json(const std::optional<Bottlenecks>& found);

// Two to four lines under the label "10 % faster"; where nothing was asked, how to.
std::string bottlenecks_text(const std::optional<Bottlenecks>& found);
// "Adam on the CPU limits it (10 % faster gives 6.1 %)"; where nothing does alone, that.
std::string limit_text(const Bottlenecks& found);

}  // namespace ballast
