// Speculation: a commit judges a step, and takes it back, when every update of that step has run;
// and what is brought home are the weights of that step.
#include <cstdio>
#include <gtest/gtest.h>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "sim/graph/build.h"
#include "tests/tiny.h"

namespace ballast {
namespace {

// The operations of the step before that must have finished when the commit starts: of edges, and
// of lanes, which take their operations in order.
std::vector<bool> finished_before_commit(const Graph& graph) {
  const Program& step = graph.step;
  const size_t count = step.ops.size();
  std::vector<OpId> before(count, -1);  // on the same lane; -1: the lane's last of the step before
  std::vector<OpId> last(static_cast<size_t>(graph.lanes), -1);
  for (size_t i = 0; i < count; ++i) {
    OpId& newest = last[static_cast<size_t>(step.ops[i].lane)];
    before[i] = std::exchange(newest, static_cast<OpId>(i));
  }
  // By how many steps before the commit's: its own and the one before.
  std::vector<bool> seen[2] = {std::vector<bool>(count), std::vector<bool>(count)};
  std::vector<std::pair<OpId, int>> open = {{graph.commit, 0}};
  const auto visit = [&](OpId op, int back) {
    if (back > 1 || seen[back][static_cast<size_t>(op)]) return;
    seen[back][static_cast<size_t>(op)] = true;
    open.emplace_back(op, back);
  };
  while (!open.empty()) {
    const auto [op, back] = open.back();
    open.pop_back();
    const auto index = static_cast<size_t>(op);
    for (auto e = step.edge_begin[index]; e < step.edge_begin[index + 1]; ++e) {
      const Edge edge = step.edges[static_cast<size_t>(e)];
      visit(edge.op, back + edge.steps_ahead);
    }
    if (before[index] >= 0) {
      visit(before[index], back);
    } else {
      visit(last[static_cast<size_t>(step.ops[index].lane)], back + 1);
    }
  }
  return seen[1];
}

void expect_all_updates_first(const Graph& graph, const std::string& what) {
  ASSERT_GE(graph.commit, 0) << what;
  const std::vector<bool> finished = finished_before_commit(graph);
  std::vector<bool> stepped(graph.buckets.size());
  for (size_t i = 0; i < graph.step.ops.size(); ++i) {
    const Op& op = graph.step.ops[i];
    if (op.label.bucket < 0) continue;
    const auto bucket = static_cast<size_t>(op.label.bucket);
    if (op.kind == OpKind::kAdam) {
      stepped[bucket] = true;
      EXPECT_TRUE(finished[i]) << what << ": " << describe(op) << " may run beside the commit";
    }
    if (op.kind == OpKind::kUnpack) {
      EXPECT_TRUE(stepped[bucket]) << what << ": " << describe(op) << " comes before its step";
    }
  }
}

struct Shape {
  int64_t stages, chunks, micro_batches;
};
constexpr Shape kShapes[] = {{1, 1, 1}, {1, 1, 3}, {2, 1, 4}, {4, 1, 2}, {4, 1, 6}, {2, 2, 4}};

// Layers whose matrices are cut between buckets, and so between the CPU and the GPU.
Model model_of(bool tied) {
  const tiny::Widths widths{.layers = 4,
                            .hidden = 64,
                            .heads = 4,
                            .kv_heads = 4,
                            .head_size = 16,
                            .ffn = 1088,
                            .vocab = 256,
                            .positions = 16};
  return tied ? tiny::gpt2(widths) : tiny::llama(widths);
}

std::vector<Plan> plans_of(const Shape& shape, int64_t bucket_segments) {
  Plan plan = tiny::waiting_plan({.sequences = shape.micro_batches, .micro_batch = 1},
                                 bucket_segments * kSegment * 4);
  plan.devices = plan.pipeline = shape.stages;
  plan.virtual_pipeline = shape.chunks;
  plan.optimizer.sync = SyncMode::kSpeculate;
  std::vector<Plan> plans;
  for (size_t schedule = 0; schedule < std::size(kPipelineSchedules); ++schedule) {
    plan.pipeline_schedule = static_cast<PipelineSchedule>(schedule);
    for (const int64_t on_gpu : {0, 1, 2, 1000}) {
      plan.optimizer.gpu_buckets = on_gpu;
      for (const double flow : {0.0, 0.5, 1.0}) {
        plan.weights.flow_share = flow;
        for (const CastPlacement cast : {CastPlacement::kGpu, CastPlacement::kCpu}) {
          plan.optimizer.cast = cast;
          plans.push_back(plan);
        }
      }
    }
    if (shape.stages == 1) break;
  }
  return plans;
}

TEST(commit, waits_for_every_update_of_the_step_that_it_judges) {
  int seen = 0;
  for (const bool tied : {false, true}) {
    const Model model = model_of(tied);
    for (const Shape& shape : kShapes) {
      for (const int64_t bucket_segments : {1, 2, 5}) {
        for (const Plan& plan : plans_of(shape, bucket_segments)) {
          expect_all_updates_first(build_to_run(model, plan),
                                   model.name + ", " + std::to_string(shape.stages) +
                                       " stages of " + std::to_string(shape.chunks) + ", " +
                                       std::string(to_string(plan.pipeline_schedule)) + ", " +
                                       std::to_string(*plan.optimizer.gpu_buckets) +
                                       " buckets on the GPU, flow " +
                                       std::to_string(*plan.weights.flow_share));
          ++seen;
        }
      }
    }
  }
  std::printf("%d plans\n", seen);
}

}  // namespace
}  // namespace ballast
