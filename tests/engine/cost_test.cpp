#include "sim/engine/cost.h"

#include <gtest/gtest.h>

#include "tests/engine/tiny_machine.h"

namespace ballast {
namespace {

using tests::flat_curve;
using tests::tiny_machine;

Op op_of(OpKind kind, Phase phase, LaneKind lane, Work work) {
  Op op;
  op.kind = kind;
  op.phase = phase;
  op.lane = lane_of(0, lane);
  op.work = work;
  return op;
}

Op gemm(int64_t m, int64_t n, int64_t k) {
  return op_of(OpKind::kGemm, Phase::kForward, LaneKind::kCompute,
               GemmWork{m, n, k, DType::kBf16, false});
}

Op bucket(OpKind kind, LaneKind lane, Site site, int64_t elements, int64_t moved) {
  return op_of(kind, Phase::kOptimizer, lane,
               BucketWork{elements, DType::kF32, DType::kF32, site, Bytes{moved}});
}

Op copy_in(int64_t bytes) {
  return op_of(OpKind::kCopy, Phase::kOptimizer, LaneKind::kCopyIn,
               CopyWork{Bytes{bytes}, CopyDirection::kHostToDevice});
}

Op adam(int64_t elements) {
  return bucket(OpKind::kAdam, LaneKind::kCpu, Site::kCpu, elements, 28 * elements);
}

struct Costed {
  OpCost cost;
  std::vector<Capacity> capacities;

  // The demand on the capacity of this name, 0 if there is none.
  double demand(std::string_view name) const {
    double sum = 0;
    for (int8_t i = 0; i < cost.demand_count; ++i) {
      const Demand& demand = cost.demands[static_cast<size_t>(i)];
      if (capacities[static_cast<size_t>(demand.capacity)].name == name) sum += demand.amount;
    }
    return sum;
  }
  double us() const { return cost.alone.us(); }
};

Costed cost(const Op& op, const Machine& machine, const Measurements* measurements = nullptr,
            const std::string& implementation = "best") {
  Sequence sequence;
  sequence.ops = {op};
  Graph graph;
  graph.lanes = kLaneKinds;
  const CostTable table = CostModel(machine, measurements, implementation).table(sequence, graph);
  return {table.ops.at(0), table.capacities};
}

// Bytes of an operation spread over its time alone.
double spread(double bytes, double us) { return bytes / (us * 1e-6); }

// --- matrix products ---------------------------------------------------------------------------

// One tile of 128 x 256 at k = 960 on the one multiprocessor of 1 TFLOP/s. A tile pays 64 more of
// k: 2 * 128 * 256 * 1024 = 67.11 MFLOP = 67.109 us, and 1 us of launch. Traffic is less:
// 2 B * (128*960 + 960*256 + 128*256) = 802816 B = 8.03 us.
TEST(Cost, a_matrix_product_takes_its_tiles_over_the_rate) {
  const Costed result = cost(gemm(128, 256, 960), tiny_machine());
  EXPECT_NEAR(result.us(), 67.109 + 1, 0.001);
  EXPECT_EQ(result.cost.provenance, Provenance::kRoofline);
  EXPECT_NEAR(result.demand("hbm"), spread(802816, result.us()), 1e6);
  EXPECT_EQ(result.demand("cores"), 0);
}

// 1 x 256 costs the same tile as 128 x 256: the rest of the tile is idle.
TEST(Cost, a_thin_matrix_product_pays_for_the_whole_tile) {
  EXPECT_EQ(cost(gemm(1, 256, 960), tiny_machine()).cost.alone,
            cost(gemm(128, 256, 960), tiny_machine()).cost.alone);
}

// Four multiprocessors: four tiles take one wave, five take two. k = 512 is too short to split.
TEST(Cost, matrix_products_come_in_whole_waves) {
  const MatrixUnit unit{FlopRate::from_tflops(4), Bandwidth::from_gb_per_s(1e6), 4};
  const auto time = [&](int64_t rows) {
    return gemm_time({rows * 128, 256, 512, DType::kBf16, false}, unit);
  };
  EXPECT_EQ(time(1), time(4));
  EXPECT_NEAR(time(5).seconds(), 2 * time(4).seconds(), 1e-11);
}

// One tile with k = 4096 on four multiprocessors: in four parts of 1024 + 64 it takes
// 2*128*256*1088 FLOP at 1 TFLOP/s = 71.3 us instead of 272.6 us; the partial results,
// 2 * 4 parts * 128 * 256 * 4 B = 1.05 MB, take 1.05 us at 1000 GB/s.
TEST(Cost, a_long_product_with_few_tiles_is_split_along_k) {
  const MatrixUnit unit{FlopRate::from_tflops(4), Bandwidth::from_gb_per_s(1000), 4};
  EXPECT_NEAR(gemm_time({128, 256, 4096, DType::kBf16, false}, unit).us(), 71.30 + 1.05, 0.02);
}

// A product that moves more than it computes is bound by memory: 1 x 256 x 64 at 1 GB/s moves
// 2 B * (64 + 64*256 + 256) = 33408 B = 33.4 us, and computes for 8.4 us.
TEST(Cost, a_matrix_product_takes_at_least_its_traffic) {
  const MatrixUnit unit{FlopRate::from_tflops(1), Bandwidth::from_gb_per_s(1), 1};
  EXPECT_NEAR(gemm_time({1, 256, 64, DType::kBf16, false}, unit).us(), 33.408, 0.001);
}

// On a host the "GPU" is a thread: 2*100*100*100 FLOP at 1 TFLOP/s are 2 us, no tiles; with 1 us
// launch 3 us. It uses one core and the CPU's memory: 60 kB in 3 us.
TEST(Cost, a_host_thread_uses_a_core_and_the_memory_of_the_cpu) {
  Machine machine = tiny_machine();
  machine.gpu.is_host_thread = true;
  const Costed result = cost(gemm(100, 100, 100), machine);
  EXPECT_NEAR(result.us(), 3, 1e-6);
  EXPECT_EQ(result.demand("cores"), 1);
  EXPECT_NEAR(result.demand("dram"), spread(60000, 3), 1e3);
  EXPECT_EQ(result.demand("hbm"), 0);
}

TEST(Cost, a_format_without_a_rate_is_an_error_that_names_it) {
  Machine machine = tiny_machine();
  machine.gpu.matmul.erase(DType::kBf16);
  try {
    cost(gemm(1, 1, 1), machine);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("bf16"), std::string::npos);
  }
}

// --- the other operations of the GPU -----------------------------------------------------------

// 1 GFLOP at half of 1 TFLOP/s: 2000 us, one block of 128 on one multiprocessor, and 1 us launch.
TEST(Cost, attention_runs_at_its_share_of_the_matrix_rate) {
  const AttentionWork work{1, 128, 1, 1, 64, DType::kBf16, Bytes{1000}, Flops{1e9}};
  const Op op = op_of(OpKind::kAttention, Phase::kForward, LaneKind::kCompute, work);
  EXPECT_NEAR(cost(op, tiny_machine()).us(), 2001, 1e-6);
  // One block keeps one of four multiprocessors busy.
  Machine machine = tiny_machine();
  machine.gpu.multiprocessors = 4;
  EXPECT_NEAR(cost(op, machine).us(), 8001, 1e-6);
}

// 1 MB at 100 GB/s: 10 us; 2 MFLOP at 0.1 TFLOP/s: 20 us, which is more; and 1 us launch.
TEST(Cost, row_operations_take_the_longer_of_traffic_and_arithmetic) {
  const auto row = [](double flops) {
    return op_of(OpKind::kNorm, Phase::kForward, LaneKind::kCompute,
                 RowWork{1, 1, DType::kBf16, Bytes{1'000'000}, Flops{flops}});
  };
  EXPECT_NEAR(cost(row(1e3), tiny_machine()).us(), 11, 1e-6);
  EXPECT_NEAR(cost(row(2e6), tiny_machine()).us(), 21, 1e-6);
}

// Packing on the GPU moves 2 MB at 100 GB/s: 20 us and the launch.
TEST(Cost, bucket_operations_on_the_gpu_take_their_traffic) {
  const Costed result =
      cost(bucket(OpKind::kPack, LaneKind::kCopyOut, Site::kGpu, 1, 2'000'000), tiny_machine());
  EXPECT_NEAR(result.us(), 21, 1e-6);
  EXPECT_NEAR(result.demand("hbm"), spread(2e6, 21), 1);
  EXPECT_EQ(result.demand("dram"), 0);
}

// --- the CPU -----------------------------------------------------------------------------------

// 1e6 parameters at 2e9 a second: 500 us; "slow" takes 1000. 28 B a parameter in 1000 us are
// 28 GB/s of the 50; Adam runs on both optimizer threads.
TEST(Cost, adam_runs_at_the_rate_of_the_named_curve) {
  EXPECT_NEAR(cost(adam(1'000'000), tiny_machine()).us(), 500, 1e-6);
  const Costed slow = cost(adam(1'000'000), tiny_machine(), nullptr, "slow");
  EXPECT_NEAR(slow.us(), 1000, 1e-6);
  EXPECT_NEAR(slow.demand("dram"), 28e9, 1);
  EXPECT_EQ(slow.demand("cores"), 2);
}

// 28 MB in 500 us would be 56 GB/s of a memory of 50: alone it runs as measured all the same.
TEST(Cost, no_operation_demands_more_than_there_is) {
  EXPECT_EQ(cost(adam(1'000'000), tiny_machine()).demand("dram"), 50e9);
}

TEST(Cost, an_adam_that_the_machine_does_not_know_is_an_error) {
  EXPECT_THROW(cost(adam(1), tiny_machine(), nullptr, "sve"), Error);
}

// Casts 5e9 elements a second, norms 4e9, a snapshot 50 GB/s: 200 us, 250 us, 160 us.
TEST(Cost, bucket_operations_on_the_cpu_use_their_curves_or_the_memory) {
  const Machine machine = tiny_machine();
  const auto us = [&](OpKind kind, LaneKind lane) {
    return cost(bucket(kind, lane, Site::kCpu, 1'000'000, 8'000'000), machine).us();
  };
  EXPECT_NEAR(us(OpKind::kCast, LaneKind::kCpu), 200, 1e-6);
  EXPECT_NEAR(us(OpKind::kSumOfSquares, LaneKind::kCheck), 250, 1e-6);
  EXPECT_NEAR(us(OpKind::kSnapshot, LaneKind::kCpu), 160, 1e-6);
  const Costed check = cost(
      bucket(OpKind::kSumOfSquares, LaneKind::kCheck, Site::kCpu, 1'000'000, 4'000'000), machine);
  EXPECT_EQ(check.demand("cores"), 1);
}

// --- copies and collectives --------------------------------------------------------------------

// 1 MB at 10 GB/s: 100 us and 2 us of latency, 9.8 GB/s of link, total, DRAM and HBM.
TEST(Cost, a_copy_uses_the_link_and_both_memories) {
  const Costed result = cost(copy_in(1'000'000), tiny_machine());
  EXPECT_NEAR(result.us(), 102, 1e-6);
  for (const char* name : {"link host to device", "link total", "dram", "hbm"}) {
    EXPECT_NEAR(result.demand(name), spread(1e6, 102), 1) << name;
  }
  EXPECT_EQ(result.demand("link device to host"), 0);
}

// The curve is linear in log(size): 1 kB at 1 GB/s, 1 MB at 10: 31623 B lie half way, 5.5 GB/s.
TEST(Cost, a_curve_is_linear_in_the_logarithm_of_size_and_flat_beyond_its_ends) {
  Curve curve;
  curve.points = {{1e3, 1e9}, {1e6, 10e9}};
  EXPECT_NEAR(curve.rate_at(std::sqrt(1e9)), 5.5e9, 1);
  EXPECT_EQ(curve.rate_at(1), 1e9);
  EXPECT_EQ(curve.rate_at(1e3), 1e9);
  EXPECT_EQ(curve.rate_at(1e9), 10e9);
}

// A measured curve makes an interpolated copy, a nominal one a roofline copy.
TEST(Cost, a_copy_on_a_measured_curve_is_interpolated) {
  Machine machine = tiny_machine();
  EXPECT_EQ(cost(copy_in(1000), machine).cost.provenance, Provenance::kRoofline);
  machine.link.host_to_device.measured = true;
  EXPECT_EQ(cost(copy_in(1000), machine).cost.provenance, Provenance::kInterpolated);
}

// Ring of 4 ranks, 4 MB, 10 GB/s, 5 us a message: all-reduce sends 6 pieces of 1 MB: 600 + 30 us;
// reduce-scatter 3 pieces: 300 + 15 us.
TEST(Cost, a_ring_sends_a_piece_a_message) {
  Interconnect interconnect;
  interconnect.bandwidth.value = Bandwidth::from_gb_per_s(10);
  interconnect.latency.value = Duration::from_us(5);
  const auto us = [&](CollectiveKind kind, int64_t ranks) {
    return ring_time({kind, Bytes{4'000'000}, ranks}, interconnect).time.us();
  };
  EXPECT_NEAR(us(CollectiveKind::kAllReduce, 4), 630, 1e-6);
  EXPECT_NEAR(us(CollectiveKind::kReduceScatter, 4), 315, 1e-6);
  EXPECT_NEAR(us(CollectiveKind::kAllGather, 4), 315, 1e-6);
  EXPECT_EQ(us(CollectiveKind::kAllReduce, 1), 0);
}

// Two devices a node: 2 ranks use the node's links (100 GB/s), 4 ranks the network (10 GB/s).
// All-gather of 4 MB: 2 MB at 100 GB/s = 20 us, 3 MB at 10 GB/s = 300 us; 1 us launch each.
TEST(Cost, a_collective_of_more_ranks_than_a_node_has_goes_over_the_network) {
  Machine machine = tiny_machine();
  machine.devices_per_node = 2;
  machine.node.emplace().bandwidth.value = Bandwidth::from_gb_per_s(100);
  machine.network.emplace().bandwidth.value = Bandwidth::from_gb_per_s(10);
  const auto gather = [&](int64_t ranks) {
    return cost(op_of(OpKind::kCollective, Phase::kOptimizer, LaneKind::kNetwork,
                      CollectiveWork{CollectiveKind::kAllGather, Bytes{4'000'000}, ranks}),
                machine);
  };
  EXPECT_NEAR(gather(2).us(), 21, 1e-6);
  EXPECT_GT(gather(2).demand("node"), 0);
  EXPECT_NEAR(gather(4).us(), 301, 1e-6);
  EXPECT_NEAR(gather(4).demand("network"), spread(3e6, 301), 1);
  EXPECT_NEAR(gather(4).demand("hbm"), spread(6e6, 301), 1);
}

TEST(Cost, a_collective_without_an_interconnect_is_an_error) {
  const Op op = op_of(OpKind::kCollective, Phase::kOptimizer, LaneKind::kNetwork,
                      CollectiveWork{CollectiveKind::kAllReduce, Bytes{8}, 2});
  EXPECT_THROW(cost(op, tiny_machine()), Error);
}

// Decisions and the like have no work and take no time.
TEST(Cost, an_operation_without_work_takes_no_time) {
  const Op op = op_of(OpKind::kDecide, Phase::kOptimizer, LaneKind::kCheck, std::monostate{});
  const Costed result = cost(op, tiny_machine());
  EXPECT_EQ(result.cost.alone.ps, 0);
  EXPECT_EQ(result.cost.demand_count, 0);
  EXPECT_EQ(result.cost.handover, Duration::from_us(1));
}

// --- measurements ------------------------------------------------------------------------------

Measurements measured(std::initializer_list<std::pair<Op, double>> ops_and_us) {
  Measurements result;
  for (const auto& [op, us] : ops_and_us) {
    result[cost_key(op)] = measurement_of(op, {Duration::from_us(us), Duration{}});
  }
  return result;
}

TEST(Cost, a_measured_operation_takes_what_was_measured) {
  const Measurements known = measured({{gemm(128, 256, 960), 123}});
  const Costed result = cost(gemm(128, 256, 960), tiny_machine(), &known);
  EXPECT_NEAR(result.us(), 123, 1e-9);
  EXPECT_EQ(result.cost.provenance, Provenance::kMeasured);
}

// A recomputed forward has the key of the forward.
TEST(Cost, a_recomputed_forward_costs_what_the_forward_costs) {
  const Measurements known = measured({{gemm(128, 256, 960), 123}});
  Op again = gemm(128, 256, 960);
  again.phase = Phase::kRecompute;
  EXPECT_EQ(cost(again, tiny_machine(), &known).cost.provenance, Provenance::kMeasured);
}

// 2 kFLOP in 2 us is 1 GFLOP/s, 200 kFLOP in 100 us is 2 GFLOP/s. 20 kFLOP lie half way in the
// logarithm: 1.5 GFLOP/s, 13.333 us.
TEST(Cost, rates_are_interpolated_between_measured_sizes_of_the_group) {
  const Measurements known = measured({{gemm(10, 10, 10), 2}, {gemm(100, 100, 10), 100}});
  const Costed result = cost(gemm(100, 10, 10), tiny_machine(), &known);
  EXPECT_NEAR(result.us(), 20e3 / 1.5e9 * 1e6, 1e-5);
  EXPECT_EQ(result.cost.provenance, Provenance::kInterpolated);
}

// Just outside (within a factor of 2) the rate of the end is kept; further out nothing is known.
TEST(Cost, nothing_is_extrapolated_far_beyond_the_measured_sizes) {
  const Measurements known = measured({{gemm(10, 10, 10), 2}, {gemm(100, 100, 10), 100}});
  EXPECT_NEAR(cost(gemm(100, 100, 15), tiny_machine(), &known).us(), 150, 1e-6);
  EXPECT_EQ(cost(gemm(100, 100, 30), tiny_machine(), &known).cost.provenance,
            Provenance::kRoofline);
}

// A backward is another group than a forward, however alike the sizes.
TEST(Cost, groups_are_not_mixed) {
  const Measurements known = measured({{gemm(10, 10, 10), 2}});
  Op backward = gemm(10, 10, 10);
  backward.phase = Phase::kBackwardWeight;
  EXPECT_NE(cost_group(backward), cost_group(gemm(10, 10, 10)));
  EXPECT_EQ(cost(backward, tiny_machine(), &known).cost.provenance, Provenance::kRoofline);
}

// Operations of the second device use the second device's capacities.
TEST(Cost, every_device_has_capacities_of_its_own) {
  const Machine machine = tiny_machine();
  Sequence sequence;
  sequence.ops = {copy_in(1000), copy_in(1000)};
  sequence.ops[1].lane = lane_of(1, LaneKind::kCopyIn);
  Graph graph;
  graph.lanes = 2 * kLaneKinds;
  const CostTable table = CostModel(machine, nullptr, "best").table(sequence, graph);
  ASSERT_EQ(table.capacities.size(), 12u);
  EXPECT_EQ(table.ops[1].demands[0].capacity, table.ops[0].demands[0].capacity + 6);
}

// --- the machine's own check -------------------------------------------------------------------

TEST(MachineCheck, a_complete_machine_passes) { EXPECT_NO_THROW(check(tiny_machine())); }

TEST(MachineCheck, a_bad_number_is_named) {
  const auto complaint = [](Machine machine) -> std::string {
    try {
      check(machine);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  Machine machine = tiny_machine();
  machine.gpu.memory_bandwidth.value = {0};
  EXPECT_NE(complaint(machine).find("tiny: gpu.memory_bandwidth"), std::string::npos);
  machine = tiny_machine();
  machine.cpu.adam["bad"].points = {{2, 1}, {1, 1}};
  EXPECT_NE(complaint(machine).find("cpu.adam.bad"), std::string::npos);
  machine = tiny_machine();
  machine.devices = machine.devices_per_node = 2;
  EXPECT_NE(complaint(machine).find("node"), std::string::npos);
  machine = tiny_machine();
  machine.gpu.reserved.value = machine.gpu.memory.value;
  EXPECT_NE(complaint(machine).find("gpu.reserved"), std::string::npos);
}

}  // namespace
}  // namespace ballast
