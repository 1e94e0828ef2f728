// What limits a step, in words and as JSON: what each rate and each lane gives where it is 10 %
// faster. `predict`, `report`, `verify` and `tune` say it from here.
//
// Will not do: find that out (sim/engine/bottlenecks.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "autotune/complete/setting.h"
#include "sim/engine/bottlenecks.h"
#include "sim/spec/measurements.h"

namespace ballast {

// Nothing where the plan does not fit. `prediction` must be of this setting.
std::optional<Bottlenecks> bottlenecks_of(const Setting& of, const Prediction& prediction,
                                          const Measurements& measurements);

// {"faster_percent", "rates", "all_rates_gain", "rate_tie", "lanes", "all_lanes_gain", "lane_tie"}:
// gains as shares of the step time; null where there are none.
nlohmann::ordered_json bottlenecks_json(const std::optional<Bottlenecks>& found);

// Two or three lines under the label "10 % faster".
std::string bottlenecks_text(const Bottlenecks& found);
// "Adam on the CPU limits it (10 % faster gives 6.1 %)"; where nothing does alone, that.
std::string limit_text(const Bottlenecks& found);

}  // namespace ballast
