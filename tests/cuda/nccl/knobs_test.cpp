// Every knob of a plan of several GPUs, taken away from its default: the ranks have the bits of the
// host device's, or the plan is refused in one line that names a knob. Nothing is left out but
// plans of more ranks than are tried here, which are counted.
#include <cstdio>
#include <string>

#include "sim/graph/build.h"
#include "tests/backend/changed_plans.h"
#include "tests/cuda/nccl/training.h"

namespace ballast::tests {
namespace {

constexpr int64_t kMostRanks = 4;
constexpr int64_t kFewSteps = 3;

class nccl_knobs : public nccl_training {
 protected:
  struct Counts {
    int same = 0, near = 0, refused = 0, illegal = 0, larger = 0;
  };

  void try_plan(const Plan& plan, const std::string& what, Counts& counts) {
    try {
      check(plan, model_);
    } catch (const Error&) {
      ++counts.illegal;  // of any device
      return;
    }
    if (const auto missing = missing_of(plan)) {
      ++counts.refused;
      EXPECT_TRUE(missing->knob.starts_with("plan")) << what << ": " << missing->knob;
      EXPECT_EQ(missing->error().what(), one_line(missing->error().what())) << what;
      return;
    }
    if (rank_count(plan) > kMostRanks) {
      ++counts.larger;
      return;
    }
    train_both(plan, what, counts);
  }

 private:
  std::optional<Missing> missing_of(const Plan& plan) const {
    const Capabilities& cuda = cuda_capabilities(CudaProperties{});
    if (auto missing = first_missing(model_, plan, cuda)) return missing;
    return first_missing(build_to_ask(model_, plan), model_, plan, cuda);
  }
  static std::string one_line(std::string text) {
    std::erase(text, '\n');
    return text;
  }

  // What is wrong with the environment (no such Adam) is so on both.
  void train_both(const Plan& plan, const std::string& what, Counts& counts) {
    std::string refused;
    tiny::Outcome host;
    Plan on_host = plan;
    on_host.numa = NumaBinding::kLocal;  // of a GPU's chip or another, which the host has none of
    try {
      host = tiny::train(model_, on_host, options_, kFewSteps, false);
    } catch (const Error& error) {
      refused = error.what();
    }
    const Trained gpus = train(model_, plan, options_, {}, kFewSteps);
    if (!refused.empty()) {
      ++counts.refused;
      for (const std::string& thrown : gpus.thrown) EXPECT_FALSE(thrown.empty()) << what;
      return;
    }
    for (const std::string& thrown : gpus.thrown) ASSERT_EQ(thrown, "") << what;
    // ZeRO 3 adds sums over ranks of a later micro-batch, which NCCL rounds before.
    const bool adds = plan.zero_stage == 3 && plan.replicas() > 1 && plan.accumulation() > 1;
    ++(adds ? counts.near : counts.same);
    for (const tiny::Outcome& rank : gpus.ranks) {
      EXPECT_TRUE(tiny::same_bits(rank.parameters, gpus.ranks.front().parameters)) << what;
      if (!adds) tiny::expect_same(rank, host, what);
    }
    if (!adds) return;
    for (size_t i = 0; i < host.records.size(); ++i) {
      EXPECT_NEAR(gpus.ranks.front().records[i].loss / host.records[i].loss, 1, 1e-3) << what;
    }
  }

  const Model model_ = tiny::gpt2_model();
  const TrainerOptions options_ = tiny::options_for(kFewSteps);
};

Plan tensor_plan(Plan plan) {
  plan.tensor = plan.devices = 2;
  return plan;
}

// Of ranks that see other data, and split optimizer state and gradients.
Plan zero_plan() {
  Plan plan = tiny::waiting_plan();
  plan.data = plan.devices = 2;
  plan.zero_stage = 2;
  return plan;
}

TEST_F(nccl_knobs, each_away_from_its_default_has_the_hosts_bits_or_is_refused_by_name) {
  dawdle_one_in_ = 0;
  Plan mixed = tensor_plan(zero_plan());
  mixed.devices = 4;
  mixed.tensor_sequence = true;
  Counts counts;
  for (const Plan& base : {tensor_plan(tiny::speculating_plan()), zero_plan(), mixed}) {
    try_plan(base, "as it is", counts);
    tiny::for_every_change(base, [&](const Knob&, const Plan& plan, const std::string& change) {
      try_plan(plan,
               change + " of tensor " + std::to_string(base.tensor) + " data " +
                   std::to_string(base.data),
               counts);
    });
  }
  std::printf(
      "%d plans with the bits of the host's ranks, %d near them, %d refused by name, %d "
      "legal nowhere, %d of more than %d ranks\n",
      counts.same, counts.near, counts.refused, counts.illegal, counts.larger,
      static_cast<int>(kMostRanks));
  EXPECT_GT(counts.same, 100);
  EXPECT_GT(counts.refused, 10);
}

// Two groups of two ranks, which share alike and sum over groups.
TEST_F(nccl_knobs, groups_that_share_alike_have_the_bits_of_the_hosts) {
  const Model model = tiny::gpt2_model();
  const TrainerOptions options = tiny::disturbed_options();
  for (const int64_t zero_stage : {1, 2, 3}) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      Plan plan =
          tiny::plan_of(4, 4, zero_stage, SyncMode::kSpeculate, tiny::Homes::kOptimizerAway, dtype);
      plan.zero_group = 2;
      const tiny::Outcome host = tiny::train(model, plan, options, kSteps, false);
      const Trained gpus = train(model, plan, options);
      for (const std::string& thrown : gpus.thrown) ASSERT_EQ(thrown, "") << zero_stage;
      for (const tiny::Outcome& rank : gpus.ranks) {
        tiny::expect_same(rank, host, "ZeRO " + std::to_string(zero_stage));
      }
    }
  }
}

}  // namespace
}  // namespace ballast::tests
