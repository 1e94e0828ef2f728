// What a framework's copies and its own optimizer take: pageable memory, calls, threads.
#include <gtest/gtest.h>

#include "tests/engine/costed.h"
#include "tests/engine/tiny_machine.h"

namespace ballast {
namespace {

using tests::cost_with;
using tests::Costed;
using tests::flat;
using tests::tiny_machine;

Costed framework_cost(const Op& op, const Machine& machine) {
  return cost_with(op, machine, tests::Usage{});
}

Op copy_to_gpu(int64_t bytes) {
  Op op;
  op.kind = OpKind::kCopy;
  op.phase = Phase::kOptimizer;
  op.lane = lane_of(0, LaneKind::kCopyIn);
  op.work = CopyWork{Bytes{bytes}, CopyDirection::kHostToDevice};
  return op;
}

Op cpu_adam(int64_t elements) {
  Op op;
  op.kind = OpKind::kAdam;
  op.phase = Phase::kOptimizer;
  op.lane = lane_of(0, LaneKind::kCpu);
  op.work = BucketWork{elements, DType::kF32, DType::kF32, Site::kCpu, Bytes{28 * elements}};
  return op;
}

// 1 MB from pageable memory at half of 10 GB/s: 200 us, and 2 us of latency for each call.
TEST(FrameworkCost, pageable_memory_and_every_further_call_slow_a_copy_down) {
  Op op = copy_to_gpu(1'000'000);
  CopyWork& work = std::get<CopyWork>(op.work);
  work.host = HostMemory::kPageable;
  EXPECT_NEAR(framework_cost(op, tiny_machine()).us(), 202, 1e-6);
  work.calls = 4;
  EXPECT_NEAR(framework_cost(op, tiny_machine()).us(), 208, 1e-6);
}

// 1 GB/s up to 1 kB, 10 GB/s from 1 MB: a copy of 1 MB in 1000 calls runs at the rate of 1 kB.
TEST(FrameworkCost, a_call_has_the_rate_of_its_own_size) {
  Machine machine = tiny_machine();
  machine.link.host_to_device.points = {{1e3, 1e9}, {1e6, 10e9}};
  Op op = copy_to_gpu(1'000'000);
  EXPECT_NEAR(framework_cost(op, machine).us(), 100 + 2, 1e-6);
  std::get<CopyWork>(op.work).calls = 1000;
  EXPECT_NEAR(framework_cost(op, machine).us(), 1000 + 2000, 1e-6);
}

// PyTorch's Adam moves 80 bytes a parameter. One core of 8 GB/s steps 1e8 parameters a second: 1e6
// take 10 ms; the two that the machine lends take 5 ms. Another implementation is bound by memory:
// 28 bytes a parameter at 50 GB/s. Without a core's rate one of four has a quarter of 50 GB/s: 6.4
// ms.
TEST(FrameworkCost, pytorchs_adam_is_bound_by_its_threads) {
  Machine machine = tiny_machine();
  machine.cpu.adam[std::string(kTorchAdam)] = flat(1e9);
  tests::Usage usage;
  usage.plan.optimizer.adam = kTorchAdam;
  usage.stack.facts.torch_adam_threads = 1;
  EXPECT_NEAR(cost_with(cpu_adam(1'000'000), machine, usage).us(), 6400, 1e-3);
  machine.cpu.core_bandwidth.emplace().value = Bandwidth::from_gb_per_s(8);
  const Costed one = cost_with(cpu_adam(1'000'000), machine, usage);
  EXPECT_NEAR(one.us(), 10'000, 1e-3);
  EXPECT_EQ(one.demand("cores"), 1);
  usage.stack.facts.torch_adam_threads = 0;
  const Costed lent = cost_with(cpu_adam(1'000'000), machine, usage);
  EXPECT_NEAR(lent.us(), 5000, 1e-3);
  EXPECT_EQ(lent.demand("cores"), 2);
  usage.plan.optimizer.adam = "quick";  // another implementation is not
  usage.stack.facts.torch_adam_threads = 1;
  EXPECT_NEAR(cost_with(cpu_adam(1'000'000), machine, usage).us(), 560, 1e-3);
}

// 1 MB in CPU memory at 50 GB/s: 20 us. A quarter of four cores is one of 8 GB/s: 125 us, and less
// than a core is one. Fast cores are bound by memory again.
TEST(FrameworkCost, a_pass_on_some_of_the_cores_is_bound_by_them) {
  Machine machine = tiny_machine();
  machine.cpu.core_bandwidth.emplace().value = Bandwidth::from_gb_per_s(8);
  Op op = cpu_adam(62'500);
  op.kind = OpKind::kScale;
  BucketWork& work = std::get<BucketWork>(op.work);
  work.moved = Bytes{1'000'000};
  EXPECT_NEAR(framework_cost(op, machine).us(), 20, 1e-3);
  work.core_percent = 25;
  EXPECT_NEAR(framework_cost(op, machine).us(), 125, 1e-3);
  work.core_percent = 10;
  EXPECT_NEAR(framework_cost(op, machine).us(), 125, 1e-3);
  machine.cpu.core_bandwidth->value = Bandwidth::from_gb_per_s(100);
  EXPECT_NEAR(framework_cost(op, machine).us(), 20, 1e-3);
}

}  // namespace
}  // namespace ballast
