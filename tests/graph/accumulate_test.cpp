// Gradients of several micro-batches that add up in CPU memory. The tiny model has N = 2344
// parameters; gradients take 2 bytes each.
#include <gtest/gtest.h>

#include "sim/graph/core/edit.h"
#include "sim/graph/report/memory.h"
#include "tests/graph/tiny_plans.h"

namespace ballast {
namespace {

using tiny::moved;

constexpr int64_t kParameters = 2344;

Plan three_micro_batches() {
  Plan plan = tiny::plan();
  plan.global_batch = 6;
  plan.optimizer.cast = CastPlacement::kCpu;
  return plan;
}

// Of three micro-batches each sends its 2 N bytes down, and the second and third fetch the sum.
TEST(accumulate_pass, every_micro_batch_sends_its_gradients_and_all_but_the_first_fetch_the_sum) {
  StackFacts facts;
  facts.accumulates_on_cpu = true;
  const Graph graph = build(tiny::model(), three_micro_batches(), facts);
  const Bytes once{2 * kParameters};
  EXPECT_EQ(moved(graph, CopyDirection::kDeviceToHost, LaneKind::kCopyOut), once * 3);
  EXPECT_EQ(moved(graph, CopyDirection::kHostToDevice, LaneKind::kCopyIn), once * 2);
  const Graph on_gpu = build(tiny::model(), three_micro_batches());
  EXPECT_EQ(moved(on_gpu, CopyDirection::kDeviceToHost, LaneKind::kCopyOut), once);
  EXPECT_EQ(moved(on_gpu, CopyDirection::kHostToDevice, LaneKind::kCopyIn), Bytes{});
}

// Added up on the GPU every gradient is alive from the first micro-batch to the last. Added up on
// the CPU none outlives its micro-batch, and all of them are never there together.
TEST(accumulate_pass, no_gradient_on_the_gpu_outlives_its_micro_batch) {
  StackFacts facts;
  facts.accumulates_on_cpu = true;
  const Graph graph = build(tiny::model(), three_micro_batches(), facts);
  const std::vector<Life> lives = lives_of(graph);
  int64_t seen = 0;
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    if (graph.tensors[t].kind != TensorKind::kGradient || lives[t].first < 0) continue;
    ++seen;
    EXPECT_FALSE(lives[t].carried);
    int16_t of = -1;
    for (OpId i = lives[t].first; i <= lives[t].last; ++i) {
      const int16_t micro_batch = graph.step.ops[static_cast<size_t>(i)].label.micro_batch;
      if (micro_batch < 0) continue;
      if (of < 0) of = micro_batch;
      EXPECT_EQ(micro_batch, of) << describe(graph.tensors[t]);
    }
  }
  const auto modules = static_cast<int64_t>(
      tiny::used(build(tiny::model(), three_micro_batches()), TensorKind::kGradient).size());
  EXPECT_EQ(seen, 3 * modules);
}

// The sum is 2 N bytes of CPU memory more; what a rank of two holds of it is half, and it fetches
// only that half, without a gather.
TEST(accumulate_pass, a_rank_adds_up_its_share) {
  StackFacts facts;
  facts.accumulates_on_cpu = true;
  Plan plan = three_micro_batches();
  plan.devices = plan.data = 2;
  plan.global_batch = 12;
  const Graph graph = build(tiny::model(), plan, facts);
  EXPECT_EQ(moved(graph, CopyDirection::kHostToDevice, LaneKind::kCopyIn), Bytes{2 * kParameters});
  int64_t gathers = 0;
  for (const CollectiveWork& work : tiny::exchanges(graph, Phase::kOptimizer).outside) {
    gathers += work.kind == CollectiveKind::kAllGather;
  }
  EXPECT_EQ(gathers, static_cast<int64_t>(graph.buckets.size()));  // of the stepped weights
}

// The first and the last stage sum the gradient of the embedding that they share.
TEST(accumulate_pass, stages_of_a_pipeline_add_up_theirs) {
  StackFacts facts;
  facts.accumulates_on_cpu = facts.sends_wide_gradients = true;
  Plan plan = three_micro_batches();
  plan.devices = plan.pipeline = 2;
  Model model = tiny::gpt2({.layers = 2});
  ASSERT_TRUE(model.tied_embeddings);
  const auto sums = [&] {
    return moved(build(model, plan, facts), CopyDirection::kHostToDevice, LaneKind::kCopyIn);
  };
  EXPECT_GT(sums(), Bytes{});
  facts.accumulates_on_cpu = false;
  EXPECT_EQ(sums(), Bytes{});
}

TEST(accumulate_pass, one_micro_batch_or_an_optimizer_on_the_gpu_adds_nothing_up) {
  StackFacts facts;
  facts.accumulates_on_cpu = true;
  Plan plan = three_micro_batches();
  plan.optimizer.placement = OptimizerPlacement::kGpu;
  EXPECT_EQ(build(tiny::model(), plan, facts).step.ops.size(),
            build(tiny::model(), plan).step.ops.size());
  plan = three_micro_batches();
  plan.global_batch = 2;
  EXPECT_EQ(build(tiny::model(), plan, facts).step.ops.size(),
            build(tiny::model(), plan).step.ops.size());
}

}  // namespace
}  // namespace ballast
