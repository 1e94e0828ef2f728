#include "sim/engine/engine.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "sim/engine/clock/host_queue.h"
#include "sim/engine/clock/next_event.h"
#include "sim/engine/sharing/sharing.h"

namespace ballast {
namespace {

constexpr double kSettled = 1e-6;  // relative difference of periods that count as equal

struct Times {
  Instant begin;
  Instant end;
};

// When the operations of the latest steps ran. A lane may run several steps ahead of another, so
// rows are kept until `keep` later steps are complete, and are then used again.
class Recorder {
 public:
  Recorder(size_t ops, const SimulateOptions& options)
      : ops_(ops), keep_(options.record_steps), row_of_step_(options.max_steps, -1) {
    rows_.reserve(static_cast<size_t>(options.max_steps));
  }

  // The row of a step, by operation; good until the step is complete. Allocates only where lanes
  // have drifted further apart than ever before.
  Times* row(int32_t step) {
    int32_t& row = row_of_step_[static_cast<size_t>(step)];
    if (row < 0) row = take();
    return rows_[static_cast<size_t>(row)].data();
  }

  void complete(int32_t step) {
    const int32_t dropped = step - keep_;
    if (dropped >= 0) free_.push_back(row_of_step_[static_cast<size_t>(dropped)]);
  }

 private:
  int32_t take() {
    if (free_.empty()) {
      rows_.emplace_back(ops_);
      return static_cast<int32_t>(rows_.size()) - 1;
    }
    const int32_t row = free_.back();
    free_.pop_back();
    return row;
  }

  size_t ops_;
  int32_t keep_;
  std::vector<int32_t> row_of_step_;
  std::vector<std::vector<Times>> rows_;
  std::vector<int32_t> free_;
};

// The operations of every lane, in program order.
struct LanePrograms {
  std::vector<OpId> ops;       // lane after lane
  std::vector<int32_t> begin;  // of lane l: ops[begin[l]] .. ops[begin[l+1]-1]

  LanePrograms(const Program& program, int32_t lanes)
      : ops(program.ops.size()), begin(static_cast<size_t>(lanes) + 1) {
    for (const Op& op : program.ops) {
      CHECK(op.lane >= 0 && op.lane < lanes);
      ++begin[static_cast<size_t>(op.lane) + 1];
    }
    for (size_t l = 1; l < begin.size(); ++l) begin[l] += begin[l - 1];
    std::vector<int32_t> next(begin.begin(), begin.end() - 1);
    for (size_t i = 0; i < program.ops.size(); ++i) {
      const auto lane = static_cast<size_t>(program.ops[i].lane);
      ops[static_cast<size_t>(next[lane]++)] = static_cast<OpId>(i);
    }
  }

  std::span<const OpId> of(size_t lane) const {
    return std::span(ops).subspan(static_cast<size_t>(begin[lane]),
                                  static_cast<size_t>(begin[lane + 1] - begin[lane]));
  }
};

enum class LaneState : uint8_t { kFree, kStarting, kRunning };

struct Lane {
  // Its place in the program.
  std::span<const OpId> program;
  size_t position = 0;
  int32_t step = 0;
  OpId op = -1;      // program[position]
  int32_t edge = 0;  // the first edge of op that is not known to be finished
  Times* times = nullptr;
  // What it does.
  LaneState state = LaneState::kFree;
  int32_t next_waiter = -1;  // in the list of those that wait for the same operation
  Instant free_since;
  // Of a running operation: work left, in picoseconds at full speed, when it was last brought up
  // to date. Differences of instants are exact, so a change of rate costs no more than the
  // rounding of one product (2^-53 of the work left), and nothing accumulates between changes.
  double work_left = 0;
  double rate = 1;
  Instant updated;
};

class Engine {
 public:
  Engine(const Program& program, int32_t lanes, const CostTable& costs,
         const SimulateOptions& options);
  Timeline run();

 private:
  void handle_events_at(Instant now);
  void look_ahead(int32_t lane);
  bool done(const Edge& edge, int32_t step) const {
    return done_[static_cast<size_t>(edge.op)] > step - edge.steps_ahead;
  }
  void wait_for(int32_t lane, OpId op);
  void begin(int32_t lane);
  void finish(int32_t lane);
  void complete_operation_of(int32_t step);
  void settle_rates();
  void schedule(int32_t lane, Instant time) { events_.set(lane, time, insertions_++); }
  void enter_operation(Lane& lane);
  Duration period(int32_t step) const;
  bool periods_settled() const;
  Timeline timeline();
  void merge_spans(Timeline& timeline);

  const Program& program_;
  const CostTable& costs_;
  const SimulateOptions options_;
  LanePrograms programs_;
  std::vector<Lane> lanes_;
  NextEvent events_;
  Sharing sharing_;
  HostQueue host_;
  Recorder recorder_;
  std::vector<int32_t> done_;     // by operation: steps that it has finished
  std::vector<int32_t> waiters_;  // by operation: first lane that waits for it, or -1
  std::vector<int32_t> ready_;    // lanes to look at, at this instant
  std::vector<int32_t> left_;     // by step: operations not finished
  std::vector<Instant> step_end_;
  Instant now_;
  int64_t insertions_ = 0;
  int32_t complete_steps_ = 0;
  bool finished_ = false;
  bool settled_ = false;
};

Engine::Engine(const Program& program, int32_t lanes, const CostTable& costs,
               const SimulateOptions& options)
    : program_(program),
      costs_(costs),
      options_(options),
      programs_(program, lanes),
      lanes_(static_cast<size_t>(lanes)),
      events_(lanes),
      sharing_(costs.capacities, lanes),
      host_(program, lanes, costs, options.max_steps),
      recorder_(program.ops.size(), options),
      done_(program.ops.size(), 0),
      waiters_(program.ops.size(), -1),
      left_(static_cast<size_t>(options.max_steps), static_cast<int32_t>(program.ops.size())),
      step_end_(static_cast<size_t>(options.max_steps)) {
  ready_.reserve(lanes_.size());
  for (size_t l = 0; l < lanes_.size(); ++l) {
    Lane& lane = lanes_[l];
    lane.program = programs_.of(l);
    if (lane.program.empty()) continue;
    lane.times = recorder_.row(0);
    enter_operation(lane);
    ready_.push_back(static_cast<int32_t>(l));
  }
}

Timeline Engine::run() {
  handle_events_at(now_);
  while (!finished_) {
    const std::optional<int32_t> next = events_.first();
    CHECK(next.has_value());  // else the lanes wait for one another in a circle
    handle_events_at(events_.time_of(*next));
  }
  return timeline();
}

// Everything that happens at one instant; rates are solved once, when the dust has settled.
void Engine::handle_events_at(Instant now) {
  now_ = now;
  while (!finished_) {
    if (!ready_.empty()) {
      const int32_t lane = ready_.back();
      ready_.pop_back();
      look_ahead(lane);
      continue;
    }
    const std::optional<int32_t> next = events_.first();
    if (!next.has_value() || events_.time_of(*next) > now) break;
    events_.clear(*next);
    if (lanes_[static_cast<size_t>(*next)].state == LaneState::kStarting) {
      begin(*next);
    } else {
      sharing_.end(*next);
      finish(*next);
    }
  }
  settle_rates();
}

void Engine::wait_for(int32_t index, OpId op) {
  lanes_[static_cast<size_t>(index)].next_waiter = waiters_[static_cast<size_t>(op)];
  waiters_[static_cast<size_t>(op)] = index;
}

// The lane is free: start its operation, or wait for the first edge that is not finished, or for
// the host.
void Engine::look_ahead(int32_t index) {
  Lane& lane = lanes_[static_cast<size_t>(index)];
  const int32_t end = program_.edge_begin[static_cast<size_t>(lane.op) + 1];
  for (; lane.edge < end; ++lane.edge) {
    const Edge& edge = program_.edges[static_cast<size_t>(lane.edge)];
    if (done(edge, lane.step)) continue;
    wait_for(index, edge.op);
    return;
  }
  Instant start = now_;
  if (now_ > lane.free_since) {
    start = start + costs_.ops[static_cast<size_t>(lane.op)].handover;
  }
  if (!host_.empty()) {
    const Edge wait = host_.wait_before(lane.op, lane.step);
    if (wait.op >= 0 && !done(wait, lane.step)) {
      wait_for(index, wait.op);
      return;
    }
    start = std::max(start, host_.enqueued(lane.op, lane.step));
  }
  if (start > now_) {
    lane.state = LaneState::kStarting;
    schedule(index, start);
  } else {
    begin(index);
  }
}

void Engine::begin(int32_t index) {
  Lane& lane = lanes_[static_cast<size_t>(index)];
  const OpCost& cost = costs_.ops[static_cast<size_t>(lane.op)];
  lane.times[lane.op].begin = now_;
  if (cost.alone.ps <= 0) {
    finish(index);
    return;
  }
  lane.state = LaneState::kRunning;
  lane.work_left = static_cast<double>(cost.alone.ps);
  lane.rate = 1;
  lane.updated = now_;
  sharing_.begin(index, std::span(cost.demands).first(static_cast<size_t>(cost.demand_count)));
  schedule(index, now_ + cost.alone);
}

void Engine::finish(int32_t index) {
  Lane& lane = lanes_[static_cast<size_t>(index)];
  const auto op = static_cast<size_t>(lane.op);
  lane.times[lane.op].end = now_;
  lane.state = LaneState::kFree;
  lane.free_since = now_;
  ++done_[op];
  if (!host_.empty() && costs_.ops[op].host_waits) host_.waited(lane.op, lane.step, now_);
  for (int32_t waiter = waiters_[op]; waiter >= 0;) {
    ready_.push_back(waiter);
    waiter = lanes_[static_cast<size_t>(waiter)].next_waiter;
  }
  waiters_[op] = -1;

  const int32_t step = lane.step;
  if (++lane.position == lane.program.size()) {
    lane.position = 0;
    ++lane.step;
    if (lane.step < options_.max_steps) lane.times = recorder_.row(lane.step);
  }
  if (lane.step < options_.max_steps) {
    enter_operation(lane);
    ready_.push_back(index);
  }
  complete_operation_of(step);
}

void Engine::enter_operation(Lane& lane) {
  lane.op = lane.program[lane.position];
  lane.edge = program_.edge_begin[static_cast<size_t>(lane.op)];
}

// A lane finishes its operations of a step before those of the next, so steps complete in order.
void Engine::complete_operation_of(int32_t step) {
  if (--left_[static_cast<size_t>(step)] > 0) return;
  step_end_[static_cast<size_t>(step)] = now_;
  recorder_.complete(step);
  ++complete_steps_;
  settled_ = periods_settled();
  finished_ = settled_ || complete_steps_ == options_.max_steps;
}

Duration Engine::period(int32_t step) const {
  const Instant before = step > 0 ? step_end_[static_cast<size_t>(step) - 1] : Instant{};
  return step_end_[static_cast<size_t>(step)] - before;
}

bool Engine::periods_settled() const {
  if (complete_steps_ < 3 || complete_steps_ < options_.record_steps) return false;
  const int32_t last = complete_steps_ - 1;
  const double tolerance = kSettled * static_cast<double>(period(last).ps);
  const auto near = [&](int32_t step) {
    return std::abs(static_cast<double>((period(step) - period(last)).ps)) <= tolerance;
  };
  return near(last - 1) && near(last - 2);
}

void Engine::settle_rates() {
  for (const int32_t index : sharing_.settle()) {
    Lane& lane = lanes_[static_cast<size_t>(index)];
    lane.work_left -= static_cast<double>((now_ - lane.updated).ps) * lane.rate;
    lane.updated = now_;
    lane.rate = sharing_.rate(index);
    CHECK(lane.rate > 0);
    const double left = std::max(lane.work_left, 0.0) / lane.rate;
    schedule(index, now_ + Duration{std::llround(left)});
  }
}

Timeline Engine::timeline() {
  Timeline result;
  result.steps = std::min(options_.record_steps, complete_steps_);
  result.first_step = complete_steps_ - result.steps;
  result.settled = settled_;
  const int32_t last = complete_steps_ - 1;
  if (settled_) {
    result.step_time = period(last);
  } else {
    const int32_t half = std::max(complete_steps_ / 2, 1);
    const Instant before = half > last ? Instant{} : step_end_[static_cast<size_t>(last - half)];
    result.step_time = {(step_end_[static_cast<size_t>(last)] - before).ps / half};
  }
  merge_spans(result);
  return result;
}

// Each lane's spans are in order already; merging them by (begin, lane) orders them all.
void Engine::merge_spans(Timeline& timeline) {
  timeline.spans.reserve(program_.ops.size() * static_cast<size_t>(timeline.steps));
  NextEvent heads(static_cast<int32_t>(lanes_.size()));
  const auto enter = [&](int32_t index) {
    const Lane& lane = lanes_[static_cast<size_t>(index)];
    heads.set(index, lane.times[lane.program[lane.position]].begin, index);
  };
  for (size_t l = 0; l < lanes_.size(); ++l) {
    Lane& lane = lanes_[l];
    if (lane.program.empty()) continue;
    lane.position = 0;
    lane.step = timeline.first_step;
    lane.times = recorder_.row(lane.step);
    enter(static_cast<int32_t>(l));
  }
  while (const std::optional<int32_t> index = heads.first()) {
    Lane& lane = lanes_[static_cast<size_t>(*index)];
    const OpId op = lane.program[lane.position];
    timeline.spans.push_back({op, lane.step, lane.times[op].begin, lane.times[op].end});
    if (++lane.position == lane.program.size()) {
      lane.position = 0;
      ++lane.step;
      if (lane.step == timeline.first_step + timeline.steps) {
        heads.clear(*index);
        continue;
      }
      lane.times = recorder_.row(lane.step);
    }
    enter(*index);
  }
}

}  // namespace

Timeline simulate(const Program& program, const Graph& graph, const CostTable& costs,
                  const SimulateOptions& options) {
  CHECK(options.max_steps >= 1 && options.record_steps >= 1);
  CHECK(options.record_steps <= options.max_steps);
  if (program.ops.empty()) return {};
  CHECK(costs.ops.size() == program.ops.size());
  CHECK(program.edge_begin.size() == program.ops.size() + 1);
  for (const Edge& edge : program.edges) {
    CHECK(edge.op >= 0 && static_cast<size_t>(edge.op) < program.ops.size());
    CHECK(edge.steps_ahead >= 0);
  }
  return Engine(program, graph.lanes, costs, options).run();
}

}  // namespace ballast
