// Timeline: when each operation ran, on either clock, and what can be read off it.
//
// The simulator and the executor both return this type, so one report, one trace and one
// comparison serve prediction and measurement.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/units.h"
#include "sim/graph/core/graph.h"

namespace ballast {

struct Span {
  OpId op = -1;  // index in Graph::step.ops
  int32_t step = 0;
  Instant begin;
  Instant end;
};

struct Timeline {
  std::vector<Span> spans;  // by (begin, lane, op); of the recorded steps only
  int32_t first_step = 0;   // recorded steps are [first_step, first_step + steps)
  int32_t steps = 0;
  Duration step_time;   // steady state: median period of the recorded steps
  bool settled = true;  // else the periods still differed and step_time is their mean
  int32_t run = 0;      // steps that the virtual clock ran; later ones are one of them again
};

// "compute", or "2 compute" where several devices are simulated.
std::string lane_name(const Graph& graph, LaneId lane);

struct LaneUse {
  LaneId lane = 0;
  Duration busy;     // per step
  double share = 0;  // of the step time
};
std::vector<LaneUse> lane_use(const Graph& graph, const Timeline& timeline);

struct KindTime {
  OpKind kind{};
  Phase phase{};
  Duration time;           // summed over operations, per step
  int64_t operations = 0;  // per step
};
// "gemm forward", "adam".
std::string name_of(const KindTime& kind);
// Sorted by time, longest first.
std::vector<KindTime> time_by_kind(const Graph& graph, const Timeline& timeline);

// The chain of operations that decided the last recorded step's length: from its last end back to
// its beginning, each the one whose end released the next. Seconds by kind sum to the step time;
// `waiting` is time that no chained operation covers (hand-over, start of the record).
struct LongestPath {
  std::vector<Span> chain;  // first to last
  std::vector<KindTime> by_kind;
  Duration waiting;
};
LongestPath longest_path(const Graph& graph, const Timeline& timeline);

// One line of text per lane, `width` columns wide, over the last recorded step; letters say what
// ran (F forward, B backward, A Adam, c copy, ...), '.' is idle. Ends with a legend line.
std::string text_timeline(const Graph& graph, const Timeline& timeline, int width);

}  // namespace ballast
