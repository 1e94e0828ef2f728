#include "backend/cuda/cuda_lanes.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "sim/base/host_clock.h"

namespace ballast {

namespace {

// Events tell floats of milliseconds: within two seconds those are exact to a quarter microsecond.
constexpr int64_t kNear = 1'000'000'000;

// A thread runs up to a step ahead of its stream. Asking after each operation whether the first
// that was timed has ended would be a call of the driver each time, most often for nothing.
constexpr int32_t kCallsBetweenAsking = 16;

// Kernels of lanes that carry data (unpacks, sums over ranks) are short, and the link stands still
// behind them. Those of the compute lane fill the whole GPU: among equals a short kernel would wait
// until the blocks of all that was launched before it have begun.
StreamPriority priority_of(LaneId lane) {
  return kind_of(lane) == LaneKind::kCompute ? StreamPriority::kLow : StreamPriority::kHigh;
}

std::vector<CudaStream> streams_of(const Graph& graph, CudaRuntime& runtime) {
  runtime.bind_thread();
  std::vector<CudaStream> streams(static_cast<size_t>(graph.lanes));
  for (LaneId lane = 0; lane < graph.lanes; ++lane) {
    if (!CudaLanes::queues(lane)) continue;
    // The names of lane kinds are literals.
    streams[static_cast<size_t>(lane)] =
        runtime.create_stream(to_string(kind_of(lane)).data(), priority_of(lane));
  }
  return streams;
}

std::vector<bool> ends_of(const Graph& graph) {
  std::vector<bool> ends(graph.step.ops.size(), false);
  std::vector<bool> seen(static_cast<size_t>(graph.lanes), false);
  for (size_t i = ends.size(); i-- > 0;) {
    const auto lane = static_cast<size_t>(graph.step.ops[i].lane);
    ends[i] = !seen[lane];
    seen[lane] = true;
  }
  return ends;
}

}  // namespace

CudaClock::CudaClock(CudaRuntime& runtime, CudaStream stream)
    : runtime_(runtime),
      stream_(stream),
      anchor_(runtime.create_event(stream)),
      next_event_(runtime.create_event(stream)) {
  set();
}

CudaClock::~CudaClock() {
  for (const CudaEvent& event : {anchor_, next_event_}) {
    try {
      runtime_.destroy(event);
    } catch (const Error&) {
      // The device has failed, which whoever used it was told.
    }
  }
}

// The event lies between two readings of the host's clock. What the clock said so far stands as
// long as it agrees with that, so that times do not jump by what a wake-up happened to take.
void CudaClock::set() {
  const std::scoped_lock lock(mutex_);
  const int64_t before = host_clock_ns();
  runtime_.record(next_event_, stream_);
  runtime_.synchronize(next_event_);
  const int64_t after = host_clock_ns();
  const int64_t expected =
      is_set_ ? anchor_ns_ + std::llround(runtime_.milliseconds(anchor_, next_event_) * 1e6)
              : std::midpoint(before, after);
  std::swap(anchor_, next_event_);
  anchor_ns_ = std::clamp(expected, before, after);
  noted_ns_ = after;
  next_ = Next::kFree;
  is_set_ = true;
}

// No call of the driver is made with the lock held: a thread that asks for a time would wait for
// whoever is in the driver.
void CudaClock::keep_near() {
  {
    const std::scoped_lock lock(mutex_);
    if (next_ != Next::kFree || host_clock_ns() - noted_ns_ < kNear) return;
    next_ = Next::kTaken;
  }
  runtime_.record(next_event_, stream_);
  const std::scoped_lock lock(mutex_);
  noted_ns_ = host_clock_ns();
  next_ = Next::kRecorded;
}

void CudaClock::move_on() {
  {
    const std::scoped_lock lock(mutex_);
    if (next_ != Next::kRecorded) return;
    next_ = Next::kTaken;
  }
  const bool is_done = runtime_.done(next_event_);
  const std::scoped_lock lock(mutex_);
  next_ = is_done ? Next::kFree : Next::kRecorded;
  if (!is_done) return;
  anchor_ns_ += std::llround(runtime_.milliseconds(anchor_, next_event_) * 1e6);
  std::swap(anchor_, next_event_);
}

int64_t CudaClock::time_of(CudaEvent event) {
  move_on();
  const std::scoped_lock lock(mutex_);
  return anchor_ns_ + std::llround(runtime_.milliseconds(anchor_, event) * 1e6);
}

CudaLanes::CudaLanes(const Graph& graph, CudaRuntime& runtime, int32_t timed_steps_apart,
                     CudaWait wait)
    : graph_(graph),
      runtime_(runtime),
      timed_steps_apart_(timed_steps_apart),
      step_edges_(graph.step, graph.lanes, true),
      repair_edges_(graph.repair, graph.lanes, false),
      ends_step_(ends_of(graph)),
      streams_(streams_of(graph, runtime)),
      wait_(std::move(wait)),
      step_tickets_(graph.step.ops.size()),
      repair_tickets_(graph.repair.ops.size()),
      in_flight_(static_cast<size_t>(graph.lanes)),
      finished_early_(static_cast<size_t>(graph.lanes)),
      unasked_(static_cast<size_t>(graph.lanes)),
      clock_(runtime, streams_[static_cast<size_t>(lane_of(0, LaneKind::kCompute))]) {
  for (const CudaStream stream : streams_) {
    const bool has_one = wait_ && stream.native != nullptr;
    drained_.push_back(has_one ? runtime.create_event(stream) : CudaEvent{});
  }
  for (const Op& op : graph.step.ops) step_names_.push_back(describe(op));
  for (const Op& op : graph.repair.ops) repair_names_.push_back(describe(op));
}

CudaLanes::~CudaLanes() {
  try {
    runtime_.bind_thread();
    synchronize_streams();
    for (const CudaEvent event : drained_) {
      if (event.native != nullptr) runtime_.destroy(event);
    }
    for (Tickets* tickets : {&step_tickets_, &repair_tickets_}) {
      for (auto& of_op : *tickets) {
        for (const Ticket& ticket : of_op) {
          for (const CudaEvent& event : {ticket.begin, ticket.end}) {
            if (event.native != nullptr) runtime_.destroy(event);
          }
        }
      }
    }
    for (const CudaStream stream : streams_) {
      if (stream.native != nullptr) runtime_.destroy(stream);
    }
  } catch (const Error&) {
    // The device has failed, which whoever used it was told; its driver frees the rest.
  }
}

bool CudaLanes::queues(LaneId lane) {
  switch (kind_of(lane)) {
    case LaneKind::kCompute:
    case LaneKind::kCopyIn:
    case LaneKind::kCopyOut:
    case LaneKind::kUpload:
    case LaneKind::kTensorNetwork:
    case LaneKind::kSequenceNetwork:
    case LaneKind::kExpertNetwork:
    case LaneKind::kDataNetwork:
    case LaneKind::kPipelineNetwork:
      return true;
    case LaneKind::kCpu:
    case LaneKind::kCheck:
    case LaneKind::kNvmeRead:
    case LaneKind::kNvmeWrite:
      return false;
  }
  return false;
}

CudaLanes::Ticket& CudaLanes::ticket(const Program& program, OpId id, int32_t step) {
  Tickets& tickets = is_repair(program) ? repair_tickets_ : step_tickets_;
  return tickets[static_cast<size_t>(id)][static_cast<size_t>(step % kEventSteps)];
}

// What a repair takes is in nobody's timeline.
bool CudaLanes::is_timed(const Program& program, OpId id, int32_t step) const {
  if (is_repair(program)) return false;
  return step % timed_steps_apart_ == 0 || ends_step_[static_cast<size_t>(id)];
}

// What leaves a record of undo is asked for besides, once its step has been judged
// (CudaDevice::commit).
bool CudaLanes::is_followed(const Program& program, OpId id) const {
  const auto* work = std::get_if<BucketWork>(&program.ops[static_cast<size_t>(id)].work);
  return edges(program).is_followed(id) || (work != nullptr && work->exact_undo);
}

void CudaLanes::settle(const Ticket& ticket, LaneId lane) {
  while (ticket.in_flight) {
    wait_for(in_flight_[static_cast<size_t>(lane)].front().end);
    take_first(lane, finished_early_[static_cast<size_t>(lane)]);
  }
}

void CudaLanes::make_events(Ticket& ticket, LaneId lane, bool begins, bool ends) {
  if (begins && ticket.begin.native == nullptr) ticket.begin = runtime_.create_event(stream(lane));
  if (ends && ticket.end.native == nullptr) ticket.end = runtime_.create_event(stream(lane));
}

CudaStream CudaLanes::begin(const Program& program, OpId id, int32_t step) {
  runtime_.bind_thread();
  const LaneId lane = program.ops[static_cast<size_t>(id)].lane;
  Ticket& mine = ticket(program, id, step);
  settle(mine, lane);
  const bool timed = is_timed(program, id, step);
  make_events(mine, lane, timed, timed || is_followed(program, id));
  mine.step = step;
  const std::vector<std::string>& names = is_repair(program) ? repair_names_ : step_names_;
  runtime_.push_range(names[static_cast<size_t>(id)].c_str());
  if (timed) runtime_.record(mine.begin, stream(lane));
  return stream(lane);
}

void CudaLanes::end(const Program& program, OpId id, int32_t step) {
  const LaneId lane = program.ops[static_cast<size_t>(id)].lane;
  Ticket& mine = ticket(program, id, step);
  const bool timed = is_timed(program, id, step);
  if (timed || is_followed(program, id)) runtime_.record(mine.end, stream(lane));
  runtime_.pop_range();
  if (!timed) return;
  mine.in_flight = true;
  in_flight_[static_cast<size_t>(lane)].push_back({id, step, &mine, mine.begin, mine.end});
  if (kind_of(lane) == LaneKind::kCompute) clock_.keep_near();
}

CudaLanes::Run CudaLanes::run_of(std::span<const OpId> ops) const {
  const Program& program = graph_.step;
  Run run;
  for (const OpId id : ops) {
    RunOp& each = run.emplace_back();
    each.op = id;
    each.begins_stretch = run.size() == 1;
    if (run.size() == 1) continue;  // waits before the graph is launched
    const auto index = static_cast<size_t>(id);
    for (auto e = program.edge_begin[index]; e < program.edge_begin[index + 1]; ++e) {
      const Edge edge = program.edges[static_cast<size_t>(e)];
      const LaneId other = program.ops[static_cast<size_t>(edge.op)].lane;
      if (!queues(other) || !step_edges_.must_wait(id, edge.op)) continue;
      CHECK(other != program.ops[index].lane);  // the order of the stream
      each.waits.push_back(edge);
    }
    each.begins_stretch = timed_steps_apart_ == 1 && !each.waits.empty();
  }
  for (size_t i = 0; i < run.size(); ++i) {
    run[i].ends_stretch =
        i + 1 == run.size() || is_followed(program, run[i].op) || run[i + 1].begins_stretch;
  }
  return run;
}

CudaStream CudaLanes::begin_run(const Run& run, int32_t step) {
  runtime_.bind_thread();
  const Program& program = graph_.step;
  const OpId first = run.front().op;
  const LaneId lane = program.ops[static_cast<size_t>(first)].lane;
  for (const RunOp& each : run) {
    Ticket& mine = ticket(program, each.op, step);
    settle(mine, lane);
    make_events(mine, lane, each.begins_stretch, each.ends_stretch);
    mine.step = step;
    for (const Edge& edge : each.waits) {
      CHECK(ticket(program, edge.op, step - edge.steps_ahead).step == step - edge.steps_ahead);
    }
  }
  if (is_timed(program, first, step)) {
    runtime_.record(ticket(program, first, step).begin, stream(lane));
  }
  return stream(lane);
}

void CudaLanes::end_run(const Run& run, int32_t step) {
  const Program& program = graph_.step;
  const LaneId lane = program.ops[static_cast<size_t>(run.front().op)].lane;
  const bool all = is_timed(program, run.front().op, step);
  CudaEvent begin;
  bool any = false;
  for (size_t first = 0; first < run.size();) {
    size_t last = first;
    while (!run[last].ends_stretch) ++last;
    if (run[first].begins_stretch) begin = ticket(program, run[first].op, step).begin;
    const CudaEvent end = ticket(program, run[last].op, step).end;
    for (size_t i = first; i <= last; ++i) {
      const OpId id = run[i].op;
      if (!is_timed(program, id, step)) continue;
      Ticket& mine = ticket(program, id, step);
      mine.in_flight = any = true;
      const bool has_time = all && i == first;
      in_flight_[static_cast<size_t>(lane)].push_back(
          {id, step, &mine, has_time ? begin : end, end});
    }
    begin = end;
    first = last + 1;
  }
  if (any) clock_.keep_near();
}

void CudaLanes::begin_noting(const Run& run, size_t i, int32_t step) {
  const Program& program = graph_.step;
  const RunOp& each = run[i];
  const CudaStream here = stream(program.ops[static_cast<size_t>(each.op)].lane);
  runtime_.push_range(step_names_[static_cast<size_t>(each.op)].c_str());
  for (const Edge& edge : each.waits) {
    const CudaEvent end = ticket(program, edge.op, step - edge.steps_ahead).end;
    CHECK(end.native != nullptr);
    runtime_.wait(here, end);
  }
  // The first's is recorded before the launch, of timed steps alone.
  if (i > 0 && each.begins_stretch) runtime_.record(ticket(program, each.op, step).begin, here);
}

void CudaLanes::end_noting(const Run& run, size_t i, int32_t step) {
  const Program& program = graph_.step;
  if (run[i].ends_stretch) {
    runtime_.record(ticket(program, run[i].op, step).end,
                    stream(program.ops[static_cast<size_t>(run[i].op)].lane));
  }
  runtime_.pop_range();
}

void CudaLanes::follow(const Program& program, OpId id, OpId before, int32_t step_of_before) {
  runtime_.bind_thread();
  if (!edges(program).must_wait(id, before)) return;
  const Ticket& other = ticket(program, before, step_of_before);
  CHECK(other.step == step_of_before && is_followed(program, before));
  const Op& op = program.ops[static_cast<size_t>(id)];
  if (is_work_of_the_host(op)) {
    wait_for(other.end);
  } else {
    runtime_.wait(stream(op.lane), other.end);
  }
}

void CudaLanes::take_first(LaneId lane, std::vector<FinishedOperation>& finished) {
  std::deque<InFlight>& queue = in_flight_[static_cast<size_t>(lane)];
  const InFlight first = queue.front();
  queue.pop_front();
  first.ticket->in_flight = false;
  const int64_t end = clock_.time_of(first.end);
  finished.push_back({first.op, first.step, clock_.time_of(first.begin), end});
}

std::vector<FinishedOperation> CudaLanes::take_finished(LaneId lane) {
  runtime_.bind_thread();
  std::vector<FinishedOperation> finished =
      std::exchange(finished_early_[static_cast<size_t>(lane)], {});
  const std::deque<InFlight>& queue = in_flight_[static_cast<size_t>(lane)];
  int32_t& unasked = unasked_[static_cast<size_t>(lane)];
  if (queue.empty() || ++unasked < kCallsBetweenAsking) return finished;
  unasked = 0;
  while (!queue.empty()) {
    if (!runtime_.done(queue.front().end)) break;
    take_first(lane, finished);
  }
  return finished;
}

void CudaLanes::wait_for(CudaEvent event) {
  if (wait_) return wait_(event);
  runtime_.synchronize(event);
}

void CudaLanes::synchronize_streams() {
  for (const CudaStream stream : streams_) {
    if (stream.native != nullptr) runtime_.synchronize(stream);
  }
}

void CudaLanes::drain() {
  runtime_.bind_thread();
  for (size_t lane = 0; lane < streams_.size(); ++lane) {
    if (drained_[lane].native == nullptr) continue;
    runtime_.record(drained_[lane], streams_[lane]);
    wait_(drained_[lane]);
  }
  synchronize_streams();
  std::fill(unasked_.begin(), unasked_.end(), kCallsBetweenAsking);
  clock_.set();
}

}  // namespace ballast
