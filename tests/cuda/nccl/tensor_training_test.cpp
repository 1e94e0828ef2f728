// Whole trainings of ranks that split products, each with a GPU: heads, columns and the vocabulary
// of each, sums over ranks in the tensor lane's stream. What stands in for NCCL adds in the order
// of the ranks, as the host does, and the kernels are the CPU's: losses, norms and parameters have
// the bits of the host device's ranks.
#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "tests/backend/split_training.h"
#include "tests/cuda/nccl/training.h"

namespace ballast::tests {
namespace {

using tiny::Degrees;
using tiny::Homes;

class nccl_tensor : public nccl_training {
 protected:
  // Names of the lanes whose collectives a rank enqueued, one after another.
  static std::vector<std::string> order_of(CudaLog& log) {
    const std::scoped_lock lock(log.mutex);
    std::vector<std::string> order;
    for (const NotedCall& call : log.calls) {
      if (call.call == CudaCall::kKernel && call.what == "NCCL") order.push_back(call.stream);
    }
    return order;
  }
};

struct Case {
  Model model;
  Degrees degrees;
  SyncMode sync = SyncMode::kWait;
  Homes homes = Homes::kGpu;
  DType dtype = DType::kBf16;
  int64_t loss_chunks = 1;
};

std::vector<Case> cases() {
  const Model gpt2 = tiny::gpt2_model(), llama = tiny::llama_model();
  // Two ranks of 128 and 127 ids, of which the last has one row that is nobody's.
  Model odd = tiny::gpt2_model();
  odd.vocab = 255;
  std::vector<Case> all;
  for (const SyncMode sync : tiny::kSyncs) {
    for (const Homes homes : tiny::kHomes) {
      const bool on_gpu = homes == Homes::kGpu;
      all.push_back({gpt2, {.tensor = 2}, sync, homes});
      all.push_back({llama, {.tensor = 2, .tensor_sequence = true}, sync, homes});
      all.push_back({gpt2,
                     {.tensor = 2, .data = 2, .zero_stage = on_gpu ? 1 : 2},
                     sync,
                     homes,
                     DType::kBf16});
      all.push_back(
          {gpt2, {.tensor = 2, .data = 2, .tensor_sequence = true, .zero_stage = 3}, sync, homes});
    }
  }
  all.push_back({gpt2, {.tensor = 4}, SyncMode::kSpeculate});
  all.push_back({gpt2, {.tensor = 4, .tensor_sequence = true}});
  all.push_back({odd, {.tensor = 2}, SyncMode::kWait, Homes::kGpu, DType::kF32});
  all.push_back({odd,
                 {.tensor = 2, .data = 2, .tensor_sequence = true, .zero_stage = 1},
                 SyncMode::kSpeculate,
                 Homes::kOptimizerAway});
  all.push_back({llama, {.tensor = 2}, SyncMode::kWait, Homes::kGpu, DType::kF32, 3});
  all.push_back({odd,
                 {.tensor = 2, .tensor_sequence = true},
                 SyncMode::kSpeculate,
                 Homes::kAllAway,
                 DType::kBf16,
                 3});
  all.push_back({gpt2, {.tensor = 2}, SyncMode::kSpeculate, Homes::kGpu, DType::kF16});
  return all;
}

Plan plan_of(const Case& one) {
  Plan plan = tiny::plan_of(one.degrees, one.sync, one.homes, one.dtype);
  plan.loss_chunks = one.loss_chunks;
  // ZeRO 3 adds the sums of a second micro-batch to those of the first, rounded once more.
  if (one.degrees.zero_stage == 3) plan.micro_batch = plan.global_batch / plan.data;
  return plan;
}

std::string text_of(const Case& one) {
  return one.model.name + " " + tiny::text_of(one.degrees) + std::string(to_string(one.sync)) +
         " " + std::string(to_string(one.dtype)) + " homes " +
         std::to_string(static_cast<int>(one.homes)) + " pieces of the loss " +
         std::to_string(one.loss_chunks);
}

TEST_F(nccl_tensor, gpus_that_split_products_have_the_bits_of_the_hosts_ranks) {
  const TrainerOptions options = tiny::disturbed_options();
  size_t orders = 0;
  TrainerOptions of_gpus = options;
  for (const Case& one : cases()) {
    const std::string what = text_of(one);
    const Plan plan = plan_of(one);
    const tiny::Outcome host = tiny::train(one.model, plan, options, kSteps, false);
    // Every other one launches runs of operations as recorded graphs.
    of_gpus.captures = !of_gpus.captures;
    const Trained gpus = train(one.model, plan, of_gpus);
    for (const std::string& thrown : gpus.thrown) ASSERT_EQ(thrown, "") << what;
    for (const tiny::Outcome& rank : gpus.ranks) {
      tiny::expect_same(rank, host, what);
      if (one.sync == SyncMode::kSpeculate) EXPECT_GE(rank.rollbacks, 2) << what;
    }
    const std::vector<std::string> first = order_of(*gpus.logs.front());
    EXPECT_FALSE(first.empty()) << what;
    for (const auto& log : gpus.logs) EXPECT_EQ(order_of(*log), first) << what;
    if (std::set(first.begin(), first.end()).size() > 1) ++orders;
  }
  std::printf(
      "%zu plans with the bits of the host's ranks; in %zu of them several lanes' "
      "collectives, in one order on all ranks\n",
      cases().size(), orders);
  EXPECT_GT(orders, 10u);
}

}  // namespace
}  // namespace ballast::tests
