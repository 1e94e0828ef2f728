// How a framework's copies of state fall short of pinned buckets beside the computation.
#include <algorithm>
#include <gtest/gtest.h>

#include "sim/graph/core/edit.h"
#include "sim/graph/report/memory.h"
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

// The same of weights that are cast on the CPU, where gradients are cast on the GPU.
TEST(host_copies, gradients_that_the_gpu_casts_are_pinned_and_hold_up_nothing) {
  StackFacts facts;
  facts.stage3_copies_by_tensor = facts.casts_through_pageable = true;
  facts.sends_wide_gradients = facts.stage3_returns_gradients = facts.accumulates_on_cpu = true;
  Plan plan = on_cpu(CastPlacement::kCpu);
  plan.global_batch = 2 * plan.micro_batch.value();
  for (const int64_t stage : {0, 3}) {
    plan.zero_stage = stage;
    const Graph graph = build(tiny::model(), plan, facts);
    int64_t gradients = 0;
    for (const CopyDirection direction :
         {CopyDirection::kDeviceToHost, CopyDirection::kHostToDevice}) {
      for (const Op* op : copies(graph, direction)) {
        if (op->phase != Phase::kOptimizer || kind_of(op->lane) == LaneKind::kUpload) continue;
        const CopyWork& work = std::get<CopyWork>(op->work);
        EXPECT_EQ(work.host, HostMemory::kPinned);
        EXPECT_EQ(work.calls, 1);
        ++gradients;
      }
    }
    // Of each bucket and micro-batch one out, one sum back, and what is cast.
    EXPECT_EQ(gradients, stage == 3 ? 15 * 5 : 15 * 3);
  }
}

// Gradients on the lane by which they left, and the sums that others are added to.
Bytes returned(const Graph& graph) {
  return tiny::moved(graph, CopyDirection::kHostToDevice, LaneKind::kCopyOut) +
         tiny::moved(graph, CopyDirection::kHostToDevice, LaneKind::kCopyIn);
}

int64_t casts_of_gradients_on_the_gpu(const Graph& graph) {
  return std::count_if(graph.step.ops.begin(), graph.step.ops.end(), [](const Op& op) {
    return op.kind == OpKind::kCast && kind_of(op.lane) == LaneKind::kCopyOut;
  });
}

int64_t casts_of_gradients_on_the_cpu(const Graph& graph) {
  return std::count_if(graph.step.ops.begin(), graph.step.ops.end(), [&](const Op& op) {
    return op.kind == OpKind::kCast && kind_of(op.lane) == LaneKind::kCpu &&
           graph.tensor(op.accesses.front().tensor).kind == TensorKind::kBucketGradient;
  });
}

// Whoever casts the weights: 4 bytes a parameter cross the link, and the CPU casts no gradient.
TEST(host_copies, gradients_are_cast_on_the_gpu_before_they_leave_where_a_framework_does_so) {
  Plan plan = tiny::plan();
  plan.optimizer.placement = OptimizerPlacement::kCpu;
  for (const CastPlacement cast : {CastPlacement::kCpu, CastPlacement::kGpu}) {
    plan.optimizer.cast = cast;
    StackFacts facts;
    const Graph narrow = build(tiny::model(), plan, facts);
    facts.sends_wide_gradients = true;
    const Graph wide = build(tiny::model(), plan, facts);
    const auto buckets = static_cast<int64_t>(wide.buckets.size());
    EXPECT_EQ(tiny::sent(wide), bytes_of(tiny::parameters(wide), DType::kF32));
    EXPECT_EQ(casts_of_gradients_on_the_gpu(wide), buckets);
    EXPECT_EQ(casts_of_gradients_on_the_cpu(wide), 0);
    EXPECT_EQ(casts_of_gradients_on_the_cpu(narrow), cast == CastPlacement::kCpu ? buckets : 0);
    if (cast == CastPlacement::kCpu) {
      EXPECT_GT(tiny::first(narrow, OpKind::kCast), tiny::first(narrow, OpKind::kDecide));
    }
  }
}

// Ranks reduce what they send in the type of the weights: a share is cast once it was scattered.
TEST(host_copies, a_share_is_cast_after_it_was_scattered) {
  Plan plan = tiny::plan();
  plan.devices = plan.data = 4;
  plan.global_batch = 4 * plan.micro_batch.value();
  plan.optimizer.placement = OptimizerPlacement::kCpu;
  plan.optimizer.cast = CastPlacement::kCpu;
  for (const int64_t stage : {1, 2}) {
    plan.zero_stage = stage;
    StackFacts facts;
    const Graph narrow = build(tiny::model(), plan, facts);
    facts.sends_wide_gradients = true;
    const Graph wide = build(tiny::model(), plan, facts);
    EXPECT_EQ(tiny::exchanged(wide, CollectiveKind::kReduceScatter),
              tiny::exchanged(narrow, CollectiveKind::kReduceScatter))
        << stage;
    EXPECT_GT(tiny::exchanged(wide, CollectiveKind::kReduceScatter), Bytes{}) << stage;
    Bytes landed;
    for (const Tensor& tensor : wide.tensors) {
      if (tensor.kind == TensorKind::kBucketGradient) landed += tensor.bytes();
    }
    EXPECT_EQ(tiny::sent(wide), landed) << stage;
    EXPECT_EQ(casts_of_gradients_on_the_gpu(wide), std::ssize(wide.buckets)) << stage;
  }
}

// Stage 3: 2 bytes out and 2 back for each parameter and micro-batch, and 4 out once a step.
TEST(host_copies, stage_3_sends_gradients_out_and_back_in_every_micro_batch) {
  Plan plan = tiny::plan();
  plan.optimizer.placement = OptimizerPlacement::kCpu;
  StackFacts facts;
  facts.sends_wide_gradients = facts.stage3_returns_gradients = facts.accumulates_on_cpu = true;
  for (const int64_t ranks : {1, 4}) {
    for (const int64_t micro_batches : {1, 3}) {
      plan.devices = plan.data = ranks;
      plan.zero_stage = 3;
      plan.global_batch = ranks * micro_batches * plan.micro_batch.value();
      const Graph graph = build(tiny::model(), plan, facts);
      const int64_t count = tiny::parameters(graph);
      const Bytes narrow = bytes_of(count, plan.dtype);
      EXPECT_EQ(tiny::sent(graph), narrow * micro_batches + bytes_of(count, DType::kF32));
      EXPECT_EQ(returned(graph), narrow * micro_batches);
      // Nothing but the sum itself is kept in the type of the weights.
      Bytes sums;
      for (const Tensor& tensor : graph.tensors) {
        const bool sum = tensor.kind == TensorKind::kBucketGradient && tensor.dtype == plan.dtype;
        if (sum) sums += tensor.bytes();
      }
      EXPECT_EQ(sums, narrow);
    }
  }
  const auto on_copy_out = [&] {
    return tiny::moved(build(tiny::model(), plan, facts), CopyDirection::kHostToDevice,
                       LaneKind::kCopyOut);
  };
  plan.zero_stage = 2;
  EXPECT_EQ(on_copy_out(), Bytes{});
  plan.optimizer.sync = SyncMode::kSpeculate;
  EXPECT_EQ(on_copy_out(), Bytes{});
  plan.devices = plan.data = 1;
  plan.global_batch = plan.micro_batch.value();
  EXPECT_GT(on_copy_out(), Bytes{}) << "by stage 3's code";
}

// DeepSpeed allocates it with the optimizer (runtime/zero/stage3.py, grad_partitions_flat_buffer).
TEST(host_copies, the_sum_that_stage_3_keeps_in_cpu_memory_is_there_all_the_time) {
  Plan plan = tiny::plan();
  plan.zero_stage = 3;
  StackFacts facts;
  facts.sends_wide_gradients = facts.stage3_returns_gradients = facts.accumulates_on_cpu = true;
  for (const int64_t micro_batches : {1, 3}) {
    plan.global_batch = micro_batches * plan.micro_batch.value();
    const Graph graph = build(tiny::model(), plan, facts);
    const std::vector<Life> lives = lives_of(graph);
    int64_t sums = 0;
    for (size_t t = 0; t < graph.tensors.size(); ++t) {
      const Tensor& tensor = graph.tensors[t];
      if (tensor.kind != TensorKind::kBucketGradient || tensor.dtype != plan.dtype) continue;
      EXPECT_TRUE(lives[t].carried);
      ++sums;
    }
    EXPECT_EQ(sums, static_cast<int64_t>(graph.buckets.size()));
  }
}

// What the GPU steps of a plan that offloads goes the same way, and nothing of it stays there but
// what the step reads.
TEST(host_copies, stage_3_sends_out_and_back_also_what_the_gpu_steps) {
  Plan plan = tiny::plan();
  plan.zero_stage = 3;
  plan.optimizer.placement = OptimizerPlacement::kCpu;
  plan.optimizer.gpu_buckets = 4;
  StackFacts facts;
  facts.sends_wide_gradients = facts.stage3_returns_gradients = facts.accumulates_on_cpu = true;
  facts.widens_gradients = true;
  for (const SyncMode sync : {SyncMode::kWait, SyncMode::kDelay, SyncMode::kSpeculate}) {
    for (const int64_t micro_batches : {1, 3}) {
      plan.optimizer.sync = sync;
      plan.global_batch = micro_batches * plan.micro_batch.value();
      const Graph graph = build(tiny::model(), plan, facts);
      const int64_t count = tiny::parameters(graph);
      const int64_t on_cpu = tiny::parameters(graph, Site::kCpu);
      EXPECT_LT(on_cpu, count);
      EXPECT_EQ(tiny::sent(graph),
                bytes_of(count, plan.dtype) * micro_batches + bytes_of(on_cpu, DType::kF32));
      for (const Op& op : graph.step.ops) {
        if (op.kind != OpKind::kAdam) continue;
        for (const Access& access : op.accesses) {
          if (access.role == Role::kGradient) {
            EXPECT_EQ(graph.tensor(access.tensor).dtype, DType::kF32);
          }
        }
      }
    }
  }
  plan.optimizer.gpu_buckets = 1000;
  EXPECT_EQ(returned(build(tiny::model(), plan, facts)), Bytes{}) << "nothing is offloaded";
  plan.optimizer.placement = OptimizerPlacement::kGpu;
  EXPECT_EQ(returned(build(tiny::model(), plan, facts)), Bytes{});
}

}  // namespace
}  // namespace ballast
