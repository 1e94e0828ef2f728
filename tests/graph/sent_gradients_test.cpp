// What frameworks do otherwise to gradients that leave for CPU memory: a host that waits for them,
// and one that casts them, gradients that are sent twice or looked through, ranks that reduce all
// of what they share. (DeepSpeed, by version: sim/spec/stack.h and the sources of profiles/stacks.)
#include <algorithm>
#include <gtest/gtest.h>

#include "sim/graph/core/edit.h"
#include "sim/graph/report/memory.h"
#include "tests/graph/tiny_plans.h"

namespace ballast {
namespace {

Plan offloaded(int64_t stage, int64_t micro_batches = 1) {
  Plan plan = tiny::plan();
  plan.optimizer.placement = OptimizerPlacement::kCpu;
  plan.zero_stage = stage;
  plan.global_batch = micro_batches * plan.micro_batch.value();
  return plan;
}

// As DeepSpeed does at every version.
StackFacts deepspeed() {
  StackFacts facts;
  facts.sends_wide_gradients = facts.stage3_returns_gradients = facts.accumulates_on_cpu = true;
  facts.stage3_copies_by_tensor = facts.casts_through_pageable = facts.widens_gradients = true;
  facts.keeps_gradient_buffer = true;
  return facts;
}

// Operations that the next computation waits for although it reads nothing of theirs.
int64_t waited_for(const Graph& graph, OpKind kind) {
  return std::count_if(graph.step.ops.begin(), graph.step.ops.end(), [&](const Op& op) {
    return op.kind == kind && kind_of(op.lane) != LaneKind::kCompute &&
           std::any_of(op.accesses.begin(), op.accesses.end(), [&](const Access& access) {
             return access.mode == AccessMode::kWrite && is_token(graph.tensor(access.tensor));
           });
  });
}

// Gradients in one memory and of one type that are there all the time.
Bytes kept_gradients(const Graph& graph, Place place, DType type) {
  const std::vector<Life> lives = lives_of(graph);
  Bytes bytes;
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    const bool gradient =
        tensor.kind == TensorKind::kBucketGradient || tensor.kind == TensorKind::kReduced;
    const bool kept = gradient && tensor.place == place && tensor.dtype == type;
    if (kept && lives[t].carried) bytes += tensor.bytes();
  }
  return bytes;
}

// The backward of the layers before goes on only when a bucket's gradients have landed. The last
// bucket is that of what no backward follows.
TEST(sent_gradients, stage_3_of_a_host_that_waits_computes_nothing_meanwhile) {
  StackFacts facts = deepspeed();
  for (const int64_t stage : {2, 3}) {
    for (const Stage3Sending sending : {Stage3Sending::kAhead, Stage3Sending::kWaited}) {
      facts.stage3_sending = sending;
      const Graph graph = build(tiny::model(), offloaded(stage), facts);
      const bool waits = stage == 3 && sending == Stage3Sending::kWaited;
      const auto buckets = static_cast<int64_t>(graph.buckets.size());
      const int64_t held = waited_for(graph, OpKind::kCopy);
      EXPECT_EQ(held > 0, waits) << stage;
      if (waits) EXPECT_GE(held, buckets - 2);
      EXPECT_LE(held, buckets);
    }
  }
}

// 2 bytes out and back to the sum, 2 out once more by way of pageable memory, and casts on the CPU
// that stand before any verdict.
TEST(sent_gradients, a_host_that_casts_does_so_as_they_land) {
  StackFacts facts = deepspeed();
  facts.stage3_sending = Stage3Sending::kCastByHost;
  for (const CastPlacement cast : {CastPlacement::kCpu, CastPlacement::kGpu}) {
    Plan plan = offloaded(3);
    plan.optimizer.cast = cast;
    const Graph graph = build(tiny::model(), plan, facts);
    EXPECT_EQ(tiny::sent(graph), bytes_of(tiny::parameters(graph), plan.dtype) * 2);
    int64_t casts = 0, pageable = 0;
    const size_t decided = tiny::first(graph, OpKind::kDecide);
    for (size_t i = 0; i < graph.step.ops.size(); ++i) {
      const Op& op = graph.step.ops[i];
      const bool of_gradient =
          op.kind == OpKind::kCast && kind_of(op.lane) == LaneKind::kCpu &&
          graph.tensor(op.accesses.front().tensor).kind == TensorKind::kBucketGradient;
      if (of_gradient) {
        EXPECT_LT(i, decided);
        ++casts;
      }
      const auto* copy = std::get_if<CopyWork>(&op.work);
      const bool out = copy != nullptr && kind_of(op.lane) == LaneKind::kCopyOut;
      pageable += out && copy->host == HostMemory::kPageable;
    }
    EXPECT_EQ(casts, std::ssize(graph.buckets));
    EXPECT_EQ(pageable, std::ssize(graph.buckets));
    EXPECT_GT(waited_for(graph, OpKind::kCast), 0);
  }
}

// 8 bytes out and none back, whoever steps the rest on the GPU; the sum is there all the same, of
// every bucket. Of several micro-batches it is used.
TEST(sent_gradients, what_speculates_may_send_twice_and_nothing_back) {
  StackFacts facts = deepspeed();
  facts.speculative_sending = SpeculativeSending::kTwice;
  for (const int64_t on_gpu : {0, 4}) {
    Plan plan = offloaded(3);
    plan.optimizer.sync = SyncMode::kSpeculate;
    plan.optimizer.gpu_buckets = on_gpu;
    const Graph graph = build(tiny::model(), plan, facts);
    EXPECT_EQ(tiny::sent(graph), bytes_of(tiny::parameters(graph, Site::kCpu), DType::kF32) * 2)
        << on_gpu;
    EXPECT_EQ(tiny::moved(graph, CopyDirection::kHostToDevice, LaneKind::kCopyOut), Bytes{});
    EXPECT_EQ(kept_gradients(graph, Place::kDram, plan.dtype),
              bytes_of(tiny::parameters(graph), plan.dtype));
    plan.global_batch = 2 * plan.micro_batch.value();
    const Graph several = build(tiny::model(), plan, facts);
    EXPECT_GT(tiny::moved(several, CopyDirection::kHostToDevice, LaneKind::kCopyOut), Bytes{});
    plan.optimizer.sync = SyncMode::kWait;
    plan.global_batch = plan.micro_batch.value();
    const Graph waiting = build(tiny::model(), plan, facts);
    EXPECT_EQ(tiny::sent(waiting),
              bytes_of(tiny::parameters(waiting), plan.dtype) +
                  bytes_of(tiny::parameters(waiting, Site::kCpu), DType::kF32));
  }
}

TEST(sent_gradients, what_speculates_may_wait_for_a_bucket_and_copy_it_before_its_step) {
  StackFacts facts = deepspeed();
  Plan plan = offloaded(3);
  plan.optimizer.sync = SyncMode::kSpeculate;
  EXPECT_EQ(waited_for(build(tiny::model(), plan, facts), OpKind::kCopy), 0);
  facts.speculative_sending = SpeculativeSending::kWaited;
  facts.step_copy_bytes = 8;
  const Graph graph = build(tiny::model(), plan, facts);
  EXPECT_GT(waited_for(graph, OpKind::kCopy), 0);
  Bytes copied;
  for (const Op& op : graph.step.ops) {
    const bool on_cpu = op.kind == OpKind::kScale && kind_of(op.lane) == LaneKind::kCpu;
    if (on_cpu) copied += std::get<BucketWork>(op.work).moved;
  }
  EXPECT_EQ(copied, Bytes{8 * tiny::parameters(graph)});
}

// Stages below 3 look at what they send, in a pass of their own whose answer the host reads.
TEST(sent_gradients, a_host_that_looks_for_infinities_waits_below_stage_3) {
  StackFacts facts = deepspeed();
  facts.sent_norm_bytes = 18;
  facts.sent_overflow_bytes = 36;
  for (const int64_t stage : {1, 2, 3}) {
    const Graph graph = build(tiny::model(), offloaded(stage), facts);
    Bytes moved;
    for (const Op& op : graph.step.ops) {
      if (op.kind == OpKind::kSumOfSquares) moved += std::get<BucketWork>(op.work).moved;
    }
    EXPECT_EQ(moved, Bytes{(stage < 3 ? 18 + 36 : 18) * tiny::parameters(graph)}) << stage;
    EXPECT_EQ(waited_for(graph, OpKind::kSumOfSquares) > 0, stage < 3) << stage;
    EXPECT_EQ(waited_for(graph, OpKind::kCopy), 0) << stage;
  }
}

// What the CPU steps like what the GPU does.
TEST(sent_gradients, ranks_that_reduce_all_do_so_also_of_what_the_cpu_steps) {
  for (const int64_t stage : {1, 2}) {
    Plan plan = offloaded(stage);
    plan.devices = plan.data = 4;
    plan.global_batch = 4 * plan.micro_batch.value();
    StackFacts facts = deepspeed();
    const Graph shares = build(tiny::model(), plan, facts);
    facts.reduces_whole = true;
    const Graph whole = build(tiny::model(), plan, facts);
    EXPECT_GT(tiny::exchanged(shares, CollectiveKind::kReduceScatter), Bytes{});
    EXPECT_EQ(tiny::exchanged(whole, CollectiveKind::kAllReduce),
              tiny::exchanged(shares, CollectiveKind::kReduceScatter));
    EXPECT_EQ(tiny::exchanged(whole, CollectiveKind::kReduceScatter), Bytes{});
    EXPECT_EQ(tiny::sent(whole), tiny::sent(shares));
  }
}

// Of what the GPU steps beside: DeepSpeed allocates it with the optimizer (runtime/zero/stage3.py,
// initialize_optimizer_states).
TEST(sent_gradients, wide_gradients_of_what_the_gpu_steps_are_there_all_the_time) {
  StackFacts facts = deepspeed();
  Plan plan = offloaded(3);
  plan.optimizer.gpu_buckets = 4;
  for (const bool kept : {false, true}) {
    facts.keeps_gradient_buffer = kept;
    const Graph graph = build(tiny::model(), plan, facts);
    const Bytes wide = bytes_of(tiny::parameters(graph, Site::kGpu), DType::kF32);
    EXPECT_EQ(kept_gradients(graph, Place::kHbm, DType::kF32), kept ? wide : Bytes{});
  }
}

}  // namespace
}  // namespace ballast
