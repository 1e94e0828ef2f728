// The busiest rank of experts (Plan::routing_percent), counted by hand.
#include <gtest/gtest.h>

#include "tests/graph/tiny_plans.h"

namespace ballast {
namespace {

// 8 tokens, two of four experts each, on two ranks of two experts: 16 rows a rank were they even.
Plan plan_of(int64_t percent) {
  Plan plan = tiny::plan();
  plan.devices = plan.data = plan.expert = 2;
  plan.global_batch *= 2;
  plan.routing_percent = percent;
  return plan;
}

struct Work {
  int64_t rows_up = 0, rows_down = 0, summed_rows = 0, sent = 0, kept = 0;
  bool operator==(const Work&) const = default;
};

// Of the only layer.
Work work_of(const Model& model, int64_t percent) {
  const Graph graph = build_plain(model, plan_of(percent));
  Work work;
  for (const Op& op : graph.step.ops) {
    const auto* product = std::get_if<GemmWork>(&op.work);
    if (product != nullptr && product->experts > 0) {
      if (op.phase == Phase::kBackwardWeight) work.summed_rows = product->k;
      if (op.phase == Phase::kForward) {
        (op.label.module == ModuleKind::kFc1 ? work.rows_up : work.rows_down) = product->m;
      }
    }
    if (kind_of(op.lane) == LaneKind::kExpertNetwork) work.sent += bytes_of(op.work).count;
    if (op.phase == Phase::kForward && op.label.module == ModuleKind::kActivation) {
      for (const Access& access : op.accesses) {
        if (access.role == Role::kInput) work.kept = graph.tensor(access.tensor).elements;
      }
    }
  }
  return work;
}

TEST(routing, the_busiest_rank_has_as_many_more_rows_up_to_all) {
  const Model model = tiny::mixtral({.layers = 1});
  const Work even = work_of(model, 100);
  // Four exchanges of 16 rows of 8 values of 2 bytes; fc1 keeps 16 rows of 2 x 32 values.
  EXPECT_EQ(even, (Work{16, 16, 16, 4 * 256, 16 * 64}));
  EXPECT_EQ(work_of(model, 150), (Work{24, 24, 24, 4 * 384, 24 * 64}));
  // No rank gets more than both choices of all tokens: twice as many.
  EXPECT_EQ(work_of(model, 200), (Work{32, 32, 32, 4 * 512, 32 * 64}));
  EXPECT_EQ(work_of(model, 1000), work_of(model, 200));
}

// Shared experts have a token's rows however it is routed: 3 routed of 16 columns beside 2 shared.
TEST(routing, what_is_shared_grows_by_nothing) {
  Model model = tiny::deepseek_v3({.layers = 1});
  model.first_dense_layers = 0;
  const Work even = work_of(model, 100);
  const Work more = work_of(model, 150);
  EXPECT_EQ(even.rows_up, 24);
  EXPECT_EQ(more.rows_up, 36);
  EXPECT_EQ(even.kept, 8 * 2 * (3 * 16 + 2 * 16));
  EXPECT_EQ(more.kept, 12 * 2 * 3 * 16 + 8 * 2 * 2 * 16);
}

}  // namespace
}  // namespace ballast
