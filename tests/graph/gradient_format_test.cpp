// Gradients of parameters in 32 bits (Plan::gradients), counted: memory of the GPU and the CPU,
// what crosses the link and the network. The tiny model has N = 2344 parameters in bf16.
#include <gtest/gtest.h>

#include "sim/graph/core/edit.h"
#include "sim/graph/report/memory.h"
#include "tests/graph/tiny_plans.h"

namespace ballast {
namespace {

constexpr int64_t kTinyParameters = 2344;

Plan in_32_bits(CastPlacement cast = CastPlacement::kGpu, int64_t micro_batches = 3) {
  Plan plan = tiny::plan();
  plan.global_batch = *plan.micro_batch * micro_batches;
  plan.optimizer.cast = cast;
  plan.gradients = GradientFormat::kF32;
  return plan;
}

Plan in_16_bits(CastPlacement cast = CastPlacement::kGpu) {
  Plan plan = in_32_bits(cast);
  plan.gradients = GradientFormat::kAsWeights;
  return plan;
}

Bytes copied(const Graph& graph, CopyDirection direction) {
  Bytes bytes;
  for (const Op& op : graph.step.ops) {
    const auto* work = std::get_if<CopyWork>(&op.work);
    const bool state = work != nullptr && op.phase == Phase::kOptimizer && op.label.bucket >= 0;
    if (!state || holds_norms(graph, op)) continue;
    if (work->direction == direction) bytes += work->bytes;
  }
  return bytes;
}

Bytes moved(const Graph& graph, OpKind kind) {
  Bytes bytes;
  for (const Op& op : graph.step.ops) {
    if (op.kind == kind) bytes += std::get<BucketWork>(op.work).moved;
  }
  return bytes;
}

TEST(gradient_format, in_32_bits_a_parameter_takes_two_more_bytes_of_the_gpu) {
  const Graph as_weights = build(tiny::model(), in_16_bits());
  const Graph in_32 = build(tiny::model(), in_32_bits());
  EXPECT_EQ(tiny::bytes(as_weights, TensorKind::kGradient), Bytes{2 * kTinyParameters});
  EXPECT_EQ(tiny::bytes(in_32, TensorKind::kGradient), Bytes{4 * kTinyParameters});
  EXPECT_EQ(as_weights.step.ops.size(), in_32.step.ops.size());
  const auto hbm = static_cast<size_t>(Place::kHbm);
  EXPECT_GT(in_32.arenas.size[hbm], as_weights.arenas.size[hbm]);
  // Reads 2 or 4 and writes 4.
  EXPECT_EQ(moved(as_weights, OpKind::kPack), Bytes{6 * kTinyParameters});
  EXPECT_EQ(moved(in_32, OpKind::kPack), Bytes{8 * kTinyParameters});
  // So do products that make them: 2 or 4 bytes of each weight, three times.
  const auto made = [](const Graph& graph) {
    Bytes bytes;
    for (const Op& op : graph.step.ops) {
      if (op.phase == Phase::kBackwardWeight) bytes += bytes_of(op.work);
    }
    return bytes;
  };
  int64_t in_products = 0;
  for (const Module& module : modules_of(tiny::model())) {
    for (const Product& product : products_of(tiny::model(), module.kind, module.layer)) {
      in_products += product.in * product.out;
    }
  }
  EXPECT_EQ(made(in_32) - made(as_weights), Bytes{3 * 2 * in_products});
  // In fp32 they have this type anyway.
  Plan plan = in_16_bits();
  plan.dtype = DType::kF32;
  const Graph before = build(tiny::model(), plan);
  plan.gradients = GradientFormat::kF32;
  EXPECT_EQ(build(tiny::model(), plan).arenas.size, before.arenas.size);
}

// Cast by the CPU, 2 bytes of a gradient leave and are cast there; 4 leave as they are. Weights
// return as before.
TEST(gradient_format, in_32_bits_gradients_cross_the_link_so_whoever_casts) {
  const Graph as_weights = build(tiny::model(), in_16_bits(CastPlacement::kCpu));
  const Graph in_32 = build(tiny::model(), in_32_bits(CastPlacement::kCpu));
  EXPECT_EQ(copied(as_weights, CopyDirection::kDeviceToHost), Bytes{2 * kTinyParameters});
  EXPECT_EQ(copied(in_32, CopyDirection::kDeviceToHost), Bytes{4 * kTinyParameters});
  for (const Graph* graph : {&as_weights, &in_32}) {
    EXPECT_EQ(copied(*graph, CopyDirection::kHostToDevice), Bytes{2 * kTinyParameters});
  }
  EXPECT_EQ(tiny::bytes(as_weights, TensorKind::kBucketGradient), Bytes{2 * kTinyParameters});
  EXPECT_EQ(tiny::bytes(in_32, TensorKind::kBucketGradient), Bytes{4 * kTinyParameters});
  EXPECT_EQ(tiny::bytes(as_weights, TensorKind::kBucketGradientFp32), Bytes{4 * kTinyParameters});
  EXPECT_EQ(tiny::bytes(in_32, TensorKind::kBucketGradientFp32), Bytes{});
  // Of each bucket the gradient was cast, and the weights still are.
  const auto buckets = static_cast<int64_t>(in_32.buckets.size());
  EXPECT_EQ(tiny::count(as_weights, OpKind::kCast), 2 * buckets);
  EXPECT_EQ(tiny::count(in_32, OpKind::kCast), buckets);
  EXPECT_EQ(copied(build(tiny::model(), in_32_bits()), CopyDirection::kDeviceToHost),
            copied(build(tiny::model(), in_16_bits()), CopyDirection::kDeviceToHost));
}

// Ranks give each other half of 2 or 4 bytes a parameter; the GPU's Adam reads as many.
TEST(gradient_format, in_32_bits_ranks_exchange_and_the_gpu_steps_twice_the_bytes) {
  const auto summed = [](Plan plan, int64_t zero_stage) {
    plan.devices = plan.data = 2;
    plan.global_batch *= 2;
    plan.zero_stage = zero_stage;
    plan.optimizer.placement = OptimizerPlacement::kGpu;
    Bytes bytes;
    for (const Op& op : build(tiny::model(), plan).step.ops) {
      const auto* work = std::get_if<CollectiveWork>(&op.work);
      const bool sums = work != nullptr && work->kind != CollectiveKind::kAllGather;
      if (sums) bytes += work->bytes;
    }
    return bytes;
  };
  for (const int64_t zero_stage : {0, 1, 2, 3}) {
    const Bytes once = summed(in_16_bits(), zero_stage);
    EXPECT_GT(once, Bytes{}) << zero_stage;
    EXPECT_EQ(summed(in_32_bits(), zero_stage), once * 2) << zero_stage;
  }
  Plan on_gpu = in_16_bits();
  on_gpu.optimizer.placement = OptimizerPlacement::kGpu;
  const Bytes before = moved(build(tiny::model(), on_gpu), OpKind::kAdam);
  on_gpu.gradients = GradientFormat::kF32;
  EXPECT_EQ(moved(build(tiny::model(), on_gpu), OpKind::kAdam),
            before + Bytes{2 * kTinyParameters});
}

// What a framework adds up in CPU memory has the plan's format too: three micro-batches send 4
// bytes down, and two fetch them. A framework that keeps no 32-bit state has no such gradients.
TEST(gradient_format, frameworks_that_add_up_elsewhere_obey_and_those_without_32_bits_do_not) {
  StackFacts facts;
  facts.accumulates_on_cpu = true;
  const Graph graph = build(tiny::model(), in_32_bits(CastPlacement::kCpu), facts);
  EXPECT_EQ(copied(graph, CopyDirection::kDeviceToHost), Bytes{3 * 4 * kTinyParameters});
  EXPECT_EQ(copied(graph, CopyDirection::kHostToDevice), Bytes{(2 * 4 + 2) * kTinyParameters});
  Plan on_gpu = in_32_bits();
  on_gpu.optimizer.placement = OptimizerPlacement::kGpu;
  StackFacts pure;
  pure.pure_16_bit = true;
  EXPECT_EQ(tiny::bytes(build(tiny::model(), on_gpu, pure), TensorKind::kGradient),
            Bytes{2 * kTinyParameters});
}

}  // namespace
}  // namespace ballast
