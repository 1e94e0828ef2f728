// Capacities that an operation holds for as long as it runs, in both solvers of fair rates.
#include <array>
#include <gtest/gtest.h>
#include <span>
#include <utility>
#include <vector>

#include "sim/engine/sharing/fair_rates.h"
#include "sim/engine/sharing/sharing.h"
#include "tests/engine/costed.h"
#include "tests/engine/persistent_products.h"
#include "tests/engine/tiny_machine.h"

namespace ballast {
namespace {

using tests::Costed;

Costed cost(Work work, const Machine& machine) {
  Op op;
  op.work = std::move(work);
  return tests::cost_with(op, machine, {});
}

// A collective that holds 20 of 100 multiprocessors leaves computation beside it 80 % of its speed,
// and is not slowed by it.
TEST(Held, a_collective_keeps_its_multiprocessors_and_its_rate) {
  Machine machine = tests::tiny_machine();
  machine.devices_per_node = 2;
  machine.gpu.multiprocessors = 100;
  machine.node.emplace().bandwidth.value = Bandwidth::from_gb_per_s(100);
  machine.node->multiprocessors.emplace().value = 20;
  machine.gpu.memory_bandwidth.value = Bandwidth::from_gb_per_s(1e6);  // memory is not what binds
  const Costed gather =
      cost(CollectiveWork{CollectiveKind::kAllGather, Bytes{400'000'000}, 2}, machine);
  const Costed product = cost(GemmWork{128, 256, 960, DType::kBf16}, machine);
  EXPECT_NEAR(gather.demand("multiprocessors"), 0.2, 1e-12);
  EXPECT_EQ(product.demand("multiprocessors"), 1);
  const auto demands = [](const Costed& one) {
    return std::span(one.cost.demands).first(static_cast<size_t>(one.cost.demand_count));
  };
  Sharing sharing(gather.capacities, 2);
  sharing.begin(0, demands(product));
  sharing.begin(1, demands(gather));
  sharing.settle();
  EXPECT_NEAR(sharing.rate(0), 0.8, 1e-9);
  EXPECT_EQ(sharing.rate(1), 1);
  const std::span<const Demand> running[] = {demands(product), demands(gather)};
  double rates[2] = {};
  fair_rates(gather.capacities)(running, rates);
  EXPECT_NEAR(rates[0], 0.8, 1e-12);
  EXPECT_EQ(rates[1], 1);
  sharing.end(1);
  sharing.settle();
  EXPECT_EQ(sharing.rate(0), 1);
}

// A GPU of 100 multiprocessors in nodes of two, whose products keep six tenths of their speed.
Machine held_up_machine() {
  Machine machine = tests::tiny_machine();
  machine.devices_per_node = 2;
  machine.gpu.multiprocessors = 100;
  machine.gpu.memory_bandwidth.value = Bandwidth::from_gb_per_s(1e6);  // memory is not what binds
  machine.node.emplace().bandwidth.value = Bandwidth::from_gb_per_s(1e5);
  return tests::with_persistent_products(std::move(machine));
}

// Rates of the first of two operations, and of the second, in both solvers.
std::array<double, 2> rates_beside(const std::vector<Costed>& running) {
  std::vector<std::span<const Demand>> demands;
  for (const Costed& one : running) {
    demands.push_back(
        std::span(one.cost.demands).first(static_cast<size_t>(one.cost.demand_count)));
  }
  const auto count = static_cast<int32_t>(running.size());
  Sharing sharing(running[0].capacities, count);
  for (int32_t i = 0; i < count; ++i) sharing.begin(i, demands[static_cast<size_t>(i)]);
  sharing.settle();
  std::vector<double> rates(running.size());
  fair_rates(running[0].capacities)(demands, rates);
  for (int32_t i = 0; i < count; ++i) {
    EXPECT_NEAR(sharing.rate(i), rates[static_cast<size_t>(i)], 1e-9) << i;
  }
  return {rates[0], rates[1]};
}

// Beside a collective that holds 20 of 100 multiprocessors, or beside two of them, a persistent
// product has the six tenths that were measured, a pass over memory what is left of them.
TEST(Held, persistent_products_keep_what_was_measured_however_much_is_held) {
  const Machine machine = held_up_machine();
  const Costed gather =
      cost(CollectiveWork{CollectiveKind::kAllGather, Bytes{400'000'000}, 2}, machine);
  const Costed product = cost(GemmWork{128, 256, 960, DType::kBf16}, machine);
  RowWork moves;
  moves.moved = {1'000'000};
  const Costed pass = cost(moves, machine);
  EXPECT_NEAR(rates_beside({product, gather})[0], 0.6, 1e-9);
  EXPECT_NEAR(rates_beside({product, gather, gather})[0], 0.6, 1e-9);
  EXPECT_NEAR(rates_beside({pass, gather})[0], 0.8, 1e-9);
  EXPECT_NEAR(rates_beside({pass, gather, gather})[0], 0.6, 1e-9);
  EXPECT_EQ(rates_beside({product, gather})[1], 1);
  EXPECT_EQ(rates_beside({product, pass})[0], 0.5);
}

// What overlaps the ranks of a product has its kernels leave the multiprocessors that it takes.
TEST(Held, collectives_of_tensor_ranks_are_left_room_for) {
  const Machine machine = held_up_machine();
  Op op;
  op.work = CollectiveWork{CollectiveKind::kAllGather, Bytes{400'000'000}, 2};
  op.lane = lane_of(0, LaneKind::kTensorNetwork);
  const Costed gather = tests::cost_with(op, machine, {});
  const Costed product = cost(GemmWork{128, 256, 960, DType::kBf16}, machine);
  EXPECT_NEAR(rates_beside({product, gather})[0], 0.8, 1e-9);
}

// 0.6 and 0.7 of one capacity are held: a tenth is left to who shares it, and nobody stands still.
TEST(Held, however_much_is_held_nobody_stands_still) {
  const std::vector<Capacity> capacities = {{"capacity", 1}};
  const Demand first[] = {{0, 0.6, true}};
  const Demand second[] = {{0, 0.7, true}};
  const Demand shared[] = {{0, 1}};
  Sharing sharing(capacities, 3);
  sharing.begin(0, first);
  sharing.begin(1, second);
  sharing.begin(2, shared);
  sharing.settle();
  EXPECT_EQ(sharing.rate(0), 1);
  EXPECT_EQ(sharing.rate(1), 1);
  EXPECT_NEAR(sharing.rate(2), 0.1, 1e-9);
  sharing.end(1);
  sharing.settle();
  EXPECT_NEAR(sharing.rate(2), 0.4, 1e-9);
}

}  // namespace
}  // namespace ballast
