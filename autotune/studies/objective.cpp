#include "autotune/studies/objective.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/base/error.h"

namespace ballast {
namespace {

constexpr double kSecondsADay = 86'400;
constexpr double kSecondsAnHour = 3'600;
constexpr double kMillion = 1e6;
constexpr double kMemoryResolution = 0.01;

struct ObjectiveText {
  std::string_view name;
  std::string_view unit;
};
constexpr std::array<ObjectiveText, kObjectives> kTexts = {{
    {"step-time", "s"},
    {"tokens-per-device", "tokens/s"},
    {"cost-per-token", "price of 1e6 tokens"},
    {"devices-for-deadline", "devices"},
    {"longest-sequence", "tokens"},
    {"largest-model", "parameters"},
}};

bool is_better_high(Objective objective) { return objective == Objective::kTokensPerDevice; }

// Bisection over sizes, each asked once.
class SizeWalk {
 public:
  SizeWalk(const SizeSearch& sizes, const Ask& ask) : sizes_(sizes), ask_(ask) {}

  LargestSize run() {
    int64_t low = 0;
    int64_t high = 1;
    while (high <= sizes_.most && fits(high)) {
      low = high;
      high = high == sizes_.most ? high + 1 : std::min(2 * high, sizes_.most);
    }
    while (high - low > 1 && !interrupted_) {
      const int64_t middle = low + (high - low) / 2;
      (fits(middle) ? low : high) = middle;
    }
    result_.size = low;
    result_.next = std::min(high, low + 1);
    if (result_.next > sizes_.most) result_.next = 0;
    if (result_.next == 0) result_.next_stop = SearchStop::kNone;
    if (interrupted_ && result_.next > 0) result_.next_stop = SearchStop::kInterrupt;
    if (result_.next_stop != SearchStop::kNone) result_.next_reasons.clear();
    if (low > 0) find_fastest(low);
    return std::move(result_);
  }

 private:
  // Whether a plan of this size was found; if none was, whether there is none is in next_stop.
  bool fits(int64_t size) {
    if (interrupted_) return false;
    std::optional<SearchQuestion> question = sizes_.question(size);
    if (!question) {
      result_.next_reasons.clear();
      result_.next_stop = SearchStop::kNone;
      return false;
    }
    question->tolerance = kAnyPlan;
    std::optional<SearchResult> found = ask(*question);
    if (!found) return false;
    if (found->best) {
      fallback_ = std::move(found);
      return true;
    }
    result_.next_reasons = found->reasons;
    result_.next_stop = found->stop;
    return false;
  }

  std::optional<SearchResult> ask(const SearchQuestion& question) {
    ++result_.searches;
    std::optional<SearchResult> found = ask_(question);
    interrupted_ = !found || found->stop == SearchStop::kInterrupt;
    return found;
  }

  // Where that is stopped before it has a plan, the plan that showed that the size fits.
  void find_fastest(int64_t size) {
    SearchStop stop = SearchStop::kInterrupt;
    if (!interrupted_) {
      result_.found = ask(*sizes_.question(size));
      if (result_.found) stop = result_.found->stop;
    }
    if (result_.found && result_.found->best) return;
    result_.found = std::move(fallback_);
    result_.found->stop = stop;
    result_.found->proven_within.reset();
  }

  const SizeSearch& sizes_;
  const Ask& ask_;
  std::optional<SearchResult> fallback_;  // of the largest size that fits
  bool interrupted_ = false;
  LargestSize result_;
};

Bytes reserved_of(const Machine& machine, Place place) {
  return place == Place::kHbm ? machine.gpu.reserved.value : machine.cpu.reserved.value;
}

}  // namespace

std::string_view to_string(Objective value) { return kTexts[static_cast<size_t>(value)].name; }
std::string_view unit_of(Objective value) { return kTexts[static_cast<size_t>(value)].unit; }

std::vector<std::string> objective_names() {
  std::vector<std::string> names;
  for (const ObjectiveText& text : kTexts) names.emplace_back(text.name);
  return names;
}

Objective parse_objective(std::string_view name) {
  for (size_t i = 0; i < kTexts.size(); ++i) {
    if (kTexts[i].name == name) return static_cast<Objective>(i);
  }
  throw Error(fmt::format("--objective '{}'", name), "is no objective",
              fmt::format("name one of {}", fmt::join(objective_names(), ", ")));
}

Economy economy_of(const Candidate& candidate, const DeviceRates& rates) {
  const auto devices = static_cast<double>(candidate.plan.devices);
  Economy economy;
  economy.tokens_per_s = candidate.tokens_per_s;
  economy.tokens_per_s_per_device = candidate.tokens_per_s / devices;
  const double device_seconds = devices / candidate.tokens_per_s;  // a token
  if (rates.price_per_hour) {
    economy.cost_per_million_tokens =
        *rates.price_per_hour / kSecondsAnHour * device_seconds * kMillion;
  }
  if (rates.watts) economy.joules_per_token = *rates.watts * device_seconds;
  return economy;
}

double days_of(const Job& job, const Candidate& candidate) {
  return job.tokens / candidate.tokens_per_s / kSecondsADay;
}

double value_of(const Candidate& candidate, const ObjectiveRequest& request) {
  switch (request.objective) {
    case Objective::kTokensPerDevice:
      return economy_of(candidate, request.rates).tokens_per_s_per_device;
    case Objective::kCostPerToken:
      return economy_of(candidate, request.rates).cost_per_million_tokens.value();
    case Objective::kDevicesForDeadline:
      return static_cast<double>(candidate.plan.devices);
    case Objective::kStepTime:
      return candidate.step_time.seconds();
    case Objective::kLongestSequence:
    case Objective::kLargestModel:
      break;
  }
  CHECK(false);
}

bool is_allowed(const Candidate& candidate, const ObjectiveRequest& request) {
  const bool meets_deadline = request.objective != Objective::kDevicesForDeadline ||
                              days_of(*request.job, candidate) <= request.job->days;
  const bool saves_energy =
      !request.most_joules_per_token ||
      economy_of(candidate, request.rates).joules_per_token <= *request.most_joules_per_token;
  return meets_deadline && saves_energy;
}

bool is_decided(const ObjectivePoint& point, const ObjectiveRequest& request) {
  const bool is_whole = point.stop == SearchStop::kNone;
  if (!point.found || !point.found->best) return is_whole;
  Candidate best = *point.found->best;
  if (is_allowed(best, request)) return true;
  const std::optional<double>& within = point.found->proven_within;
  if (!within || *within >= 1) return is_whole;
  best.step_time = best.step_time * (1 - *within);
  best.tokens_per_s /= 1 - *within;
  return !is_allowed(best, request);
}

void ask_points(std::vector<ObjectivePoint>& points, const ObjectiveRequest& request,
                const Ask& ask) {
  bool interrupted = false;
  for (size_t i = 0; i < points.size(); ++i) {
    ObjectivePoint& point = points[i];
    if (!point.question) continue;
    // More devices than were enough are not asked for.
    if (request.objective == Objective::kDevicesForDeadline && i > 0 &&
        point.devices > points[i - 1].devices && best_point(points, request)) {
      return;
    }
    if (!interrupted) point.found = ask(*point.question);
    point.stop = point.found ? point.found->stop : SearchStop::kInterrupt;
    interrupted = point.stop == SearchStop::kInterrupt;
  }
}

std::optional<size_t> best_point(const std::vector<ObjectivePoint>& points,
                                 const ObjectiveRequest& request) {
  std::optional<size_t> best;
  double best_value = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    const auto& found = points[i].found;
    if (!found || !found->best || !is_allowed(*found->best, request)) continue;
    const double value = value_of(*found->best, request);
    const bool better = is_better_high(request.objective) ? value > best_value : value < best_value;
    if (!best || better) {
      best = i;
      best_value = value;
    }
  }
  return best;
}

LargestSize largest_size(const SizeSearch& sizes, const Ask& ask) {
  CHECK(sizes.most > 0);
  return SizeWalk(sizes, ask).run();
}

std::vector<Shape> shapes_of(const Family& family, int64_t grain) {
  CHECK(grain > 0 && !family.shapes.empty());
  const auto parameters = [&](const Shape& shape) {
    return parameter_count(model_of(family, shape, 1));
  };
  std::vector<Shape> shapes;
  for (size_t i = 0; i < family.shapes.size(); ++i) {
    const bool last = i + 1 == family.shapes.size();
    const int64_t limit = last ? 0 : parameters(family.shapes[i + 1]);
    Shape shape = family.shapes[i];
    shape.layers = round_up(shape.layers, grain);
    while (shape.layers <= kMostLayers && (last || parameters(shape) < limit)) {
      shapes.push_back(shape);
      shape.layers += grain;
    }
  }
  return shapes;
}

Machine with_memory(const Machine& machine, Place place, Bytes memory) {
  Machine result = machine;
  memory_at(result, place).value = memory;
  return result;
}

Machine with_headroom(const Machine& machine, Bytes headroom) {
  CHECK(headroom.count >= 0);
  return with_memory(machine, Place::kHbm, machine.gpu.memory.value - headroom);
}

std::optional<Bytes> least_memory_of(const SearchQuestion& question, Place place, const Ask& ask) {
  SearchQuestion at = question;
  at.tolerance = kAnyPlan;
  const Bytes reserved = reserved_of(question.machine, place);
  // What a plan takes that fits such a machine; nothing where none does.
  const auto needed = [&](Bytes memory) -> std::optional<Bytes> {
    at.machine = with_memory(question.machine, place, memory);
    const std::optional<SearchResult> found = ask(at);
    if (!found || !found->best) return std::nullopt;
    return found->best->memory[static_cast<size_t>(place)] + reserved;
  };
  Bytes low = reserved;
  Bytes high = memory_at(at.machine, place).value;
  std::optional<Bytes> enough = needed(high);
  if (!enough) {
    low = high;
    high = high * kMostMemoryFactor;
    enough = needed(high);
  }
  if (!enough) return std::nullopt;
  high = std::min(high, *enough);
  while (static_cast<double>((high - low).count) >
         kMemoryResolution * static_cast<double>(high.count)) {
    const Bytes middle{low.count + (high - low).count / 2};
    const std::optional<Bytes> less = needed(middle);
    if (less) {
      high = std::min(middle, *less);
    } else {
      low = middle;
    }
  }
  return high;
}

}  // namespace ballast
