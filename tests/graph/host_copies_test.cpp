// How a framework's copies of state fall short of pinned buckets beside the computation.
#include <gtest/gtest.h>

#include "sim/graph/core/edit.h"
#include "tests/graph/tiny_plans.h"

namespace ballast {
namespace {

Plan on_cpu(CastPlacement cast) {
  Plan plan = tiny::plan();
  plan.optimizer.cast = cast;
  return plan;
}

// Copies of weights and gradients; norms leave on their own.
std::vector<const Op*> copies(const Graph& graph, CopyDirection direction) {
  std::vector<const Op*> found;
  for (const Op& op : graph.step.ops) {
    const auto* work = std::get_if<CopyWork>(&op.work);
    if (work == nullptr || op.phase == Phase::kForward || holds_norms(graph, op)) continue;
    if (work->direction == direction) found.push_back(&op);
  }
  return found;
}

int64_t pageable(const Graph& graph) {
  int64_t count = 0;
  for (const CopyDirection direction :
       {CopyDirection::kDeviceToHost, CopyDirection::kHostToDevice}) {
    for (const Op* op : copies(graph, direction)) {
      count += std::get<CopyWork>(op->work).host == HostMemory::kPageable;
    }
  }
  return count;
}

// The tiny model has 6 modules with parameters in each of 2 layers and 3 outside, of one bucket
// each: 15 copies down and 15 up.
TEST(host_copies, what_the_cpu_casts_is_pageable_and_what_the_gpu_casts_is_not) {
  StackFacts facts;
  const Graph own = build(tiny::model(), on_cpu(CastPlacement::kCpu), facts);
  EXPECT_EQ(pageable(own), 0);
  facts.casts_through_pageable = true;
  const Graph cpu = build(tiny::model(), on_cpu(CastPlacement::kCpu), facts);
  EXPECT_EQ(pageable(cpu), 2 * 15);
  EXPECT_EQ(pageable(build(tiny::model(), on_cpu(CastPlacement::kGpu), facts)), 0);
}

// One bucket of everything: as many calls as it has modules. Alone it is one call.
TEST(host_copies, stage_3_makes_a_call_for_every_tensor_of_a_bucket) {
  Plan plan = on_cpu(CastPlacement::kCpu);
  plan.zero_stage = 3;
  plan.optimizer.bucket_bytes = {int64_t{1} << 30};
  StackFacts facts;
  for (const bool by_tensor : {false, true}) {
    facts.stage3_copies_by_tensor = facts.casts_through_pageable = by_tensor;
    const Graph graph = build(tiny::model(), plan, facts);
    ASSERT_EQ(graph.buckets.size(), 1U);
    const auto modules = static_cast<int64_t>(graph.buckets.front().pieces.size());
    EXPECT_GT(modules, 1);
    for (const Op* op : copies(graph, CopyDirection::kDeviceToHost)) {
      EXPECT_EQ(std::get<CopyWork>(op->work).calls, by_tensor ? modules : 1);
    }
  }
}

// The first computation after each gradient's copy has it among its predecessors, directly: the
// copy of a bucket of stage 3 runs while nothing else does.
TEST(host_copies, stage_3_computes_nothing_while_a_tensor_is_copied) {
  Plan plan = on_cpu(CastPlacement::kCpu);
  plan.zero_stage = 3;
  StackFacts facts;
  facts.stage3_copies_by_tensor = facts.casts_through_pageable = true;
  const Graph graph = build(tiny::model(), plan, facts);
  const Program& step = graph.step;
  int64_t held = 0;
  for (size_t i = 0; i + 1 < step.ops.size(); ++i) {
    const auto* work = std::get_if<CopyWork>(&step.ops[i].work);
    if (work == nullptr || work->host != HostMemory::kPageable) continue;
    for (size_t next = i + 1; next < step.ops.size(); ++next) {
      if (kind_of(step.ops[next].lane) != LaneKind::kCompute) continue;
      bool waits = false;
      for (int32_t e = step.edge_begin[next]; e < step.edge_begin[next + 1]; ++e) {
        const Edge& edge = step.edges[static_cast<size_t>(e)];
        const bool this_step = edge.steps_ahead == 0 && edge.op >= static_cast<OpId>(i);
        waits =
            waits || (this_step && step.ops[static_cast<size_t>(edge.op)].lane == step.ops[i].lane);
      }
      EXPECT_TRUE(waits) << describe(step.ops[next]) << " after " << describe(step.ops[i]);
      ++held;
      break;
    }
  }
  EXPECT_GT(held, 2);
}

// Without the fact uploads stand between the steps of the buckets; with it behind all of them, and
// each reads what the last one leaves.
TEST(host_copies, weights_that_return_whole_return_after_the_last_step) {
  Plan plan = on_cpu(CastPlacement::kGpu);
  StackFacts facts;
  for (const bool whole : {false, true}) {
    facts.returns_weights_whole = whole;
    const Graph graph = build(tiny::model(), plan, facts);
    size_t last_step = 0, first_upload = graph.step.ops.size();
    for (size_t i = 0; i < graph.step.ops.size(); ++i) {
      const Op& op = graph.step.ops[i];
      if (op.kind == OpKind::kAdam) last_step = i;
      if (kind_of(op.lane) == LaneKind::kUpload) first_upload = std::min(first_upload, i);
    }
    EXPECT_EQ(first_upload > last_step, whole);
    if (!whole) continue;
    const int32_t b = graph.step.ops[last_step].label.bucket;
    const TensorId left = graph.buckets[static_cast<size_t>(b)].master;
    for (const Op* op : copies(graph, CopyDirection::kHostToDevice)) {
      EXPECT_TRUE(std::any_of(op->accesses.begin(), op->accesses.end(),
                              [&](const Access& access) { return access.tensor == left; }));
    }
  }
}

}  // namespace
}  // namespace ballast
