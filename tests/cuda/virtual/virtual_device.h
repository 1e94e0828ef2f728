// The CUDA device on a machine that is played (virtual_cuda.h), under the executor's own threads.
//
// The executor's threads wait for each other where the clock does not see it. So this device, which
// stands between the executor and the real one, keeps the executor's rule beside it: a lane takes
// its operations in program order, and waits until those that its next one has edges from, or what
// is handed over with that, have been handed over or done. A lane that must wait by that rule is
// not counted; one that comes although it must wait is noted, as one that never comes holds up time
// for good. Will not do: order anything, or run several times.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/train/training_device.h"
#include "tests/cuda/virtual/virtual_cuda.h"

namespace ballast::tests {

class VirtualDevice : public TrainingDevice {
 public:
  struct Setting {
    const Graph& graph;
    const PlayedMachine& machine;
    std::shared_ptr<VirtualClock> clock;
    VirtualCuda& runtime;  // of `device`
    bool computes = true;
    int32_t last_step = 0;  // of the run, which begins with step 0
    bool follows = true;    // else no stream waits for another: what must show
  };
  VirtualDevice(const Setting& setting, std::unique_ptr<TrainingDevice> device);

  bool queues(LaneId lane) const override { return device_->queues(lane); }
  void execute(const Program& program, OpId id, int32_t step) override;
  std::span<const OpId> handed_over_with(OpId id) const override {
    return device_->handed_over_with(id);
  }
  void follow(const Program& program, OpId id, OpId before, int32_t step_of_before) override;
  bool commit(int32_t step) override;
  std::vector<FinishedOperation> take_finished(LaneId lane) override;
  void abandon(const std::string& why) override { device_->abandon(why); }
  void drain() override;
  UpdateControl& control() override { return device_->control(); }
  void read(TensorId tensor, int copy, int64_t begin, std::span<std::byte> to) override {
    device_->read(tensor, copy, begin, to);
  }
  void write(TensorId tensor, int copy, int64_t begin, std::span<const std::byte> from) override {
    device_->write(tensor, copy, begin, from);
  }
  void spread_weights() override { device_->spread_weights(); }
  void restore_partials(int32_t step) override { device_->restore_partials(step); }
  double evaluate(int64_t batch, int32_t step) override { return device_->evaluate(batch, step); }
  std::vector<MemoryUse> memory() override { return device_->memory(); }

  // Operations that the executor began before what they must wait for; none where it is right.
  const std::vector<std::string>& too_early() const { return too_early_; }

 private:
  struct Lane {
    std::vector<OpId> ops;
    size_t at = 0;  // of the operation that it does, or does next
    int32_t step = 0;
    bool waits = false;    // by the executor's rule
    bool had_to = false;   // before this operation
    bool arrived = false;  // at this operation
    bool ended = false;
  };

  bool is_of_the_run(const Program& program, OpId id, int32_t step) const;
  bool may_begin(const Lane& lane) const;
  bool are_kept(OpId id, int32_t step) const;
  void start();
  void arrive(OpId id, int32_t step);
  void leave(OpId id, int32_t step);
  void end_rollback();
  Doing doing(const Program& program, OpId id, int32_t step) const;
  void work_on_cpu(const Program& program, OpId id, int32_t step);

  Setting at_;
  std::unique_ptr<TrainingDevice> device_;
  // What follows is guarded by the clock's lock.
  std::vector<Lane> lanes_;
  std::vector<int32_t> completed_;  // by operation: the last step of which it was handed over
  bool running_ = false;
  bool judged_ = false;  // and refused: what lanes have begun ends, then it is taken back
  std::atomic<bool> rolls_back_{false};
  std::vector<std::string> too_early_;
};

}  // namespace ballast::tests
