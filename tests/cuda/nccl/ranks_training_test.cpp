// Whole trainings of ranks that each have a GPU: the CUDA device on threads for streams, NCCL's
// stand-in between them, and the CPU's kernels. With two ranks a sum has one order, so losses,
// norms and parameters have the bits of the host device's ranks; of more, or where a sum is added
// to what is there, they are as near as rounding is.
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/cuda/nccl/training.h"

namespace ballast::tests {
namespace {

using tiny::Homes;
using tiny::kHomes;
using tiny::plan_of;
using tiny::text_of;

using tiny::kSyncs;

TEST_F(nccl_training, two_gpus_have_the_bits_of_two_ranks_of_the_host) {
  const Model model = tiny::gpt2_model();
  const TrainerOptions options = tiny::disturbed_options();
  int trained = 0;
  for (const int64_t zero_stage : {0, 1, 2, 3}) {
    for (const SyncMode sync : kSyncs) {
      for (const Homes homes : kHomes) {
        for (const DType dtype : {DType::kF32, DType::kBf16}) {
          // Numbers that the CPU steps are bf16 on their way; of fp32 the GPU's are enough.
          const bool on_gpu = homes == Homes::kGpu;
          if (!on_gpu && (zero_stage == 0 || dtype == DType::kF32)) continue;
          // ZeRO 3 adds the sums of a second micro-batch to those of the first.
          const int64_t micro_batches = zero_stage == 3 ? 2 : 4;
          const Plan plan = plan_of(2, micro_batches, zero_stage, sync, homes, dtype);
          const tiny::Outcome host = tiny::train(model, plan, options, kSteps, false);
          // Every other one launches runs of operations as recorded graphs.
          TrainerOptions of_gpus = options;
          of_gpus.captures = trained % 2 == 1;
          const Trained gpus = train(model, plan, of_gpus);
          for (const std::string& thrown : gpus.thrown) ASSERT_EQ(thrown, "") << text_of(plan);
          for (const tiny::Outcome& rank : gpus.ranks) {
            tiny::expect_same(rank, host, text_of(plan));
            if (sync == SyncMode::kSpeculate) EXPECT_GE(rank.rollbacks, 2) << text_of(plan);
          }
          ++trained;
        }
      }
    }
  }
  std::printf("%d plans on two GPUs with the bits of the host's ranks over %d steps\n", trained,
              static_cast<int>(kSteps));
}

// Sums of more than one micro-batch, which NCCL rounds before they are added to those before it.
TEST_F(nccl_training, what_zero_3_adds_up_is_as_near_as_rounding) {
  const Model model = tiny::gpt2_model();
  const TrainerOptions options = tiny::disturbed_options();
  double furthest = 0;
  for (const SyncMode sync : kSyncs) {
    const Plan plan = plan_of(2, 4, 3, sync, Homes::kOptimizerAway, DType::kF32);
    const tiny::Outcome host = tiny::train(model, plan, options, kSteps, false);
    const Trained gpus = train(model, plan, options);
    for (const std::string& thrown : gpus.thrown) ASSERT_EQ(thrown, "") << text_of(plan);
    EXPECT_TRUE(tiny::same_bits(gpus.ranks[0].parameters, gpus.ranks[1].parameters));
    EXPECT_FALSE(tiny::same_bits(gpus.ranks[0].parameters, host.parameters));
    furthest = std::max(furthest, tiny::furthest_apart(gpus.ranks[0], host));
  }
  std::printf("ZeRO 3 of two micro-batches: losses at most %.1e from the host's\n", furthest);
}

// Three do not divide the parameters: shares are uneven, and cut through segments.
TEST_F(nccl_training, three_gpus_share_what_does_not_divide) {
  const Model model = tiny::gpt2_model();
  const TrainerOptions options = tiny::disturbed_options();
  for (const int64_t zero_stage : {1, 3}) {
    const Plan plan =
        plan_of(3, 3, zero_stage, SyncMode::kSpeculate, Homes::kOptimizerAway, DType::kBf16);
    // What stands in for NCCL adds in the order of the ranks, as the host does.
    const tiny::Outcome host = tiny::train(model, plan, options, kSteps, false);
    const Trained gpus = train(model, plan, options);
    for (const std::string& thrown : gpus.thrown) ASSERT_EQ(thrown, "") << text_of(plan);
    for (const tiny::Outcome& rank : gpus.ranks) tiny::expect_same(rank, host, text_of(plan));
  }
}

// Of every step and rank the bits that ranks find which share nothing and sum segment by segment in
// the flat order: three ranks, whose shares cut through segments, and two by two that also split
// products, and count once what they have alike.
TEST_F(nccl_training, a_gradient_norm_is_the_same_on_every_rank_however_they_share) {
  const Model model = tiny::gpt2_model();
  const TrainerOptions options = tiny::options_for(kSteps);
  const auto norms_of = [](const tiny::Outcome& outcome) {
    std::vector<double> norms;
    for (const StepRecord& record : outcome.records) norms.push_back(record.gradient_norm);
    return norms;
  };
  for (const int64_t tensor : {1, 2}) {
    std::vector<double> expected;
    for (const Homes homes : {Homes::kGpu, Homes::kOptimizerAway}) {
      for (const int64_t zero_stage : {0, 1, 2, 3}) {
        if (zero_stage == 0 && homes == Homes::kOptimizerAway) continue;  // they share the state
        const int64_t data = tensor == 1 ? 3 : 2;
        Plan plan = plan_of(data, data, zero_stage, SyncMode::kWait, homes, DType::kBf16);
        plan.tensor = tensor;
        plan.devices = data * tensor;
        const Trained gpus = train(model, plan, options);
        for (const std::string& thrown : gpus.thrown) ASSERT_EQ(thrown, "") << text_of(plan);
        if (expected.empty()) expected = norms_of(gpus.ranks.front());
        EXPECT_EQ(std::ssize(expected), kSteps);
        for (const tiny::Outcome& rank : gpus.ranks) {
          EXPECT_EQ(norms_of(rank), expected) << text_of(plan) << ", tensor " << tensor;
        }
      }
    }
  }
}

TEST_F(nccl_training, a_rank_that_fails_ends_the_others_with_its_number) {
  for (const SyncMode sync : kSyncs) {
    for (const int32_t moment : {0, 4}) {
      const auto spoil = [&](int rank, TrainerOptions& own) {
        if (rank != 1) return;
        own.gradient_factor = [moment](int32_t step) {
          if (step == moment) throw Error("the disk", "it is full", "make room");
          return 1.0;
        };
      };
      const Trained gpus =
          train(tiny::gpt2_model(), plan_of(2, 4, 2, sync, Homes::kOptimizerAway, DType::kBf16),
                tiny::options_for(kSteps), spoil);
      EXPECT_EQ(gpus.thrown[1], "the disk: it is full; make room");
      EXPECT_NE(gpus.thrown[0].find("rank 1: the disk: it is full"), std::string::npos)
          << gpus.thrown[0];
    }
  }
}

}  // namespace
}  // namespace ballast::tests
