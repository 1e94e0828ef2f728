// What state on NVMe costs: transfers on the disk's curves, and what a read and a write share.
#include <gtest/gtest.h>

#include "sim/base/error.h"
#include "sim/engine/cost.h"
#include "sim/engine/engine.h"
#include "sim/engine/sharing/fair_rates.h"
#include "sim/graph/build.h"
#include "tests/engine/costed.h"
#include "tests/engine/tiny_machine.h"

namespace ballast {
namespace {

using tests::cost_with;
using tests::Costed;
using tests::flat;
using tests::tiny_machine;

Op io(IoDirection direction) {
  Op op;
  op.kind = OpKind::kIo;
  op.phase = Phase::kOptimizer;
  op.lane =
      lane_of(0, direction == IoDirection::kRead ? LaneKind::kNvmeRead : LaneKind::kNvmeWrite);
  op.work = IoWork{Bytes{1'000'000}, direction};
  return op;
}

// The tiny machine with a disk of these rates, in bytes per second.
Machine with_disk(double read, double write) {
  Machine machine = tiny_machine();
  Nvme& nvme = machine.nvme.emplace();
  nvme.capacity.value = Bytes{1'000'000'000};
  nvme.read = flat(read);
  nvme.write = flat(write);
  return machine;
}

// 1 MB read at 4 GB/s and written at 2 GB/s: 250 and 500 us, and 10 us of latency; through DRAM.
TEST(Nvme, reads_and_writes_on_its_curves) {
  Machine machine = with_disk(4e9, 2e9);
  machine.nvme->latency.value = Duration::from_us(10);
  check(machine);
  const Costed read = cost_with(io(IoDirection::kRead), machine, {});
  EXPECT_NEAR(read.us(), 260, 1e-6);
  EXPECT_NEAR(read.demand("dram"), 1e6 / 260e-6, 1);
  EXPECT_EQ(read.demand("hbm"), 0);
  EXPECT_EQ(read.demand("nvme"), 1);
  EXPECT_NEAR(cost_with(io(IoDirection::kWrite), machine, {}).us(), 510, 1e-6);
}

TEST(Nvme, that_a_machine_lacks_is_an_error_that_names_the_key) {
  std::string text;
  try {
    cost_with(io(IoDirection::kRead), tiny_machine(), {});
  } catch (const Error& error) {
    text = error.what();
  }
  EXPECT_NE(text.find("tiny: nvme"), std::string::npos) << text;
  EXPECT_NE(text.find("capacity_gb"), std::string::npos) << text;
}

// The share of its rate alone that each has while a read and a write are under way.
TEST(Nvme, a_read_and_a_write_at_once_have_both_share_of_their_rates_in_sum) {
  Machine machine = with_disk(4e9, 2e9);
  const auto rates = [&] {
    check(machine);
    Graph graph;
    graph.lanes = kLaneKinds;
    graph.step.ops = {io(IoDirection::kRead), io(IoDirection::kWrite)};
    const CostTable table = CostModel(machine, Plan{}, Stack{}, nullptr).table(graph.step, graph);
    std::vector<std::span<const Demand>> running;
    for (size_t i = 0; i < 2; ++i) {
      const OpCost& cost = table.ops[i];
      running.push_back(std::span(cost.demands).first(static_cast<size_t>(cost.demand_count)));
    }
    std::vector<double> found(2);
    fair_rates(table.capacities)(running, found);
    EXPECT_EQ(found[0], found[1]);
    return found[0];
  };
  EXPECT_NEAR(rates(), 0.5, 1e-9);  // a machine that does not say: as one after the other
  for (const double share : {1.0, 1.6, 2.0}) {
    machine.nvme->both_share = Sourced<double>{share, false, "test"};
    EXPECT_NEAR(rates(), share / 2, 1e-9);
  }
}

// The state of the next bucket is read while that of the one before it is written: of three buckets
// four transfers' time, where one lane takes six.
TEST(Nvme, a_read_does_not_queue_behind_a_write) {
  Machine machine = with_disk(1e6, 1e6);
  machine.nvme->both_share = Sourced<double>{2, false, "test"};
  const Plan plan = tests::tiny_plan(OptimizerPlacement::kNvme);
  const auto seconds = [&](const Graph& graph) {
    const CostModel costs(machine, plan, Stack{}, nullptr);
    return simulate(graph.step, graph, costs.table(graph.step, graph)).step_time.seconds();
  };
  const Graph two = build(tests::tiny_model(), plan);
  ASSERT_GE(two.buckets.size(), 3U);
  Graph one = two;
  for (Op& op : one.step.ops) {
    if (op.kind == OpKind::kIo) op.lane = lane_of(0, LaneKind::kNvmeRead);
  }
  one.step.edges.clear();  // of two lanes
  one.arenas = {};
  link(one);
  const double transfers = 2 * static_cast<double>(two.buckets.size());
  const double ideal = (static_cast<double>(two.buckets.size()) + 1) / transfers;
  EXPECT_LT(seconds(two), 1.15 * ideal * seconds(one));
}

}  // namespace
}  // namespace ballast
