#include "cli/text/confidence.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/text/tables.h"
#include "sim/spec/stack.h"

namespace ballast {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string in_words(const std::string& interval) { return "(80 %: " + interval + ")"; }

// The longer step has the fewer tokens a second.
std::pair<double, double> tokens_of(const DurationInterval& interval, int64_t tokens) {
  const auto count = static_cast<double>(tokens);
  return {count / interval.high.seconds(), count / interval.low.seconds()};
}

}  // namespace

std::string stack_text(const std::string& stack) {
  const char* const others = "(--stack to name another; --stack ballast for Ballast's own backend)";
  if (stack == kTypicalStack) return fmt::format("as the typical framework {}", others);
  if (stack == kBallastStack) return "as Ballast's own backend (--stack to name another)";
  if (stack == kIdealStack) {
    return fmt::format("as the roofline, which no framework reaches {}", others);
  }
  return fmt::format("as {} {}", stack, others);
}

bool is_close(const std::optional<Confidence>& confidence) {
  return confidence && confidence->fits >= kSureNotToFit && confidence->fits <= kSureToFit;
}

std::string verdict_text(bool fits, const std::optional<Confidence>& confidence) {
  const char* const said = fits ? "fits" : "does not fit";
  if (!confidence) return said;
  if (!is_close(confidence)) return confidence->fits > kSureToFit ? "fits" : "does not fit";
  return fmt::format("close: {} a chance of {:.0f} %", fits ? "fits with" : "does not fit, but has",
                     100 * confidence->fits);
}

std::string between(const std::string& low, const std::string& high) {
  const size_t unit = low.rfind(' ');
  const bool same = unit != std::string::npos && high.ends_with(low.substr(unit));
  return fmt::format("{} to {}", same ? low.substr(0, unit) : low, high);
}

std::string interval_text(const std::optional<DurationInterval>& interval) {
  return interval ? in_words(between(show(interval->low), show(interval->high))) : "";
}

std::string interval_text(const std::optional<BytesInterval>& interval) {
  return interval ? in_words(between(show(interval->low), show(interval->high))) : "";
}

std::string tokens_interval_text(const std::optional<DurationInterval>& interval, int64_t tokens) {
  if (!interval) return "";
  const auto [low, high] = tokens_of(*interval, tokens);
  return in_words(between(show_count(low), show_count(high)));
}

OrderedJson confidence_json(const std::string& stack, const std::optional<Confidence>& confidence,
                            int64_t tokens) {
  OrderedJson json = {{"stack", stack},
                      {"step_time_s", nullptr},
                      {"tokens_per_s", nullptr},
                      {"gpu_peak_gb", nullptr},
                      {"fits_probability", nullptr}};
  if (!confidence) return json;
  json["fits_probability"] = confidence->fits;
  if (const auto& time = confidence->step_time) {
    const auto [low, high] = tokens_of(*time, tokens);
    json["step_time_s"] = {time->low.seconds(), time->high.seconds()};
    json["tokens_per_s"] = {low, high};
  }
  if (const auto& peak = confidence->gpu_peak) {
    json["gpu_peak_gb"] = {static_cast<double>(peak->low.count) * 1e-9,
                           static_cast<double>(peak->high.count) * 1e-9};
  }
  return json;
}

}  // namespace ballast
