// `verify --history`: how far predictions were from what ran, one record after another; runs of
// `verify` and of `tune --measure` alike.
//
// Will not do: run or predict anything.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/text/prediction.h"
#include "profiles/store.h"

namespace ballast {

// Which records: those of all machines, models or plans where nothing is named.
struct HistoryFilter {
  std::optional<std::string> machine;
  std::optional<std::string> model;
};

// One record, read.
struct HistoryEntry {
  VerifyRecord record;
  Plan plan;
  bool tuned = false;  // a run of `tune --measure`
  // Signed, of the prediction: +10 where 110 was predicted and 100 measured.
  double error_percent() const;
};

// In time order. Throws Error where a record of the store cannot be read.
std::vector<HistoryEntry> history_of(const Store& store, const HistoryFilter& filter);

// [{"created_utc", "machine", "device", "model", "by", "predicted_step_time_s", "step_time_s",
// "error_percent", "plan"}]
OrderedJson history_json(const std::vector<HistoryEntry>& entries);
// A table, and the median absolute error of its first and of its second half.
std::string history_text(const std::vector<HistoryEntry>& entries);

}  // namespace ballast
