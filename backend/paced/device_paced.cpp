#include "backend/paced/device_paced.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace ballast {

const Capabilities& paced_capabilities() {
  static const Capabilities kTable = Capabilities("paced").carries_out_everything();
  return kTable;
}

PacedDevice::PacedDevice(const Graph& graph, PacedMachine machine, PacedOptions options)
    : graph_(graph),
      machine_(std::move(machine)),
      options_(std::move(options)),
      pacer_(
          graph.lanes, machine_.rates,
          options_.ranks != nullptr ? options_.ranks->epoch() : std::chrono::steady_clock::now()),
      step_records_(graph.step.ops.size()),
      repair_records_(graph.repair.ops.size()),
      lanes_(static_cast<size_t>(graph.lanes)),
      judged_(std::numeric_limits<int32_t>::min()) {
  CHECK(std::isfinite(options_.slow_down) && options_.slow_down > 0);
  CHECK(machine_.step.ops.size() == graph.step.ops.size());
  CHECK(machine_.repair.ops.size() == graph.repair.ops.size());
}

Duration PacedDevice::slowed(Duration duration) const { return duration * options_.slow_down; }

PacedDevice::Records& PacedDevice::records_of(const Program& program) {
  return &program == &graph_.repair ? repair_records_ : step_records_;
}

// Whether it is forgiven.
bool PacedDevice::count_lateness(Duration late) {
  ++lateness_.operations;
  if (late > options_.forgiven) {
    ++lateness_.charged_operations;
    lateness_.charged += late;
    return false;
  }
  lateness_.forgiven += late;
  lateness_.longest_forgiven = std::max(lateness_.longest_forgiven, late);
  return true;
}

// The due time of its release, if the executor was not late by more than is forgiven, else now.
Instant PacedDevice::begin_of(const Program& program, OpId id, int32_t step, Duration handover) {
  const std::scoped_lock lock(mutex_);
  const auto index = static_cast<size_t>(id);
  const Record& lane = lanes_[static_cast<size_t>(program.ops[index].lane)];
  Instant released = lane.due_end;
  Instant returned = lane.returned;
  for (auto e = program.edge_begin[index]; e < program.edge_begin[index + 1]; ++e) {
    const Edge edge = program.edges[static_cast<size_t>(e)];
    const int32_t needed = step - edge.steps_ahead;
    if (needed < 0) continue;
    const Record& other =
        records_of(program)[static_cast<size_t>(edge.op)][static_cast<size_t>(needed % kSteps)];
    if (other.step != needed) continue;
    released = std::max(released, other.due_end);
    returned = std::max(returned, other.returned);
  }
  const bool had_to_wait = released > lane.due_end;
  if (!count_lateness(pacer_.now() - returned)) released = pacer_.now();
  return had_to_wait ? released + handover : released;
}

void PacedDevice::execute(const Program& program, OpId id, int32_t step) {
  const auto index = static_cast<size_t>(id);
  CHECK(paced_capabilities().carry_out(program.ops[index], graph_));
  const CostTable& costs = &program == &graph_.repair ? machine_.repair : machine_.step;
  const OpCost& cost = costs.ops[index];
  const LaneId lane = program.ops[index].lane;
  Instant begin = begin_of(program, id, step, slowed(cost.handover));
  const auto* exchange = std::get_if<CollectiveWork>(&program.ops[index].work);
  // Messages between stages stay in the one graph that has all of them.
  if (options_.ranks != nullptr && exchange != nullptr &&
      kind_of(lane) != LaneKind::kPipelineNetwork) {
    begin = options_.ranks->meet(
        {&program == &graph_.repair, id, step, exchange->stride, exchange->ranks}, options_.rank,
        begin);
  }
  const auto demands = std::span(cost.demands).first(static_cast<size_t>(cost.demand_count));
  const Instant due_end = pacer_.run(lane, {begin, slowed(cost.alone), demands});

  const std::scoped_lock lock(mutex_);
  const Record record = {step, due_end, pacer_.now()};
  records_of(program)[index][static_cast<size_t>(std::max(step, 0) % kSteps)] = record;
  lanes_[static_cast<size_t>(lane)] = record;
}

bool PacedDevice::commit(int32_t step) {
  if (graph_.commit >= 0) execute(graph_.step, graph_.commit, step);
  {
    const std::scoped_lock lock(mutex_);
    if (step <= judged_) return true;
    judged_ = step;
  }
  return !options_.verdict || options_.verdict(step);
}

Lateness PacedDevice::lateness() const {
  const std::scoped_lock lock(mutex_);
  return lateness_;
}

Timeline at_full_speed(Timeline timeline, double slow_down) {
  CHECK(slow_down > 0);
  const auto scaled = [&](int64_t ps) { return std::llround(static_cast<double>(ps) / slow_down); };
  for (Span& span : timeline.spans) {
    span.begin.ps = scaled(span.begin.ps);
    span.end.ps = scaled(span.end.ps);
  }
  timeline.step_time.ps = scaled(timeline.step_time.ps);
  return timeline;
}

}  // namespace ballast
