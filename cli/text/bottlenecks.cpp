#include "cli/text/bottlenecks.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/text/tables.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShown = 5;
constexpr double kGainShown = 0.0005;        // of a step: less rounds to 0.0 %
constexpr size_t kManyOperations = 150'000;  // of kLimitsHelp
constexpr const char* kIndent = "                ";

struct Named {
  std::string name;
  double gain = 0;
};

std::string gain_text(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::vector<Named> rates_of(const Bottlenecks& found) {
  std::vector<Named> list;
  for (const RateGain& one : found.rates) list.push_back({one.rate.name, one.gain});
  return list;
}

std::vector<Named> lanes_of(const Bottlenecks& found) {
  std::vector<Named> list;
  for (const LaneGain& one : found.lanes) list.push_back({one.name, one.gain});
  std::stable_sort(list.begin(), list.end(),
                   [](const Named& a, const Named& b) { return a.gain > b.gain; });
  return list;
}

// "compute 7.9 %, cpu 0.3 %", largest first.
std::string gains_text(const std::vector<Named>& list, const char* none) {
  std::vector<std::string> parts;
  for (const Named& one : list) {
    if (parts.size() == kShown || one.gain < kGainShown) break;
    parts.push_back(fmt::format("{} {}", one.name, gain_text(one.gain)));
  }
  return parts.empty() ? none : fmt::format("{}", fmt::join(parts, ", "));
}

// "a and b", "a, b and c".
std::string names_text(const std::vector<std::string>& names) {
  const std::vector<std::string> first(names.begin(), names.end() - 1);
  return fmt::format("{} and {}", fmt::join(first, ", "), names.back());
}

std::string tie_text(const Tie& tie, const char* what) {
  return fmt::format("no single {} limits: {} tie, together {}", what, names_text(tie.names),
                     gain_text(tie.gain));
}

Json tie_json(const std::optional<Tie>& tie) {
  if (!tie) return nullptr;
  return {{"names", tie->names}, {"gain", tie->gain}};
}

}  // namespace

std::optional<Bottlenecks> bottlenecks_of(const Setting& setting, const Prediction& prediction,
                                          const Measurements& measurements, AskLimits ask) {
  if (!prediction.fits || ask == AskLimits::kNever) return std::nullopt;
  const bool quick = prediction.graph.step.ops.size() < kManyOperations;
  if (!quick && ask == AskLimits::kIfQuick) return std::nullopt;
  return bottlenecks({prediction, setting.plan, setting.machine, setting.stack, &measurements});
}

Json bottlenecks_json(const std::optional<Bottlenecks>& found) {
  if (!found) return nullptr;
  Json rates = Json::array();
  for (const RateGain& one : found->rates) {
    rates.push_back({{"key", one.rate.key},
                     {"name", one.rate.name},
                     {"value", one.rate.value},
                     {"unit", one.rate.unit},
                     {"gain", one.gain}});
  }
  Json lanes = Json::array();
  for (const LaneGain& one : found->lanes) {
    lanes.push_back({{"lane", one.name}, {"idle_share", one.idle}, {"gain", one.gain}});
  }
  return {{"faster_percent", 10},
          {"rates", rates},
          {"all_rates_gain", found->all_rates},
          {"rate_tie", tie_json(found->rate_tie)},
          {"lanes", lanes},
          {"all_lanes_gain", found->all_lanes},
          {"lane_tie", tie_json(found->lane_tie)}};
}

std::string bottlenecks_text(const std::optional<Bottlenecks>& asked) {
  if (!asked) {
    return fmt::format("10 % faster     not asked of so many operations; {} asks\n", kLimitsFlag);
  }
  const Bottlenecks& found = *asked;
  std::string text = fmt::format("10 % faster     gives: {}; all rates together {}\n",
                                 gains_text(rates_of(found), "nothing by any rate alone"),
                                 gain_text(found.all_rates));
  text +=
      fmt::format("{}of lanes: {}; all lanes together {}\n", kIndent,
                  gains_text(lanes_of(found), "nothing by any alone"), gain_text(found.all_lanes));
  if (found.rate_tie) text += kIndent + tie_text(*found.rate_tie, "rate") + "\n";
  if (found.lane_tie) text += kIndent + tie_text(*found.lane_tie, "lane") + "\n";
  return text;
}

std::string limit_text(const Bottlenecks& found) {
  if (found.rate_tie) return tie_text(*found.rate_tie, "rate");
  if (found.lane_tie) return tie_text(*found.lane_tie, "lane");
  if (found.rates.empty() || found.rates.front().gain < kGainShown) return "no rate limits it";
  const RateGain& most = found.rates.front();
  return fmt::format("{} limits it most (10 % faster gives {})", most.rate.name,
                     gain_text(most.gain));
}

}  // namespace ballast
