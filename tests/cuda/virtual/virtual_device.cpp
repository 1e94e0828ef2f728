#include "tests/cuda/virtual/virtual_device.h"

#include <algorithm>
#include <fmt/format.h>

#include "sim/base/error.h"

namespace ballast::tests {

VirtualDevice::VirtualDevice(const Setting& setting, std::unique_ptr<TrainingDevice> device)
    : at_(setting),
      device_(std::move(device)),
      lanes_(static_cast<size_t>(setting.graph.lanes)),
      completed_(setting.graph.step.ops.size(), -1) {
  const std::vector<Op>& ops = at_.graph.step.ops;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (kind_of(ops[i].lane) == LaneKind::kCompute) {
      at_.runtime.name(describe(ops[i]), doing(at_.graph.step, static_cast<OpId>(i), 0));
    }
    lanes_[static_cast<size_t>(ops[i].lane)].ops.push_back(static_cast<OpId>(i));
  }
}

// What a rollback repeats, and what settles the last step, is done by other threads than those of
// the lanes: it takes its time, but nobody keeps it beside them.
bool VirtualDevice::is_of_the_run(const Program& program, OpId id, int32_t step) const {
  if (&program != &at_.graph.step || step > at_.last_step) return false;
  return !rolls_back_ || id == at_.graph.commit;
}

bool VirtualDevice::are_kept(OpId id, int32_t step) const {
  const Program& program = at_.graph.step;
  const auto index = static_cast<size_t>(id);
  for (auto e = program.edge_begin[index]; e < program.edge_begin[index + 1]; ++e) {
    const Edge edge = program.edges[static_cast<size_t>(e)];
    if (completed_[static_cast<size_t>(edge.op)] < step - edge.steps_ahead) return false;
  }
  return true;
}

bool VirtualDevice::may_begin(const Lane& lane) const {
  const OpId id = lane.ops[lane.at];
  const std::span<const OpId> behind = device_->handed_over_with(id);
  return are_kept(id, lane.step) && std::all_of(behind.begin(), behind.end(), [&](OpId each) {
           return are_kept(each, lane.step);
         });
}

void VirtualDevice::start() {
  running_ = true;
  int counted = 0;
  for (Lane& lane : lanes_) {
    lane.ended = lane.ops.empty();
    if (lane.ended) continue;
    lane.waits = lane.had_to = !may_begin(lane);
    counted += lane.waits ? 0 : 1;
  }
  at_.clock->count(counted);
}

void VirtualDevice::arrive(OpId id, int32_t step) {
  VirtualClock::Lock lock = at_.clock->lock();
  if (!running_) start();
  const Op& op = at_.graph.step.ops[static_cast<size_t>(id)];
  Lane& lane = lanes_[static_cast<size_t>(op.lane)];
  CHECK(lane.ops[lane.at] == id && lane.step == step);
  if (std::exchange(lane.arrived, true)) return;
  VirtualClock::counts_me() = true;
  if (std::exchange(lane.waits, false)) {
    too_early_.push_back(fmt::format("{} of step {}", describe(op), step));
    at_.clock->count(1);
  }
  if (!lane.had_to) return;
  at_.clock->wait_until(lock, at_.clock->now() + at_.machine.handover);
}

void VirtualDevice::leave(OpId id, int32_t step) {
  const VirtualClock::Lock lock = at_.clock->lock();
  completed_[static_cast<size_t>(id)] = step;
  Lane& mine = lanes_[static_cast<size_t>(at_.graph.step.ops[static_cast<size_t>(id)].lane)];
  mine.arrived = false;
  if (++mine.at == mine.ops.size()) {
    mine.at = 0;
    ++mine.step;
  }
  mine.ended = mine.step > at_.last_step;
  mine.waits = mine.had_to = !mine.ended && !may_begin(mine);
  int counted = mine.ended || mine.waits ? -1 : 0;
  for (Lane& other : lanes_) {
    if (&other == &mine || !other.waits || !may_begin(other)) continue;
    other.waits = false;
    ++counted;
  }
  if (mine.ended) VirtualClock::counts_me() = false;
  at_.clock->count(counted);
}

Doing VirtualDevice::doing(const Program& program, OpId id, int32_t step) const {
  const bool repairs = &program == &at_.graph.repair;
  const CostTable& costs = repairs ? at_.machine.repair : at_.machine.step;
  const auto index = static_cast<size_t>(id);
  return {&program.ops[index], id, step, &costs.ops[index],
          repairs || !is_of_the_run(program, id, step)};
}

void VirtualDevice::execute(const Program& program, OpId id, int32_t step) {
  const bool of_the_run = is_of_the_run(program, id, step);
  const LaneId lane = program.ops[static_cast<size_t>(id)].lane;
  if (of_the_run && id == at_.graph.commit) end_rollback();
  if (of_the_run) arrive(id, step);
  {
    const VirtualCuda::Handing handing(at_.runtime, doing(program, id, step));
    if (queues(lane)) {
      device_->execute(program, id, step);
    } else {
      work_on_cpu(program, id, step);
    }
  }
  if (of_the_run && !queues(lane)) leave(id, step);
}

// Of what a machine does that computes nothing only the decision is real: its norms are zeros.
void VirtualDevice::work_on_cpu(const Program& program, OpId id, int32_t step) {
  const bool decides = program.ops[static_cast<size_t>(id)].kind == OpKind::kDecide;
  at_.runtime.work_on_cpu([&] {
    if (at_.computes || decides) device_->execute(program, id, step);
  });
}

void VirtualDevice::follow(const Program& program, OpId id, OpId before, int32_t step_of_before) {
  const Op& op = program.ops[static_cast<size_t>(id)];
  const bool repeated = rolls_back_ || &program == &at_.graph.repair;
  const Lane& lane = lanes_[static_cast<size_t>(op.lane)];
  if (!repeated && lane.step <= at_.last_step) arrive(id, lane.step);
  const VirtualCuda::Handing handing(at_.runtime, doing(program, id, lane.step));
  if (at_.follows) device_->follow(program, id, before, step_of_before);
}

bool VirtualDevice::commit(int32_t step) {
  const OpId id = at_.graph.commit;
  const bool of_the_run = id >= 0 && step <= at_.last_step;
  if (of_the_run) arrive(id, step);
  const bool accepted = device_->commit(step);
  if (accepted || !of_the_run) return accepted;
  const VirtualClock::Lock lock = at_.clock->lock();
  judged_ = true;
  VirtualClock::counts_me() = false;
  at_.clock->count(-1);
  return false;
}

// The executor drains the device when all that came before the fence is done.
void VirtualDevice::drain() {
  {
    const VirtualClock::Lock lock = at_.clock->lock();
    if (judged_) rolls_back_ = true;
  }
  device_->drain();
}

void VirtualDevice::end_rollback() {
  const VirtualClock::Lock lock = at_.clock->lock();
  if (!std::exchange(judged_, false)) return;
  rolls_back_ = false;
  VirtualClock::counts_me() = true;
  at_.clock->count(1);
}

std::vector<FinishedOperation> VirtualDevice::take_finished(LaneId lane) {
  const Lane& mine = lanes_[static_cast<size_t>(lane)];
  if (!mine.arrived) return device_->take_finished(lane);
  const OpId id = mine.ops[mine.at];
  std::vector<FinishedOperation> finished;
  {
    const VirtualCuda::Handing handing(at_.runtime, doing(at_.graph.step, id, mine.step));
    finished = device_->take_finished(lane);
  }
  leave(id, mine.step);
  return finished;
}

}  // namespace ballast::tests
