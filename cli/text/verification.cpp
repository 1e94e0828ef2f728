#include "cli/text/verification.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/text/tables.h"
#include "sim/base/median.h"

namespace ballast {
namespace {

// The first steps touch memory for the first time, which no later step does.
constexpr size_t kWarmUpSteps = 2;

Duration steady_step(const TrainResult& result) {
  std::vector<Duration> times = result.step_times;
  CHECK(!times.empty());
  if (times.size() > 2 * kWarmUpSteps) times.erase(times.begin(), times.begin() + kWarmUpSteps);
  return median(std::move(times));
}

// The timeline with the mean period of the steps that it recorded, which its lanes were busy for;
// its own step time is of all steps.
Timeline with_recorded_period(Timeline timeline) {
  Instant begin{INT64_MAX};
  Instant end{0};
  for (const Span& span : timeline.spans) {
    begin = std::min(begin, span.begin);
    end = std::max(end, span.end);
  }
  if (end > begin) timeline.step_time.ps = (end - begin).ps / std::max(timeline.steps, 1);
  return timeline;
}

// One quantity by name, on both clocks; a name that one of them lacks is 0 there.
struct Pair {
  std::string name;
  double predicted = 0;
  double measured = 0;
};

Pair& pair_named(std::vector<Pair>& pairs, const std::string& name) {
  for (Pair& pair : pairs) {
    if (pair.name == name) return pair;
  }
  return pairs.emplace_back(Pair{name});
}

std::vector<Pair> kind_pairs(const Verification& verification) {
  std::vector<Pair> pairs;
  for (const KindTime& kind : verification.predicted.kinds) {
    pair_named(pairs, name_of(kind)).predicted = kind.time.seconds();
  }
  for (const KindTime& kind : verification.measured.kinds) {
    pair_named(pairs, name_of(kind)).measured = kind.time.seconds();
  }
  return pairs;
}

std::vector<Pair> lane_pairs(const Graph& graph, const Verification& verification) {
  std::vector<Pair> pairs;
  for (const LaneUse& use : verification.predicted.lanes) {
    pair_named(pairs, lane_name(graph, use.lane)).predicted = use.share;
  }
  for (const LaneUse& use : verification.measured.lanes) {
    pair_named(pairs, lane_name(graph, use.lane)).measured = use.share;
  }
  return pairs;
}

std::vector<Pair> memory_pairs(const Verification& verification) {
  std::vector<Pair> pairs;
  for (const auto& [place, bytes] : verification.predicted.memory) {
    pair_named(pairs, std::string(to_string(place))).predicted = static_cast<double>(bytes.count);
  }
  for (const auto& [place, bytes] : verification.measured.memory) {
    pair_named(pairs, std::string(to_string(place))).measured = static_cast<double>(bytes.count);
  }
  return pairs;
}

OrderedJson memory_json(const std::map<Place, Bytes>& memory) {
  OrderedJson json = OrderedJson::object();
  for (const auto& [place, bytes] : memory) json[std::string(to_string(place))] = bytes.count;
  return json;
}

OrderedJson view_json(const Graph& graph, const ClockView& view) {
  return {{"step_time_s", view.step_time.seconds()},
          {"kinds", kinds_json(view.kinds)},
          {"lanes", lanes_json(graph, view.lanes)},
          {"memory_bytes", memory_json(view.memory)}};
}

OrderedJson errors_json(const std::vector<Pair>& pairs) {
  OrderedJson errors = OrderedJson::object();
  for (const Pair& pair : pairs) {
    errors[pair.name] = pair.measured > 0
                            ? OrderedJson(error_percent(pair.predicted, pair.measured))
                            : OrderedJson(nullptr);
  }
  return errors;
}

std::string error_text(const Pair& pair) {
  if (pair.measured <= 0) return "";
  return show_signed_percent(error_percent(pair.predicted, pair.measured));
}

std::string group_of(const Op& op) {
  switch (op.kind) {
    case OpKind::kAdam:
    case OpKind::kUndo:
      return "adam";
    case OpKind::kCopy:
    case OpKind::kLoadBatch:
    case OpKind::kCollective:
      return "copy";
    default:
      break;
  }
  switch (op.phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kRecompute:
      return "recompute";
    case Phase::kBackward:
    case Phase::kBackwardInput:
    case Phase::kBackwardWeight:
      return "backward";
    default:
      return "other";
  }
}

struct Window {
  Instant begin;
  Instant end;
};

// From the end of one step to the end of the next: the last, or the last but one where three were
// recorded, because what the step after it does beside its end belongs to the picture.
Window last_step_of(const Timeline& timeline) {
  const int32_t last = timeline.first_step + timeline.steps - (timeline.steps >= 3 ? 2 : 1);
  Window window{{INT64_MAX}, {0}};
  Instant before{-1};
  for (const Span& span : timeline.spans) {
    if (span.step == last) window.end = std::max(window.end, span.end);
    if (span.step == last) window.begin = std::min(window.begin, span.begin);
    if (span.step == last - 1) before = std::max(before, span.end);
  }
  if (before.ps >= 0) window.begin = before;
  return window;
}

// Where the simulator ran only one step before the last, the next one's share of the window is
// missing. In a settled simulation it is what the last step did one period earlier. (A real run
// records more, unless its first two steps are all there was.)
std::vector<Span> with_next_step(const Timeline& timeline, const Window& window) {
  std::vector<Span> spans = timeline.spans;
  if (timeline.steps != 2 || timeline.first_step == 0 || !timeline.settled) return spans;
  const Duration period = window.end - window.begin;
  for (const Span& span : timeline.spans) {
    if (span.step != timeline.first_step + 1 || span.begin + period >= window.end) continue;
    spans.push_back({span.op, span.step + 1, span.begin + period, span.end + period});
  }
  return spans;
}

}  // namespace

Verification verification_of(const Prediction& prediction, const Graph& graph,
                             const TrainResult& result) {
  Verification verification;
  verification.predicted.step_time = prediction.step_time;
  verification.predicted.kinds = time_by_kind(prediction.graph, prediction.timeline);
  verification.predicted.lanes = prediction.lanes;
  for (const PlacePeak& peak : prediction.peaks) {
    if (peak.arena.count > 0) verification.predicted.memory[peak.place] = peak.arena;
  }
  verification.measured.step_time = steady_step(result);
  verification.measured.kinds = time_by_kind(graph, result.timeline);
  verification.measured.lanes = lane_use(graph, with_recorded_period(result.timeline));
  for (const MemoryUse& use : result.memory) {
    if (use.resident.count > 0) verification.measured.memory[use.place] = use.resident;
  }
  if (result.memory_of_ranks.size() < 2) return verification;
  for (const std::vector<MemoryUse>& of_rank : result.memory_of_ranks) {
    std::map<Place, Bytes>& memory = verification.memory_of_ranks.emplace_back();
    for (const MemoryUse& use : of_rank) {
      if (use.resident.count > 0) memory[use.place] = use.resident;
    }
  }
  return verification;
}

double error_percent(double predicted, double measured) { return 100 * (predicted / measured - 1); }

std::string verification_text(const Graph& graph, const Verification& verification) {
  Table table({{"", true}, {"predicted"}, {"measured"}, {"error"}});
  const Pair step{"step time", verification.predicted.step_time.seconds(),
                  verification.measured.step_time.seconds()};
  const auto time = [](double seconds) { return show(Duration::from_seconds(seconds)); };
  table.add({step.name, time(step.predicted), time(step.measured), error_text(step)});
  for (const Pair& pair : kind_pairs(verification)) {
    if (pair.predicted <= 0 && pair.measured <= 0) continue;
    table.add({"  " + pair.name, time(pair.predicted), time(pair.measured), error_text(pair)});
  }
  for (const Pair& pair : lane_pairs(graph, verification)) {
    table.add({"lane " + pair.name, show_percent(100 * pair.predicted),
               show_percent(100 * pair.measured), ""});
  }
  const auto amount = [](double bytes) { return show(Bytes{static_cast<int64_t>(bytes)}); };
  for (const Pair& pair : memory_pairs(verification)) {
    table.add(
        {"memory " + pair.name, amount(pair.predicted), amount(pair.measured), error_text(pair)});
  }
  return table.text();
}

OrderedJson verification_json(const Graph& graph, const Verification& verification) {
  const ClockView& predicted = verification.predicted;
  const ClockView& measured = verification.measured;
  OrderedJson measured_json = view_json(graph, measured);
  for (const auto& memory : verification.memory_of_ranks) {
    measured_json["memory_bytes_of_ranks"].push_back(memory_json(memory));
  }
  return {
      {"predicted", view_json(graph, predicted)},
      {"measured", measured_json},
      {"error_percent",
       {{"step_time_s", error_percent(predicted.step_time.seconds(), measured.step_time.seconds())},
        {"kinds", errors_json(kind_pairs(verification))},
        {"memory_bytes", errors_json(memory_pairs(verification))}}}};
}

OrderedJson timeline_json(const Graph& graph, const Timeline& timeline) {
  if (timeline.spans.empty()) return nullptr;
  const Window window = last_step_of(timeline);
  OrderedJson spans = OrderedJson::array();
  std::vector<bool> used(static_cast<size_t>(graph.lanes), false);
  for (const Span& span : with_next_step(timeline, window)) {
    if (span.end <= window.begin || span.begin >= window.end) continue;
    const Op& op = graph.step.ops[static_cast<size_t>(span.op)];
    used[static_cast<size_t>(op.lane)] = true;
    spans.push_back({op.lane, (std::max(span.begin, window.begin) - window.begin).us(),
                     (std::min(span.end, window.end) - window.begin).us(), group_of(op),
                     describe(op), span.op});
  }
  OrderedJson lanes = OrderedJson::array();
  for (size_t lane = 0; lane < used.size(); ++lane) {
    if (!used[lane]) continue;
    lanes.push_back({{"id", lane}, {"name", lane_name(graph, static_cast<LaneId>(lane))}});
  }
  return {{"length_us", (window.end - window.begin).us()}, {"lanes", lanes}, {"spans", spans}};
}

}  // namespace ballast
