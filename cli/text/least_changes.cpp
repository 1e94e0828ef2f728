#include "cli/text/least_changes.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/text/tables.h"

namespace ballast {
namespace {

// How a limit is told to people, and how `predict` is asked about another value of it.
struct LimitWords {
  const char* name;
  const char* unit;
  std::string none;  // of a value that would fit
  std::string flags;
};

LimitWords words_of(const LeastChange& change, int64_t global_batch) {
  const std::string no_memory = fmt::format("{} times as much is not enough", kMostTimesMemory);
  const auto value = static_cast<int64_t>(change.fits.value_or(change.does_not_fit));
  switch (change.limit) {
    case Limit::kGpuMemory:
      return {"GPU memory", "GB", no_memory, fmt::format("--set machine.gpu.memory_gb={}", value)};
    case Limit::kCpuMemory:
      return {"CPU memory", "GB", no_memory, fmt::format("--set machine.cpu.memory_gb={}", value)};
    case Limit::kDevices:
      return {"devices", "GPUs", "no number is enough",
              fmt::format("--devices {} --global-batch {}", value, global_batch)};
    case Limit::kSequence:
      return {"sequence", "tokens", "none is short enough",
              fmt::format("--sequence-length {}", value)};
    case Limit::kBatch:
      return {"global batch", "sequences", "none is small enough",
              fmt::format("--global-batch {}", value)};
    case Limit::kMicroBatch:
      return {"micro-batch", "sequences", "none is small enough",
              fmt::format("--micro-batch {}", value)};
  }
  return {};
}

// "102.6", "8,192".
std::string show_value(double value) {
  const bool whole = value == static_cast<double>(static_cast<int64_t>(value));
  return whole && value < 1000 ? fmt::format("{:.0f}", value) : show_count(value);
}

}  // namespace

std::string limit_text(Limit limit, double value) {
  const LimitWords words = words_of({limit, value, value, value}, 1);
  return fmt::format("{} of {} {}", words.name, show_value(value), words.unit);
}

std::string least_changes_text(const std::vector<LeastChange>& changes, int64_t global_batch) {
  if (changes.empty()) return "";
  Table table({{"the least that fits", true}, {"now"}, {"does not"}, {"fits"}, {"", true}});
  for (const LeastChange& change : changes) {
    const LimitWords words = words_of(change, global_batch);
    const std::string tried = show_value(change.does_not_fit);
    std::vector<std::string> cells = {fmt::format("{}, {}", words.name, words.unit),
                                      show_value(change.now), tried};
    if (change.fits) {
      cells.insert(cells.end(), {show_value(*change.fits), words.flags});
    } else {
      cells.insert(cells.end(), {"-", words.none});
    }
    table.add(std::move(cells));
  }
  return table.text();
}

nlohmann::ordered_json least_changes_json(const std::vector<LeastChange>& changes) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const LeastChange& change : changes) {
    nlohmann::ordered_json one = {{"limit", to_string(change.limit)},
                                  {"unit", words_of(change, 0).unit},
                                  {"now", change.now},
                                  {"fits", nullptr},
                                  {"does_not_fit", change.does_not_fit}};
    if (change.fits) one["fits"] = *change.fits;
    list.push_back(std::move(one));
  }
  return list;
}

}  // namespace ballast
