// Trainings of two ranks with the CUDA kernels themselves, emulated, and NCCL's stand-in between
// them: exchanges come to the arrays that the kernels work on.
#include "tests/cuda/nccl/ranks.h"

#include <cmath>
#include <cstdio>
#include <mutex>
#include <string>
#include <vector>

#include "backend/cuda/device_cuda.h"
#include "backend/cuda/transformer_cuda.h"
#include "tests/backend/emulated/immediate_cuda.h"
#include "tests/backend/emulated/proportional_steps.h"
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
  void tell_loss(const Op& op, const OperationArguments& arguments, int32_t step, std::byte* told,
                 CudaStream stream) override {
    const std::scoped_lock lock(turn());
    math_->tell_loss(op, arguments, step, told, stream);
  }
  void merge_loss(const Op& op, const OperationArguments& arguments, int32_t step,
                  const std::byte* told, CudaStream stream) override {
    const std::scoped_lock lock(turn());
    math_->merge_loss(op, arguments, step, told, stream);
  }
  void norm_apart(const Op& op, const OperationArguments& arguments, int32_t step, float* gradient,
                  CudaStream stream) override {
    const std::scoped_lock lock(turn());
    math_->norm_apart(op, arguments, step, gradient, stream);
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
    options.make_device = [this, &ranks](const Training& training, const DeviceOptions& with,
                                         const ControlState& state) {
      auto runtime = std::make_unique<ImmediateCuda>();
      auto math = std::make_unique<CudaTransformer>(
          training, place_of(training.plan, ranks.rank()), *runtime,
          std::make_unique<PlainProducts>(),
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
    const auto ranks = static_cast<int>(rank_count(plan));
    std::vector<tiny::Outcome> outcomes(static_cast<size_t>(ranks));
    expect_none_throws(ranks, [&](Communicator& host, RankGpu&) {
      outcomes[static_cast<size_t>(host.rank())] =
          tiny::train(model, plan, on_gpus(options, host), kTrained, true);
    });
    for (const tiny::Outcome& other : outcomes) {
      EXPECT_TRUE(tiny::same_bits(outcomes[0].parameters, other.parameters));
    }
    return outcomes[0];
  }

  // The way that training goes, and what of it the host's way is apart; losses of every step.
  static void expect_near(const tiny::Outcome& gpus, const tiny::Outcome& host,
                          const std::vector<float>& begin, DType dtype, const std::string& what) {
    double difference = 0, way = 0;
    ASSERT_EQ(gpus.parameters.size(), host.parameters.size());
    for (size_t i = 0; i < begin.size(); ++i) {
      difference += std::pow(gpus.parameters[i] - host.parameters[i], 2);
      way += std::pow(host.parameters[i] - begin[i], 2);
    }
    EXPECT_GT(way, 0);
    EXPECT_LT(std::sqrt(difference / way), dtype == DType::kF32 ? 1e-4 : 3e-2) << what;
    ASSERT_EQ(gpus.records.size(), host.records.size());
    for (size_t i = 0; i < host.records.size(); ++i) {
      EXPECT_NEAR(gpus.records[i].loss, host.records[i].loss, dtype == DType::kF32 ? 1e-5 : 2e-2)
          << what;
      EXPECT_NEAR(gpus.records[i].gradient_norm / host.records[i].gradient_norm, 1,
                  dtype == DType::kF32 ? 1e-4 : 3e-2)
          << what;
    }
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
  const TrainerOptions options = tiny::proportional_steps();
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const std::vector<float> begin = Trainer(model, two_ranks(0, dtype), options).parameters();
    const tiny::Outcome host = tiny::train(model, two_ranks(0, dtype), options, kTrained, false);
    tiny::Outcome reference;
    for (const int64_t zero_stage : {0, 1, 2, 3}) {
      tiny::Outcome gpus = train(model, two_ranks(zero_stage, dtype), options);
      if (zero_stage == 0) reference = gpus;
      EXPECT_TRUE(tiny::same_bits(gpus.parameters, reference.parameters)) << zero_stage;
      expect_near(gpus, host, begin, dtype, "ZeRO " + std::to_string(zero_stage));
    }
  }
}

// Heads, columns and ids of the vocabulary on two ranks, of an odd vocabulary too, whose last rank
// has a row that is nobody's.
TEST_F(EmulatedRanks, that_split_products_follow_the_hosts) {
  const tiny::Widths widths = {.hidden = 32,
                               .heads = 2,
                               .kv_heads = 2,
                               .head_size = 16,
                               .ffn = 64,
                               .vocab = 251,
                               .positions = 16};
  const TrainerOptions options = tiny::proportional_steps();
  int trained = 0;
  for (const Model& model : {tiny::gpt2(widths), tiny::llama(widths)}) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      for (const bool tensor_sequence : {false, true}) {
        for (const int64_t loss_chunks : {1, 3}) {
          Plan plan = two_ranks(0, dtype);
          plan.data = 1;
          plan.tensor = 2;
          plan.tensor_sequence = tensor_sequence;
          plan.loss_chunks = loss_chunks;
          const std::vector<float> begin = Trainer(model, plan, options).parameters();
          const tiny::Outcome host = tiny::train(model, plan, options, kTrained, false);
          expect_near(train(model, plan, options), host, begin, dtype,
                      model.name + " " + std::string(to_string(dtype)) +
                          (tensor_sequence ? " norms by token" : ""));
          ++trained;
        }
      }
    }
  }
  std::printf("%d plans on two emulated GPUs that split products\n", trained);
}

}  // namespace
}  // namespace ballast::tests
