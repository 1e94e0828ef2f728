// Trainings of two ranks with the CUDA kernels themselves, emulated, and NCCL's stand-in between
// them: exchanges come to the arrays that the kernels work on.
#include "tests/cuda/nccl/ranks.h"

#include <array>
#include <cmath>
#include <mutex>

#include "backend/cuda/device_cuda.h"
#include "backend/cuda/transformer_cuda.h"
#include "tests/backend/emulated/immediate_cuda.h"
#include "tests/backend/tiny_training.h"

namespace ballast::tests {
namespace {

// The emulation runs one kernel of the process at a time.
class KernelsInTurn : public CudaMath {
 public:
  explicit KernelsInTurn(std::unique_ptr<CudaMath> math) : math_(std::move(math)) {}
  void module(const Op& op, const OperationArguments& arguments, int32_t step,
              CudaStream stream) override {
    const std::scoped_lock lock(turn());
    math_->module(op, arguments, step, stream);
  }
  void loss(const Op& op, const OperationArguments& arguments, int32_t step, const Loss& loss,
            CudaStream stream) override {
    const std::scoped_lock lock(turn());
    math_->loss(op, arguments, step, loss, stream);
  }
  void cast(const CastRange& range, CudaStream stream) override {
    const std::scoped_lock lock(turn());
    math_->cast(range, stream);
  }
  void sums(const SumRange& range, CudaStream stream) override {
    const std::scoped_lock lock(turn());
    math_->sums(range, stream);
  }
  void add(const Addition& addition, CudaStream stream) override {
    const std::scoped_lock lock(turn());
    math_->add(addition, stream);
  }
  void adam(const kernels::AdamArrays& arrays, const kernels::AdamConstants& constants,
            CudaStream stream) override {
    const std::scoped_lock lock(turn());
    math_->adam(arrays, constants, stream);
  }
  void recorded_adam(const kernels::cuda::RecordedStep& step, kernels::cuda::RecordedPart part,
                     CudaStream stream) override {
    const std::scoped_lock lock(turn());
    math_->recorded_adam(step, part, stream);
  }

 private:
  static std::mutex& turn() {
    static std::mutex one;
    return one;
  }
  std::unique_ptr<CudaMath> math_;
};

class EmulatedRanks : public NcclOnThreads {
 protected:
  static constexpr int kTrained = 2;  // steps

  EmulatedRanks() {
    reset(false, {[](void*, void (*work)(void*), void* data) { work(data); }});
  }

  TrainerOptions on_gpus(TrainerOptions options, Communicator& ranks) {
    options.ranks = &ranks;
    options.make_device = [this](const Training& training, const DeviceOptions& with,
                                 const ControlState& state) {
      auto runtime = std::make_unique<ImmediateCuda>();
      auto math = std::make_unique<CudaTransformer>(
          training, *runtime, std::make_unique<PlainProducts>(),
          std::make_unique<CudaAttention>(*runtime, OpenedAttention{nullptr, ""},
                                          AttentionMemory{}));
      const Bytes before = runtime->free_memory();
      return std::make_unique<CudaDevice>(
          training, with, state,
          CudaParts{std::move(runtime), std::make_unique<KernelsInTurn>(std::move(math)), before,
                    functions_});
    };
    return options;
  }

  tiny::Outcome train(const Model& model, const Plan& plan, const TrainerOptions& options) {
    std::array<tiny::Outcome, 2> outcomes;
    expect_none_throws(2, [&](Communicator& host, RankGpu&) {
      outcomes[static_cast<size_t>(host.rank())] =
          tiny::train(model, plan, on_gpus(options, host), kTrained, true);
    });
    EXPECT_TRUE(tiny::same_bits(outcomes[0].parameters, outcomes[1].parameters));
    return outcomes[0];
  }
};

Plan two_ranks(int64_t zero_stage, DType dtype) {
  Plan plan = tiny::wait_plan(dtype);
  plan.data = plan.devices = 2;
  plan.optimizer.placement = OptimizerPlacement::kGpu;
  plan.zero_stage = zero_stage;
  plan.global_batch = 2;
  plan.micro_batch = 1;
  return plan;
}

// Kernels add up in another order than the host, as with one GPU; among themselves all ways to
// split have the same bits.
TEST_F(EmulatedRanks, follow_the_hosts_and_have_the_same_bits_however_they_share) {
  const Model model =
      tiny::gpt2({.hidden = 32, .head_size = 16, .ffn = 64, .vocab = 256, .positions = 16});
  TrainerOptions options = tiny::options_for(10);
  options.optimizer.learning_rate = {3, 3, 0, 10};
  options.optimizer.epsilon = 10;  // steps are proportional to gradients
  options.optimizer.weight_decay = 0;
  options.optimizer.clip_norm = 0;
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const std::vector<float> begin = Trainer(model, two_ranks(0, dtype), options).parameters();
    const tiny::Outcome host = tiny::train(model, two_ranks(0, dtype), options, kTrained, false);
    tiny::Outcome reference;
    for (const int64_t zero_stage : {0, 1, 2, 3}) {
      tiny::Outcome gpus = train(model, two_ranks(zero_stage, dtype), options);
      if (zero_stage == 0) reference = gpus;
      EXPECT_TRUE(tiny::same_bits(gpus.parameters, reference.parameters)) << zero_stage;
      double difference = 0, way = 0;
      ASSERT_EQ(gpus.parameters.size(), host.parameters.size());
      for (size_t i = 0; i < begin.size(); ++i) {
        difference += std::pow(gpus.parameters[i] - host.parameters[i], 2);
        way += std::pow(host.parameters[i] - begin[i], 2);
      }
      EXPECT_GT(way, 0);
      EXPECT_LT(std::sqrt(difference / way), dtype == DType::kF32 ? 1e-4 : 3e-2) << zero_stage;
      ASSERT_EQ(gpus.records.size(), host.records.size());
      for (size_t i = 0; i < host.records.size(); ++i) {
        EXPECT_NEAR(gpus.records[i].loss, host.records[i].loss, dtype == DType::kF32 ? 1e-5 : 2e-2);
      }
    }
  }
}

}  // namespace
}  // namespace ballast::tests
