// Plans that are said to have one graph, held against the graphs themselves.
#include "sim/graph/same_graph.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "tests/graph/tiny_plans.h"

namespace ballast {
namespace {

// All that costs, memory and edges follow from.
std::vector<std::string> lines_of(const Graph& graph) {
  std::vector<std::string> lines;
  for (const Tensor& tensor : graph.tensors) {
    lines.push_back(fmt::format("{} {} {} {} {}", describe(tensor), tensor.all_bytes().count,
                                tensor.device, to_string(tensor.place),
                                to_string(tensor.category)));
  }
  for (const Program* program : {&graph.step, &graph.repair}) {
    for (const Op& op : program->ops) {
      std::string line = fmt::format("{} {} lane {}", describe(op), cost_key(op), op.lane);
      for (const Access& access : op.accesses) {
        line += fmt::format(" {}:{}:{}:{}", access.tensor, static_cast<int>(access.role),
                            static_cast<int>(access.mode), access.step_offset);
      }
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

// Of two ranks that share their state, every way to step, with and without what frameworks do.
std::vector<std::pair<Plan, StackFacts>> plans_of_two_ranks() {
  std::vector<std::pair<Plan, StackFacts>> all;
  StackFacts deepspeed;
  deepspeed.accumulates_on_cpu = true;
  deepspeed.copies_gathered_by_tensor = true;
  deepspeed.reduces_whole = true;
  deepspeed.gradients = GradientPrecision::kF32;
  for (const StackFacts& facts : {StackFacts{}, deepspeed}) {
    for (const SyncMode sync : {SyncMode::kWait, SyncMode::kDelay, SyncMode::kSpeculate}) {
      for (const CastPlacement cast : {CastPlacement::kCpu, CastPlacement::kGpu}) {
        for (const double flow_share : {0.0, 1.0}) {
          for (const int64_t micro_batches : {1, 3}) {
            Plan plan = tiny::plan();
            plan.devices = plan.data = 2;
            plan.global_batch = 4 * micro_batches;
            plan.optimizer.sync = sync;
            plan.optimizer.cast = cast;
            plan.weights.flow_share = flow_share;
            all.emplace_back(plan, facts);
          }
        }
      }
    }
  }
  return all;
}

TEST(same_graph, stages_1_and_2_have_one_graph_where_the_gpu_steps_nothing) {
  int held = 0;
  for (auto [plan, facts] : plans_of_two_ranks()) {
    plan.optimizer.gpu_buckets = 0;
    plan.zero_stage = 2;
    ASSERT_EQ(as_built(plan).zero_stage, 1);
    std::vector<std::string> second, first;
    try {
      second = lines_of(build(tiny::model(), plan, facts));
    } catch (const Error&) {
      continue;  // of a combination that no graph has
    }
    first = lines_of(build(tiny::model(), as_built(plan), facts));
    EXPECT_EQ(first, second);
    ++held;
  }
  EXPECT_GE(held, 24);
}

TEST(same_graph, of_one_rank_all_stages_below_3_have_the_graph_of_stage_0) {
  int held = 0;
  for (auto [plan, facts] : plans_of_two_ranks()) {
    plan.devices = plan.data = 1;
    plan.optimizer.gpu_buckets = 0;
    for (const int64_t zero_stage : {1, 2}) {
      plan.zero_stage = zero_stage;
      plan.strategy = "zero-offload";
      const Plan least = as_built(plan);
      ASSERT_EQ(least.zero_stage, 0);
      ASSERT_EQ(least.strategy, "");
      std::vector<std::string> lines;
      try {
        lines = lines_of(build(tiny::model(), plan, facts));
      } catch (const Error&) {
        continue;  // of a combination that no graph has
      }
      EXPECT_EQ(lines_of(build(tiny::model(), least, facts)), lines);
      ++held;
    }
  }
  EXPECT_GE(held, 48);
}

TEST(same_graph, where_the_gpu_steps_a_bucket_they_differ) {
  Plan plan = tiny::plan();
  plan.devices = plan.data = 2;
  plan.global_batch = 4;
  plan.zero_stage = 2;
  plan.optimizer.gpu_buckets = 1;
  EXPECT_EQ(as_built(plan).zero_stage, 2);
  Plan lower = plan;
  lower.zero_stage = 1;
  EXPECT_NE(lines_of(build(tiny::model(), plan)), lines_of(build(tiny::model(), lower)));
  plan.optimizer.gpu_buckets = 0;
  plan.optimizer.placement = OptimizerPlacement::kGpu;
  EXPECT_EQ(as_built(plan).zero_stage, 2);
}

}  // namespace
}  // namespace ballast
