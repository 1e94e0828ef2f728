// What kernels that read and write CPU memory take, by hand.
#include <gtest/gtest.h>
#include <string>

#include "sim/base/error.h"
#include "sim/graph/core/edit.h"
#include "tests/engine/costed.h"
#include "tests/engine/tiny_machine.h"

namespace ballast {
namespace {

using tests::cost_with;
using tests::Costed;
using tests::flat;
using tests::tiny_machine;

Machine with_kernels_across_the_link() {
  Machine machine = tiny_machine();
  machine.link.kernel_reads = flat(8e9);
  machine.link.kernel_writes = flat(5e9);
  return machine;
}

Costed direct(const BucketWork& work, const Machine& machine) {
  tests::Usage usage;
  usage.plan.optimizer.transfers = StateTransfers::kDirect;
  Op op;
  op.kind = OpKind::kPack;
  op.phase = Phase::kOptimizer;
  op.lane = lane_of(0, LaneKind::kCopyOut);
  op.work = work;
  return cost_with(op, machine, usage);
}

// Per second, of so many bytes in so many microseconds.
double over(double bytes, double us) { return bytes / (us * 1e-6); }

// 1 M values of 16 bits out in 32: 2 MB of the GPU's memory at 100 GB/s are 20 us, 4 MB at 5 GB/s
// 800 us, and 1 us of launch. In: 4 MB at 8 GB/s. Both ways, 4 MB each: 8 MB at the link's 15 GB/s
// are 533 us, less than the 800 us out. It asks for what it moves, and holds its blocks.
TEST(DirectAccess, a_kernel_across_the_link_takes_the_slowest_of_what_it_moves) {
  const Machine machine = with_kernels_across_the_link();
  BucketWork work = elementwise(1'000'000, DType::kBf16, DType::kF32, Site::kGpu);
  work.to_host = Bytes{4'000'000};
  const Costed out = direct(work, machine);
  EXPECT_NEAR(out.us(), 801, 1e-6);
  EXPECT_NEAR(out.demand("link device to host"), over(4e6, 801), 1);
  EXPECT_NEAR(out.demand("link total"), over(4e6, 801), 1);
  EXPECT_NEAR(out.demand("dram"), over(4e6, 801), 1);
  EXPECT_NEAR(out.demand("hbm"), over(2e6, 801), 1);
  EXPECT_EQ(out.demand("link host to device"), 0);
  EXPECT_GT(out.demand("multiprocessors"), 0);
  work = elementwise(1'000'000, DType::kF32, DType::kBf16, Site::kGpu);
  work.from_host = Bytes{4'000'000};
  EXPECT_NEAR(direct(work, machine).us(), 501, 1e-6);
  work = elementwise(1'000'000, DType::kF32, DType::kF32, Site::kGpu);
  work.from_host = work.to_host = Bytes{4'000'000};
  EXPECT_NEAR(direct(work, machine).us(), 801, 1e-6);
}

// Of 132 multiprocessors they hold 16 (kernels/cuda/geometry.h).
TEST(DirectAccess, a_kernel_across_the_link_leaves_most_multiprocessors_to_others) {
  Machine machine = with_kernels_across_the_link();
  machine.gpu.multiprocessors = 132;
  BucketWork work = elementwise(1'000'000, DType::kBf16, DType::kF32, Site::kGpu);
  work.to_host = Bytes{4'000'000};
  EXPECT_NEAR(direct(work, machine).demand("multiprocessors"), 16.0 / 132, 1e-9);
}

TEST(DirectAccess, kernels_across_the_link_are_refused_where_their_rates_are_not_known) {
  Plan plan;
  plan.optimizer.transfers = StateTransfers::kDirect;
  const auto message = [&](const Machine& machine, const Stack& stack) -> std::string {
    try {
      CostModel(machine, plan, stack, nullptr);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  Stack framework;
  framework.name = "megatron";
  EXPECT_NE(message(tiny_machine(), Stack{}).find("link.kernel_reads"), std::string::npos);
  EXPECT_EQ(message(with_kernels_across_the_link(), Stack{}), "");
  EXPECT_NE(message(with_kernels_across_the_link(), framework).find("stack megatron"),
            std::string::npos);
  plan.optimizer.placement = OptimizerPlacement::kGpu;  // which moves no state
  EXPECT_EQ(message(tiny_machine(), Stack{}), "");
  EXPECT_EQ(message(tiny_machine(), framework), "");
}

}  // namespace
}  // namespace ballast
