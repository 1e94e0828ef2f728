#include "cli/text/history.h"

#include <cmath>
#include <fmt/format.h>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "cli/text/tables.h"
#include "cli/text/verification.h"
#include "cli/text/why_slower.h"
#include "profiles/json_depth.h"
#include "profiles/load.h"
#include "sim/base/median.h"

namespace ballast {
namespace {

// Halves of fewer records say nothing.
constexpr size_t kLeastToCompare = 4;

double median_error(std::span<const HistoryEntry> entries) {
  std::vector<double> errors;
  for (const HistoryEntry& entry : entries) errors.push_back(std::abs(entry.error_percent()));
  return median(std::move(errors));
}

const char* verb_of(const HistoryEntry& entry) { return entry.tuned ? "tune" : "verify"; }

}  // namespace

double HistoryEntry::error_percent() const {
  return ballast::error_percent(record.predicted_step.seconds(), record.measured_step.seconds());
}

std::vector<HistoryEntry> history_of(const Store& store, const HistoryFilter& filter) {
  std::vector<HistoryEntry> entries;
  for (VerifyRecord& record : store.verify_records()) {
    if (filter.machine && record.host.machine != *filter.machine) continue;
    if (record.measured_step.ps <= 0) continue;
    HistoryEntry entry;
    entry.plan = parse_plan(record.plan_json, store.path() + ", a verify record");
    if (filter.model && entry.plan.model != *filter.model) continue;
    check_depth(record.metrics_json, store.path() + ", a verify record");
    const OrderedJson metrics = OrderedJson::parse(record.metrics_json, nullptr, false);
    entry.tuned = metrics.is_object() && metrics.contains("tune");
    entry.record = std::move(record);
    entries.push_back(std::move(entry));
  }
  return entries;
}

OrderedJson history_json(const std::vector<HistoryEntry>& entries) {
  OrderedJson list = OrderedJson::array();
  for (const HistoryEntry& entry : entries) {
    const VerifyRecord& record = entry.record;
    list.push_back({{"created_utc", record.created_utc},
                    {"machine", record.host.machine},
                    {"device", record.host.device},
                    {"model", entry.plan.model},
                    {"by", verb_of(entry)},
                    {"predicted_step_time_s", record.predicted_step.seconds()},
                    {"step_time_s", record.measured_step.seconds()},
                    {"error_percent", entry.error_percent()},
                    {"plan", OrderedJson::parse(plan_json(entry.plan))}});
  }
  return list;
}

std::string history_text(const std::vector<HistoryEntry>& entries) {
  if (entries.empty()) return "nothing was verified yet\n";
  Table table({{"", true},
               {"when", true},
               {"model", true},
               {"by", true},
               {"predicted"},
               {"measured"},
               {"error"},
               {"plan", true}});
  std::map<std::string, const Plan*> first;  // by model: what the others are compared with
  for (size_t i = 0; i < entries.size(); ++i) {
    const HistoryEntry& entry = entries[i];
    const auto [known, is_new] = first.try_emplace(entry.plan.model, &entry.plan);
    const std::string knobs = is_new ? "the first" : differing_text(entry.plan, *known->second);
    table.add({std::to_string(i + 1), entry.record.created_utc, entry.plan.model, verb_of(entry),
               show(entry.record.predicted_step), show(entry.record.measured_step),
               show_signed_percent(entry.error_percent()), knobs.empty() ? "as the first" : knobs});
  }
  std::string text = table.text();
  if (entries.size() < kLeastToCompare) return text;
  const std::span<const HistoryEntry> all = entries;
  const size_t half = all.size() / 2;
  text += fmt::format("median error: {} of the first {}, {} of the last {}\n",
                      show_percent(median_error(all.first(half))), half,
                      show_percent(median_error(all.last(half))), half);
  return text;
}

}  // namespace ballast
