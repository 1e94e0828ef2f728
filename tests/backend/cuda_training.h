// Trainings on the CUDA device with threads for streams (thread_cuda.h), and a device that notes
// what the executor asks of it.
#pragma once

#include <fmt/format.h>
#include <memory>
#include <string>
#include <utility>

#include "backend/cuda/device_cuda.h"
#include "tests/backend/thread_cuda.h"
#include "tests/backend/tiny_training.h"

namespace ballast::tests {

inline std::unique_ptr<CudaDevice> thread_cuda_device(const std::shared_ptr<CudaLog>& log,
                                                      const ThreadCudaOptions& options,
                                                      const Training& training,
                                                      const DeviceOptions& with,
                                                      const ControlState& state) {
  auto runtime = std::make_unique<ThreadCuda>(log, options);
  auto math =
      std::make_unique<ThreadCudaMath>(training, *runtime, RankPlace{}, options.before_module);
  const Bytes before = runtime->free_memory();
  return std::make_unique<CudaDevice>(training, with, state,
                                      CudaParts{std::move(runtime), std::move(math), before});
}

// `options` with the CUDA device on threads.
inline TrainerOptions on_thread_cuda(TrainerOptions options, const ThreadCudaOptions& cuda,
                                     std::shared_ptr<CudaLog> log = std::make_shared<CudaLog>()) {
  options.make_device = [cuda, log](const Training& training, const DeviceOptions& with,
                                    const ControlState& state) {
    return thread_cuda_device(log, cuda, training, with, state);
  };
  return options;
}

// Notes each call between "begin WHAT" and "end WHAT" marks in the runtime's log: WHAT is
// "step OP STEP", "repair OP STEP", "follow OP BEFORE STEP" or "commit STEP".
class MarkedDevice : public TrainingDevice {
 public:
  MarkedDevice(const Graph& graph, std::shared_ptr<CudaLog> log,
               std::unique_ptr<TrainingDevice> device)
      : graph_(graph), log_(std::move(log)), device_(std::move(device)) {}

  bool queues(LaneId lane) const override { return device_->queues(lane); }
  void execute(const Program& program, OpId id, int32_t step) override {
    const char* kind = &program == &graph_.repair ? "repair" : "step";
    const Mark mark(*this, fmt::format("{} {} {}", kind, id, step));
    device_->execute(program, id, step);
  }
  std::span<const OpId> handed_over_with(OpId id) const override {
    return device_->handed_over_with(id);
  }
  void follow(const Program& program, OpId id, OpId before, int32_t step) override {
    const char* kind = &program == &graph_.repair ? "repair-follow" : "follow";
    const Mark mark(*this, fmt::format("{} {} {} {}", kind, id, before, step));
    device_->follow(program, id, before, step);
  }
  bool commit(int32_t step) override {
    const Mark mark(*this, fmt::format("commit {}", step));
    return device_->commit(step);
  }
  std::vector<FinishedOperation> take_finished(LaneId lane) override {
    return device_->take_finished(lane);
  }
  void drain() override {
    const Mark mark(*this, "drain");
    device_->drain();
  }
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

 private:
  struct Mark {
    Mark(MarkedDevice& d, std::string w) : device(d), what(std::move(w)) { add("begin "); }
    ~Mark() { add("end "); }
    void add(const char* which) const {
      device.log_->add({CudaCall::kMark, "", nullptr, 0, which + what, "", {}});
    }
    MarkedDevice& device;
    std::string what;
  };
  const Graph& graph_;
  std::shared_ptr<CudaLog> log_;
  std::unique_ptr<TrainingDevice> device_;
};

}  // namespace ballast::tests
