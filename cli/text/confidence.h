// Whose habits a prediction assumes, and how sure it is: the same words in every verb.
//
// Will not do: estimate either (sim/engine/interval.h, cli/flags/inputs.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "sim/engine/interval.h"

namespace ballast {

// "as the typical framework (--stack to name another; --stack ballast for Ballast's own backend)"
std::string stack_text(const std::string& stack);

// Between these a plan neither fits nor does not.
inline constexpr double kSureNotToFit = 0.1;
inline constexpr double kSureToFit = 0.9;
// "fits", "does not fit", "close: fits with a chance of 63 %" or "close: does not fit, but has a
// chance of 38 %"; without a confidence what the prediction says.
std::string verdict_text(bool fits, const std::optional<Confidence>& confidence);

bool is_close(const std::optional<Confidence>& confidence);

// "1.20 to 1.50 s", of "1.20 s" and "1.50 s".
std::string between(const std::string& low, const std::string& high);
// "(80 %: 1.20 to 1.50 s)"; empty where nothing is known.
std::string interval_text(const std::optional<DurationInterval>& interval);
std::string interval_text(const std::optional<BytesInterval>& interval);
// Of so many tokens a step.
std::string tokens_interval_text(const std::optional<DurationInterval>& interval, int64_t tokens);

// {"stack", "step_time_s", "tokens_per_s", "gpu_peak_gb", "fits_probability"}: intervals as [low,
// high], GB of 10^9 bytes; null what is not known.
nlohmann::ordered_json confidence_json(const std::string& stack,
                                       const std::optional<Confidence>& confidence, int64_t tokens);

}  // namespace ballast
