#include "sim/engine/engine.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>
#include <utility>

#include "sim/base/stop.h"
#include "sim/engine/clock/host_queue.h"
#include "sim/engine/clock/next_event.h"
#include "sim/engine/sharing/sharing.h"

namespace ballast {
namespace {

constexpr int64_t kInstantsBetweenStops = 1024;  // a fraction of a millisecond
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

// The operations of every lane, in program order, one lane after another, with all that the clock
// asks of each: many lanes run at once, and each reads on in its own.
struct LanePrograms {
  struct Step {
    int32_t edges = 0;  // its first one
    int32_t kind = 0;
  };
  // What operations that cost the same have in common.
  struct Kind {
    Duration alone;
    Duration handover;
    int32_t shares = 0;  // of capacities, its first one
    int8_t share_count = 0;
    HostWait host_waits = HostWait::kNone;
  };

  std::vector<OpId> ops;       // by place
  std::vector<int32_t> place;  // by operation
  std::vector<int32_t> begin;  // of lane l: places begin[l] .. begin[l+1]-1
  std::vector<Step> steps;     // by place, and one behind the last
  std::vector<Kind> kinds;
  std::vector<Edge> edges;  // to places, where those of a program are to operations
  std::vector<Sharing::Share> shares;

  LanePrograms(const Program& program, int32_t lanes, const CostTable& costs,
               const Sharing& sharing)
      : ops(program.ops.size()),
        place(program.ops.size()),
        begin(static_cast<size_t>(lanes) + 1),
        steps(program.ops.size() + 1) {
    for (const Op& op : program.ops) {
      CHECK(op.lane >= 0 && op.lane < lanes);
      ++begin[static_cast<size_t>(op.lane) + 1];
    }
    for (size_t l = 1; l < begin.size(); ++l) begin[l] += begin[l - 1];
    std::vector<int32_t> next(begin.begin(), begin.end() - 1);
    for (size_t i = 0; i < program.ops.size(); ++i) {
      place[i] = next[static_cast<size_t>(program.ops[i].lane)]++;
      ops[static_cast<size_t>(place[i])] = static_cast<OpId>(i);
    }
    kinds.reserve(costs.ops.kinds().size());
    for (const OpCost& cost : costs.ops.kinds()) add_kind(cost, sharing);
    edges.reserve(program.edges.size());
    for (size_t p = 0; p < ops.size(); ++p) add(p, program, costs);
    steps.back().edges = static_cast<int32_t>(edges.size());
  }

  const Kind& kind_of(const Step& step) const { return kinds[static_cast<size_t>(step.kind)]; }
  std::span<const Sharing::Share> shares_of(const Kind& kind) const {
    return std::span(shares).subspan(static_cast<size_t>(kind.shares),
                                     static_cast<size_t>(kind.share_count));
  }

 private:
  void add_kind(const OpCost& cost, const Sharing& sharing) {
    Kind kind{cost.alone, cost.handover, static_cast<int32_t>(shares.size()), 0, cost.host_waits};
    for (int8_t i = 0; i < cost.demand_count; ++i) {
      const Sharing::Share share = sharing.share_of(cost.demands[static_cast<size_t>(i)]);
      if (share.units > 0) shares.push_back(share);
    }
    kind.share_count = static_cast<int8_t>(static_cast<int32_t>(shares.size()) - kind.shares);
    kinds.push_back(kind);
  }

  void add(size_t at, const Program& program, const CostTable& costs) {
    const auto op = static_cast<size_t>(ops[at]);
    Step& step = steps[at];
    step.kind = static_cast<int32_t>(costs.ops.kind_at(op));
    step.edges = static_cast<int32_t>(edges.size());
    for (int32_t e = program.edge_begin[op]; e < program.edge_begin[op + 1]; ++e) {
      const Edge& edge = program.edges[static_cast<size_t>(e)];
      edges.push_back({place[static_cast<size_t>(edge.op)], edge.steps_ahead});
    }
  }
};

enum class LaneState : uint8_t { kFree, kStarting, kRunning };

struct Lane {
  // Its part of LanePrograms, and where it is in that.
  int32_t first = 0, last = 0;  // [first, last)
  int32_t at = 0;
  int32_t step = 0;
  int32_t edge = 0;  // the first edge of what it is at that is not known to be finished
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
  void wait_for(int32_t lane, int32_t place);
  void begin(int32_t lane);
  void finish(int32_t lane);
  void complete_operation_of(int32_t step);
  void settle_rates();
  void schedule(int32_t lane, Instant time) { events_.set(lane, time, insertions_++); }
  void enter_operation(Lane& lane);
  Duration period(int32_t step) const;
  bool periods_settled() const;
  std::vector<int64_t> state() const;
  int32_t lead() const;
  bool rests_between_steps() const;
  void look_back();
  void fold();
  void repeat_step(int32_t step, Duration later);
  Timeline timeline();
  void take_spans(Timeline& timeline);
  void merge_spans(Timeline& timeline);

  const SimulateOptions options_;
  Sharing sharing_;
  LanePrograms programs_;
  std::vector<Lane> lanes_;
  NextEvent events_;
  HostQueue host_;
  Recorder recorder_;
  std::vector<int32_t> done_;     // by place: steps that have finished it
  std::vector<int32_t> waiters_;  // by place: first lane that waits for it, or -1
  std::vector<int32_t> ready_;    // lanes to look at, at this instant
  std::vector<int32_t> left_;     // by step: operations not finished
  std::vector<Instant> step_end_;
  Instant now_;
  int64_t insertions_ = 0;
  int32_t complete_steps_ = 0;
  std::vector<int64_t> state_;   // when the latest of these steps ended
  int32_t steps_at_state_ = -1;  // how many were complete then
  int32_t steps_run_ = 0;        // where later ones were told by them, else 0
  bool finished_ = false;
  bool settled_ = false;
};

Engine::Engine(const Program& program, int32_t lanes, const CostTable& costs,
               const SimulateOptions& options)
    : options_(options),
      sharing_(costs.capacities, lanes),
      programs_(program, lanes, costs, sharing_),
      lanes_(static_cast<size_t>(lanes)),
      events_(lanes),
      host_(program, programs_.place, lanes, costs, options.max_steps),
      recorder_(program.ops.size(), options),
      done_(program.ops.size(), 0),
      waiters_(program.ops.size(), -1),
      left_(static_cast<size_t>(options.max_steps), static_cast<int32_t>(program.ops.size())),
      step_end_(static_cast<size_t>(options.max_steps)) {
  ready_.reserve(lanes_.size());
  for (size_t l = 0; l < lanes_.size(); ++l) {
    Lane& lane = lanes_[l];
    lane.first = lane.at = programs_.begin[l];
    lane.last = programs_.begin[l + 1];
    if (lane.first == lane.last) continue;
    lane.times = recorder_.row(0);
    enter_operation(lane);
    ready_.push_back(static_cast<int32_t>(l));
  }
}

Timeline Engine::run() {
  handle_events_at(now_);
  for (int64_t instants = 0; !finished_; ++instants) {
    if (instants % kInstantsBetweenStops == 0) stop_point();
    const std::optional<int32_t> next = events_.first();
    CHECK(next.has_value());  // else the lanes wait for one another in a circle
    handle_events_at(events_.time_of(*next));
  }
  return timeline();
}

// Everything that happens at one instant; rates are solved once, when the dust has settled.
void Engine::handle_events_at(Instant now) {
  now_ = now;
  const int32_t complete = complete_steps_;
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
  if (complete_steps_ > complete && options_.fold) look_back();
}

void Engine::wait_for(int32_t index, int32_t place) {
  lanes_[static_cast<size_t>(index)].next_waiter = waiters_[static_cast<size_t>(place)];
  waiters_[static_cast<size_t>(place)] = index;
}

// The lane is free: start its operation, or wait for the first edge that is not finished, or for
// the host.
void Engine::look_ahead(int32_t index) {
  Lane& lane = lanes_[static_cast<size_t>(index)];
  const auto* const next = &programs_.steps[static_cast<size_t>(lane.at)];
  for (const int32_t end = next[1].edges; lane.edge < end; ++lane.edge) {
    const Edge& edge = programs_.edges[static_cast<size_t>(lane.edge)];
    if (done(edge, lane.step)) continue;
    wait_for(index, edge.op);
    return;
  }
  Instant start = now_;
  if (now_ > lane.free_since) start = start + programs_.kind_of(*next).handover;
  if (!host_.empty()) {
    const Edge wait = host_.wait_before(lane.at, lane.step);
    if (wait.op >= 0 && !done(wait, lane.step)) {
      wait_for(index, wait.op);
      return;
    }
    const Instant enqueued = host_.enqueued(lane.at, lane.step);
    if (enqueued > start) {
      host_.held_up(lane.at);
      start = enqueued;
    }
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
  const LanePrograms::Kind& kind = programs_.kind_of(programs_.steps[static_cast<size_t>(lane.at)]);
  lane.times[lane.at].begin = now_;
  if (kind.alone.ps <= 0) {
    finish(index);
    return;
  }
  lane.state = LaneState::kRunning;
  lane.work_left = static_cast<double>(kind.alone.ps);
  lane.rate = 1;
  lane.updated = now_;
  sharing_.begin(index, programs_.shares_of(kind));
  schedule(index, now_ + kind.alone);
}

void Engine::finish(int32_t index) {
  Lane& lane = lanes_[static_cast<size_t>(index)];
  const auto at = static_cast<size_t>(lane.at);
  lane.times[at].end = now_;
  lane.state = LaneState::kFree;
  lane.free_since = now_;
  ++done_[at];
  if (!host_.empty() && programs_.kind_of(programs_.steps[at]).host_waits != HostWait::kNone)
    host_.waited(lane.at, lane.step, now_);
  for (int32_t waiter = waiters_[at]; waiter >= 0;) {
    ready_.push_back(waiter);
    waiter = lanes_[static_cast<size_t>(waiter)].next_waiter;
  }
  waiters_[at] = -1;

  const int32_t step = lane.step;
  if (++lane.at == lane.last) {
    lane.at = lane.first;
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
  lane.edge = programs_.steps[static_cast<size_t>(lane.at)].edges;
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

// All that what happens from now on depends on, relative to now and to the steps complete, but for
// hosts that wait for nothing (HostQueue::let_repeat).
std::vector<int64_t> Engine::state() const {
  std::vector<int64_t> all;
  std::vector<std::pair<int64_t, int64_t>> pending;  // lanes with an event, by its number
  for (size_t l = 0; l < lanes_.size(); ++l) {
    const Lane& lane = lanes_[l];
    const auto index = static_cast<int32_t>(l);
    if (lane.first == lane.last) continue;
    all.insert(all.end(), {lane.at, lane.step - complete_steps_, static_cast<int64_t>(lane.state)});
    if (lane.state == LaneState::kFree) {
      all.insert(all.end(), {lane.edge, lane.next_waiter, lane.free_since == now_ ? 1 : 0});
      continue;
    }
    all.push_back((events_.time_of(index) - now_).ps);
    pending.emplace_back(events_.order_of(index), index);
    if (lane.state != LaneState::kRunning) continue;
    all.insert(all.end(), {std::bit_cast<int64_t>(lane.work_left),
                           std::bit_cast<int64_t>(lane.rate), (now_ - lane.updated).ps});
  }
  std::sort(pending.begin(), pending.end());
  for (const auto& [order, lane] : pending) all.push_back(lane);
  sharing_.describe(all);
  host_.describe(now_, complete_steps_, all);
  return all;
}

// How many steps the lane that is furthest ahead is beyond those complete.
int32_t Engine::lead() const {
  int32_t lead = 0;
  for (const Lane& lane : lanes_) {
    if (lane.first < lane.last) lead = std::max(lead, lane.step - complete_steps_);
  }
  return lead;
}

// Nothing of the next step has begun.
bool Engine::rests_between_steps() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [&](const Lane& lane) {
    if (lane.first == lane.last) return true;
    return lane.step == complete_steps_ && lane.at == lane.first &&
           lane.state != LaneState::kRunning;
  });
}

// A step has just ended: did the one before it end like this?
void Engine::look_back() {
  if (finished_ || lead() > 1) return;
  std::vector<int64_t> state = this->state();
  const bool hosts_let = host_.let_repeat(period(complete_steps_ - 1));
  const bool repeats = hosts_let && steps_at_state_ == complete_steps_ - 1 && state == state_;
  state_ = std::move(state);
  steps_at_state_ = complete_steps_;
  if (repeats) fold();
}

// The steps to come are the last one again, up to where the run ends. Lanes that are ahead stop at
// the last step to run, so that it is not like the others: then it has to be run.
void Engine::fold() {
  const int32_t run = complete_steps_;
  const Duration later = period(run - 1);
  while (!settled_ && complete_steps_ < options_.max_steps) {
    step_end_[static_cast<size_t>(complete_steps_)] =
        step_end_[static_cast<size_t>(complete_steps_) - 1] + later;
    ++complete_steps_;
    settled_ = periods_settled();
  }
  const int32_t end = std::exchange(complete_steps_, run);
  const bool is_cut_short = end + lead() >= options_.max_steps && !rests_between_steps();
  if (!settled_ || is_cut_short) {
    settled_ = false;
    return;
  }
  for (int32_t step = run; step < end && options_.record_steps > 0; ++step) {
    repeat_step(step, later);
    recorder_.complete(step);
  }
  steps_run_ = run;
  complete_steps_ = end;
  finished_ = true;
}

// The times of a step by those of the one before; what has run of it stays.
void Engine::repeat_step(int32_t step, Duration later) {
  const Times* const before = recorder_.row(step - 1);
  Times* const times = recorder_.row(step);
  for (const Lane& lane : lanes_) {
    const bool is_in_it = lane.step == step;
    if (lane.first < lane.last && lane.step > step) continue;
    for (int32_t p = is_in_it ? lane.at : lane.first; p < lane.last; ++p) {
      const bool runs = is_in_it && p == lane.at && lane.state == LaneState::kRunning;
      if (!runs) times[p].begin = before[p].begin + later;
      times[p].end = before[p].end + later;
    }
  }
}

Timeline Engine::timeline() {
  Timeline result;
  result.steps = std::min(options_.record_steps, complete_steps_);
  result.first_step = complete_steps_ - result.steps;
  result.settled = settled_;
  result.run = steps_run_ > 0 ? steps_run_ : complete_steps_;
  const int32_t last = complete_steps_ - 1;
  if (settled_) {
    result.step_time = period(last);
  } else {
    const int32_t half = std::max(complete_steps_ / 2, 1);
    const Instant before = half > last ? Instant{} : step_end_[static_cast<size_t>(last - half)];
    result.step_time = {(step_end_[static_cast<size_t>(last)] - before).ps / half};
  }
  if (options_.spans_of.empty()) {
    if (result.steps > 0) merge_spans(result);
  } else {
    take_spans(result);
  }
  return result;
}

void Engine::take_spans(Timeline& timeline) {
  for (int32_t step = timeline.first_step; step < complete_steps_; ++step) {
    const Times* const row = recorder_.row(step);
    for (const OpId op : options_.spans_of) {
      const Times& times = row[programs_.place[static_cast<size_t>(op)]];
      timeline.spans.push_back({op, step, times.begin, times.end});
    }
  }
}

// Each lane's spans are in order already; merging them by (begin, lane) orders them all.
void Engine::merge_spans(Timeline& timeline) {
  timeline.spans.reserve(programs_.ops.size() * static_cast<size_t>(timeline.steps));
  NextEvent heads(static_cast<int32_t>(lanes_.size()));
  const auto enter = [&](int32_t index) {
    const Lane& lane = lanes_[static_cast<size_t>(index)];
    heads.set(index, lane.times[lane.at].begin, index);
  };
  for (size_t l = 0; l < lanes_.size(); ++l) {
    Lane& lane = lanes_[l];
    if (lane.first == lane.last) continue;
    lane.at = lane.first;
    lane.step = timeline.first_step;
    lane.times = recorder_.row(lane.step);
    enter(static_cast<int32_t>(l));
  }
  while (const std::optional<int32_t> index = heads.first()) {
    Lane& lane = lanes_[static_cast<size_t>(*index)];
    const Times& times = lane.times[lane.at];
    const OpId op = programs_.ops[static_cast<size_t>(lane.at)];
    timeline.spans.push_back({op, lane.step, times.begin, times.end});
    if (++lane.at == lane.last) {
      lane.at = lane.first;
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
  CHECK(options.max_steps >= 1 && options.record_steps >= 0);
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
