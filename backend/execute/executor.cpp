#include "backend/execute/executor.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <thread>
#include <tuple>

#include "sim/base/median.h"

namespace ballast {

namespace {

using namespace std::chrono_literals;

constexpr int32_t kReleased = std::numeric_limits<int32_t>::max();
constexpr auto kTickPeriod = 50ms;

// What the operation waits for of [begin, end) in the same step.
std::vector<OpId> edges_within(const Program& program, OpId id, OpId begin, OpId end) {
  std::vector<OpId> found;
  const auto index = static_cast<size_t>(id);
  for (auto e = program.edge_begin[index]; e < program.edge_begin[index + 1]; ++e) {
    const Edge edge = program.edges[static_cast<size_t>(e)];
    if (edge.steps_ahead == 0 && edge.op >= begin && edge.op < end) found.push_back(edge.op);
  }
  return found;
}

}  // namespace

Executor::Executor(const Graph& graph, Device& device, const HostClock& clock)
    : graph_(graph),
      device_(device),
      lane_ops_(static_cast<size_t>(graph.lanes)),
      completed_(graph.step.ops.size()),
      records_(static_cast<size_t>(graph.lanes)),
      clock_(clock) {
  CHECK(graph.step.edge_begin.size() == graph.step.ops.size() + 1);
  for (size_t i = 0; i < graph.step.ops.size(); ++i) {
    lane_ops_[static_cast<size_t>(graph.step.ops[i].lane)].push_back(static_cast<OpId>(i));
  }
}

Instant Executor::now() const { return {(clock_.now() - epoch_).count() * 1000}; }

void Executor::reset(const RunOptions& options) {
  CHECK(options.last_step >= options.first_step);
  const std::scoped_lock lock(mutex_);
  options_ = options;
  for (auto& completed : completed_) completed.store(options.first_step - 1);
  for (LaneRecord& record : records_) record.spans.clear();
  const auto steps = static_cast<size_t>(options.last_step - options.first_step + 1);
  step_end_ps_ = std::vector<std::atomic<int64_t>>(steps);
  for (auto& end : step_end_ps_) end.store(0);
  started_ = options.first_step - 1;
  last_step_ = options.last_step;
  failure_ = nullptr;
  aborted_ = false;
  held_ = false;
  rollbacks_ = 0;
  epoch_ = clock_.now();
  if (stop_requested_.exchange(false)) last_step_ = options.first_step;
}

bool Executor::begin_step(int32_t step) {
  std::unique_lock lock(mutex_);
  released_.wait(lock, [&] { return step <= started_ || !held_ || aborted_; });
  if (step > last_step_) return false;
  started_ = std::max(started_, step);
  return true;
}

void Executor::request_stop() {
  const std::scoped_lock lock(mutex_);
  if (started_ < options_.first_step) {
    stop_requested_ = true;  // nothing runs yet: the next run ends after its first step
    return;
  }
  last_step_ = std::min(last_step_, started_);
}

int32_t Executor::hold() {
  const std::scoped_lock lock(mutex_);
  held_ = true;
  return started_;
}

void Executor::stop_after(int32_t step) {
  const std::scoped_lock lock(mutex_);
  CHECK(started_ <= step);
  last_step_ = std::min(last_step_, step);
  held_ = false;
  released_.notify_all();
}

bool Executor::wait_for_edges(OpId id, int32_t step) {
  const Program& program = graph_.step;
  const auto index = static_cast<size_t>(id);
  for (auto e = program.edge_begin[index]; e < program.edge_begin[index + 1]; ++e) {
    const Edge edge = program.edges[static_cast<size_t>(e)];
    std::atomic<int32_t>& completed = completed_[static_cast<size_t>(edge.op)];
    const int32_t needed = step - edge.steps_ahead;
    for (int32_t seen = completed.load(std::memory_order_acquire); seen < needed;
         seen = completed.load(std::memory_order_acquire)) {
      completed.wait(seen, std::memory_order_acquire);
    }
  }
  return !aborted_;
}

bool Executor::wait_for_all_edges(OpId id, int32_t step) {
  for (const OpId behind : device_.handed_over_with(id)) {
    if (!wait_for_edges(behind, step)) return false;
  }
  return wait_for_edges(id, step);
}

// After all of wait_for_edges, so that a lane that a fence holds touches nothing while a rollback
// uses its queue.
void Executor::follow_edges(const Program& program, OpId id, int32_t step) {
  const auto index = static_cast<size_t>(id);
  const auto begin = program.edges.begin() + program.edge_begin[index];
  const auto end = program.edges.begin() + program.edge_begin[index + 1];
  for (auto at = begin; at != end; ++at) {
    const Edge edge = *at;
    if (std::find(begin, at, edge) != at) continue;  // a fence may repeat one
    const int32_t needed = step - edge.steps_ahead;
    const LaneId lane = program.ops[static_cast<size_t>(edge.op)].lane;
    const bool before_the_run = needed < options_.first_step;  // and so done
    if (before_the_run || !device_.queues(lane)) continue;
    device_.follow(program, id, edge.op, needed);
  }
}

void Executor::finish(OpId id, int32_t step) {
  std::atomic<int32_t>& completed = completed_[static_cast<size_t>(id)];
  // A failure elsewhere may have released this operation's waiters for good.
  int32_t expected = step - 1;
  completed.compare_exchange_strong(expected, step, std::memory_order_release);
  completed.notify_all();
}

void Executor::execute(OpId id, int32_t step, LaneId lane) {
  const Op& op = graph_.step.ops[static_cast<size_t>(id)];
  const bool queued = device_.queues(lane);
  const bool commits = op.kind == OpKind::kCommit;
  const Instant begin = now();
  if (commits) judge(id, step);
  if (queued || !commits) device_.execute(graph_.step, id, step);
  if (queued) {
    record_finished(lane);
  } else {
    record(lane, {id, step, begin, now()});
  }
}

void Executor::record(LaneId lane, const Span& span) {
  records_[static_cast<size_t>(lane)].spans.push_back(span);
  auto& step_end = step_end_ps_[static_cast<size_t>(span.step - options_.first_step)];
  for (int64_t seen = step_end.load();
       seen < span.end.ps && !step_end.compare_exchange_weak(seen, span.end.ps);) {
  }
}

// What a rollback ran once more is told of again, and left out: its first run counts.
void Executor::record_finished(LaneId lane) {
  const std::vector<Span>& spans = records_[static_cast<size_t>(lane)].spans;
  for (const FinishedOperation& finished : device_.take_finished(lane)) {
    const auto name = std::tuple(finished.step, finished.op);
    if (!spans.empty() && name <= std::tuple(spans.back().step, spans.back().op)) continue;
    record(lane, {finished.op,
                  finished.step,
                  {(finished.begin_ns - epoch_.count()) * 1000},
                  {(finished.end_ns - epoch_.count()) * 1000}});
  }
}

void Executor::judge(OpId id, int32_t step) {
  if (device_.commit(step)) return;
  ++rollbacks_;
  wait_for_everything_before(id, step);
  run_once(graph_.repair, 0, static_cast<OpId>(graph_.repair.ops.size()), step - 1);
  run_once(graph_.step, 0, id, step);
}

// Lanes are held at the fence, so what is waited for here finishes by itself.
void Executor::wait_for_everything_before(OpId id, int32_t step) {
  for (OpId other = 0; other < static_cast<OpId>(completed_.size()); ++other) {
    if (other == id) continue;
    const int32_t needed = other < id ? step : step - 1;
    std::atomic<int32_t>& completed = completed_[static_cast<size_t>(other)];
    for (int32_t seen = completed.load(std::memory_order_acquire); seen < needed;
         seen = completed.load(std::memory_order_acquire)) {
      completed.wait(seen, std::memory_order_acquire);
    }
  }
  if (aborted_) throw Error("rollback", "another lane has failed", "see its message");
  device_.drain();
}

void Executor::run_once(const Program& program, OpId begin, OpId end, int32_t step) {
  std::vector<std::atomic<bool>> done(program.ops.size());
  std::mutex failure_mutex;
  std::exception_ptr failure;
  std::atomic<bool> failed{false};
  const auto fail = [&] {
    const std::scoped_lock lock(failure_mutex);
    if (!failure) failure = std::current_exception();
    failed = true;
    abandon(std::current_exception());
  };
  const auto lane_work = [&](LaneId lane) {
    for (OpId id = begin; id < end; ++id) {
      const auto index = static_cast<size_t>(id);
      if (program.ops[index].lane != lane) continue;
      const auto wait_for = [&](const std::vector<OpId>& edges) {
        for (const OpId before : edges) done[static_cast<size_t>(before)].wait(false);
      };
      const bool of_step = &program == &graph_.step;
      for (const OpId each : of_step ? device_.handed_over_with(id) : std::span<const OpId>{}) {
        wait_for(edges_within(program, each, begin, end));
      }
      const std::vector<OpId> followed = edges_within(program, id, begin, end);
      wait_for(followed);
      try {
        for (const OpId before : followed) {
          const LaneId other = program.ops[static_cast<size_t>(before)].lane;
          if (!failed && device_.queues(other)) device_.follow(program, id, before, step);
        }
        if (!failed) device_.execute(program, id, step);
      } catch (...) {
        fail();
      }
      done[index] = true;
      done[index].notify_all();
    }
  };
  // Of lanes that have no thread nothing is waited for.
  const auto leave_out = [&](LaneId first) {
    fail();
    for (OpId id = begin; id < end; ++id) {
      if (program.ops[static_cast<size_t>(id)].lane < first) continue;
      done[static_cast<size_t>(id)] = true;
      done[static_cast<size_t>(id)].notify_all();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (LaneId lane = 0; lane < graph_.lanes; ++lane) {
      try {
        threads.emplace_back(lane_work, lane);
      } catch (...) {
        leave_out(lane);
        break;
      }
    }
  }
  if (failure) std::rethrow_exception(failure);
  device_.drain();
}

void Executor::run_lane(LaneId lane) {
  const std::vector<OpId>& ops = lane_ops_[static_cast<size_t>(lane)];
  for (int32_t step = options_.first_step; begin_step(step); ++step) {
    for (const OpId id : ops) {
      if (!wait_for_all_edges(id, step)) return;
      follow_edges(graph_.step, id, step);
      execute(id, step, lane);
      finish(id, step);
    }
    // Spans of long-gone steps are dropped in large strides, so that this stays cheap.
    std::vector<Span>& spans = records_[static_cast<size_t>(lane)].spans;
    const size_t kept = static_cast<size_t>(options_.recorded_steps + 2) * ops.size();
    if (spans.size() > 2 * kept) {
      spans.erase(spans.begin(), spans.end() - static_cast<std::ptrdiff_t>(kept));
    }
  }
}

// The failure is kept before lanes that wait for other ranks are told of it: what they then fail
// with is its consequence.
void Executor::abandon(std::exception_ptr failure) {
  {
    const std::scoped_lock lock(mutex_);
    if (!failure_) failure_ = failure;
  }
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    device_.abandon(error.what());
  } catch (...) {
    device_.abandon("it failed");
  }
}

void Executor::abort_all(std::exception_ptr failure) {
  abandon(failure);
  {
    const std::scoped_lock lock(mutex_);
    aborted_ = true;
    released_.notify_all();
  }
  for (auto& completed : completed_) {
    completed.store(kReleased, std::memory_order_release);
    completed.notify_all();
  }
}

RunResult Executor::run(const RunOptions& options) {
  reset(options);
  std::mutex done_mutex;
  std::condition_variable done;
  int running = 0;
  {
    std::vector<std::jthread> threads;
    std::unique_lock lock(done_mutex);
    for (LaneId lane = 0; lane < graph_.lanes; ++lane) {
      if (lane_ops_[static_cast<size_t>(lane)].empty()) continue;
      const auto run_to_its_end = [&, lane] {
        try {
          run_lane(lane);
        } catch (...) {
          abort_all(std::current_exception());
        }
        const std::scoped_lock ended(done_mutex);
        --running;
        done.notify_all();
      };
      // Lanes that run already would wait for ever for one that has no thread.
      try {
        threads.emplace_back(run_to_its_end);
        ++running;
      } catch (...) {
        abort_all(std::current_exception());
        break;
      }
    }
    while (!done.wait_for(lock, kTickPeriod, [&] { return running == 0; })) {
      lock.unlock();
      if (options.tick) options.tick();
      lock.lock();
    }
  }
  drain_after(failure_);
  settle_last_step();
  if (options.tick) options.tick();
  return collect();
}

// The device comes to rest before anybody may free what it works on; the first failure counts.
void Executor::drain_after(std::exception_ptr failure) {
  try {
    device_.drain();
  } catch (...) {
    if (!failure) failure = std::current_exception();
  }
  if (failure) std::rethrow_exception(failure);
  for (LaneId lane = 0; lane < graph_.lanes; ++lane) {
    if (device_.queues(lane)) record_finished(lane);
  }
}

RunResult Executor::run_sequentially(const RunOptions& options) {
  reset(options);
  for (int32_t step = options.first_step; begin_step(step); ++step) {
    for (size_t i = 0; i < graph_.step.ops.size(); ++i) {
      const auto id = static_cast<OpId>(i);
      execute(id, step, graph_.step.ops[i].lane);
      device_.drain();
      finish(id, step);
    }
    if (options.tick) options.tick();
  }
  drain_after(nullptr);
  settle_last_step();
  return collect();
}

void Executor::settle_last_step() {
  if (graph_.commit < 0) return;
  if (device_.commit(started_ + 1)) return device_.drain();
  ++rollbacks_;
  run_once(graph_.repair, 0, static_cast<OpId>(graph_.repair.ops.size()), started_);
}

RunResult Executor::collect() const {
  RunResult result;
  result.last_step = started_;
  result.rollbacks = rollbacks_;
  int64_t previous = 0;
  for (int32_t step = options_.first_step; step <= started_; ++step) {
    const int64_t end = step_end_ps_[static_cast<size_t>(step - options_.first_step)].load();
    result.step_times.push_back({end - previous});
    previous = end;
  }
  Timeline& timeline = result.timeline;
  timeline.steps = std::min(options_.recorded_steps, started_ - options_.first_step + 1);
  timeline.first_step = started_ - timeline.steps + 1;
  if (!result.step_times.empty()) timeline.step_time = median(result.step_times);
  for (const LaneRecord& record : records_) {
    for (const Span& span : record.spans) {
      if (span.step >= timeline.first_step) timeline.spans.push_back(span);
    }
  }
  std::sort(timeline.spans.begin(), timeline.spans.end(), [&](const Span& a, const Span& b) {
    const auto key = [&](const Span& s) {
      return std::tuple(s.begin.ps, graph_.step.ops[static_cast<size_t>(s.op)].lane, s.step, s.op);
    };
    return key(a) < key(b);
  });
  return result;
}

}  // namespace ballast
