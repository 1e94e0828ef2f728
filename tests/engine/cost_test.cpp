#include "sim/engine/cost.h"

#include <functional>
#include <gtest/gtest.h>

#include "tests/engine/costed.h"
#include "tests/engine/tiny_machine.h"

namespace ballast {
namespace {

using tests::cost_with;
using tests::Costed;
using tests::flat;
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

Costed cost(const Op& op, const Machine& machine, const Measurements* measurements = nullptr,
            const std::string& implementation = "best") {
  tests::Usage usage;
  usage.plan.optimizer.adam = implementation;
  return cost_with(op, machine, usage, measurements);
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

Op in_fp8(Op op) {
  std::get<GemmWork>(op.work).format = ProductFormat::kFp8;
  return op;
}

// At 2 TFLOP/s, k = 896 and a step of 128: 2 * 128 * 256 * 1024 FLOP = 33.554 us; the product moves
// (128 + 256) * 896 codes and 128 * 256 * 2 B = 409600 B, less. Rounding reads 2 B twice and writes
// 1 B of each of 344064 operands: 1720320 B = 17.203 us at 100 GB/s. Five launches.
TEST(Cost, a_product_in_fp8_pays_for_the_passes_that_round_its_operands) {
  Machine machine = tiny_machine();
  machine.gpu.matmul[DType::kE4m3].value = FlopRate::from_tflops(2);
  const Costed result = cost(in_fp8(gemm(128, 256, 896)), machine);
  EXPECT_NEAR(result.us(), 33.554 + 17.203 + 5, 0.001);
  EXPECT_EQ(result.cost.provenance, Provenance::kRoofline);
  EXPECT_NEAR(result.demand("hbm"), spread(409600 + 1720320, result.us()), 1e6);
}

TEST(Cost, a_machine_without_a_rate_of_fp8_names_the_key) {
  try {
    cost(in_fp8(gemm(128, 256, 896)), tiny_machine());
    ADD_FAILURE() << "it was costed";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("gpu.matmul_tflops.fp8: is missing"), std::string::npos) << text;
    EXPECT_NE(text.find("plan.products to as-stored"), std::string::npos) << text;
  }
}

// Measurements of products in 16 bits say nothing of those in 8.
TEST(Cost, products_in_fp8_are_measured_apart) {
  const Op stored = gemm(128, 256, 896), rounded = in_fp8(stored);
  EXPECT_EQ(cost_key(stored), "gemm forward m=128 n=256 k=896 bf16");
  EXPECT_EQ(cost_key(rounded), "gemm forward m=128 n=256 k=896 bf16 in fp8");
  EXPECT_EQ(cost_group(rounded), "gemm forward bf16 in fp8");
  // What a product makes or takes of others is no measure of one that rounds both factors.
  std::set<std::string> keys, groups;
  for (const WeightCodes codes : {WeightCodes::kOwn, WeightCodes::kMakes, WeightCodes::kTakes}) {
    Op op = rounded;
    std::get<GemmWork>(op.work).weight_codes = codes;
    keys.insert(cost_key(op));
    groups.insert(cost_group(op));
  }
  EXPECT_EQ(keys.size(), 3U);
  EXPECT_EQ(groups.size(), 3U);
}

// A window makes attention of the same sizes another operation, whose rate is another one's; what
// an exchange holds tells it from one that holds nothing of its own.
TEST(Cost, windows_and_what_exchanges_hold_are_measured_apart) {
  Op op;
  op.kind = OpKind::kAttention;
  AttentionWork work;
  work.length = 512;
  work.head_size = 64;
  op.work = work;
  Op windowed = op;
  std::get<AttentionWork>(windowed.work).window = 128;
  EXPECT_NE(cost_key(op), cost_key(windowed));
  EXPECT_NE(cost_group(op), cost_group(windowed));
  op.work = CollectiveWork{CollectiveKind::kAllToAll, Bytes{1024}, 4};
  Op holding = op;
  std::get<CollectiveWork>(holding.work).multiprocessors = 32;
  EXPECT_NE(cost_key(op), cost_key(holding));
}

// The smallest tile with 64 rows that suits 256 columns is 64 x 128: two of them in turn, each
// 2 * 64 * 128 * 1024 FLOP. An operand serves 42.7 products there and 85.3 in the largest tile:
// 1 + 19.2 (1/42.7 - 1/85.3) = 1.225 times as long: 2 * 16.777 * 1.225 = 41.104 us.
TEST(Cost, a_thin_matrix_product_pays_for_whole_small_tiles) {
  const Costed thin = cost(gemm(1, 256, 960), tiny_machine());
  EXPECT_NEAR(thin.us(), 41.104 + 1, 0.001);
  EXPECT_EQ(thin.cost.alone, cost(gemm(64, 256, 960), tiny_machine()).cost.alone);
}

// Four multiprocessors, k = 512 (too short to split) and 64 of filling. Four tiles of 128 x 256 are
// one wave, 2 * 128 * 256 * 576 FLOP at 1 TFLOP/s = 37.75 us. Five would be two waves, 75.5 us;
// twenty tiles of 64 x 128 are five waves of 9.437 * 1.225 us = 57.80 us.
TEST(Cost, matrix_products_come_in_whole_waves_of_the_best_tile) {
  const MatrixUnit unit{FlopRate::from_tflops(4), Bandwidth::from_gb_per_s(1e6), 4};
  const auto us = [&](int64_t rows) {
    return gemm_time({rows * 128, 256, 512, DType::kBf16, false}, unit).us();
  };
  EXPECT_NEAR(us(4), 37.749, 0.001);
  EXPECT_NEAR(us(5), 57.803, 0.001);
}

// Eight products of one 128 x 256 tile each on four multiprocessors: two waves of 37.749 us, not
// eight.
TEST(Cost, products_of_a_batch_fill_the_device_together) {
  const MatrixUnit unit{FlopRate::from_tflops(4), Bandwidth::from_gb_per_s(1e6), 4};
  EXPECT_NEAR(batched_gemm_time({128, 256, 512, DType::kBf16, false}, 8, unit).us(), 2 * 37.749,
              0.001);
}

// Large shapes of language models: on 108 multiprocessors at 271.2 TFLOP/s a product of
// 8192 x 3072 x 6144 takes ten waves of 1024 tiles of 128 x 192, 0.948 of them full, at 97.6 % of
// the best rate and with 1 % of filling: 0.916. 8192 cubed fills 128 x 256 tiles: 0.99.
TEST(Cost, large_products_come_near_the_best_rate) {
  const MatrixUnit a100{FlopRate::from_tflops(271.2), Bandwidth::from_gb_per_s(2039), 108};
  const auto share = [&](int64_t m, int64_t n, int64_t k) {
    const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n * k);
    return flops / gemm_time({m, n, k, DType::kBf16, false}, a100).seconds() / 271.2e12;
  };
  EXPECT_NEAR(share(8192, 3072, 6144), 0.916, 0.002);
  EXPECT_GT(share(8192, 8192, 8192), 0.95);
  EXPECT_LT(share(8192, 8192, 64), 0.55);  // k as short as the filling
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

// Copies and steps beside it are of one thread each.
TEST(Cost, what_several_threads_compute_uses_as_many_cores) {
  Machine machine = tiny_machine();
  machine.gpu.is_host_thread = true;
  machine.gpu.compute_threads = 2;
  EXPECT_EQ(cost(gemm(100, 100, 100), machine).demand("cores"), 2);
  EXPECT_EQ(cost(copy_in(1000), machine).demand("cores"), 1);
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

Op attention(Phase phase, const AttentionWork& work) {
  return op_of(OpKind::kAttention, phase, LaneKind::kCompute, work);
}

// 1 MB around the kernel at 100 GB/s and at half of it: 10 and 20 us more, whether arithmetic binds
// the kernel or what it moves.
TEST(Cost, what_passes_around_attention_comes_beside_the_kernel) {
  for (const AttentionKind kind : {AttentionKind::kFlash, AttentionKind::kEager}) {
    AttentionWork work{1, 128, 1, 1, 64, DType::kBf16, Bytes{1000}, Flops{1e9}, kind};
    const Op alone = attention(Phase::kForward, work);
    work.passed = Bytes{1'000'000};
    const Op both = attention(Phase::kForward, work);
    EXPECT_NEAR(cost(both, tiny_machine()).us() - cost(alone, tiny_machine()).us(), 10, 1e-6);
    tests::Usage usage;
    usage.stack.constants.elementwise = 0.5;
    EXPECT_NEAR(
        cost_with(both, tiny_machine(), usage).us() - cost_with(alone, tiny_machine(), usage).us(),
        20, 1e-6);
    EXPECT_EQ(bytes_of(both.work) - bytes_of(alone.work), Bytes{1'000'000});
  }
}

// Head size 64: forward 0.2 TFLOP/s at 1024 tokens and 0.4 at 4096, so 0.3 at 2048, backward 0.1;
// head size 128: twice that. 1 GFLOP: 3333.3 us at 64, 1666.7 at 128, 2222.2 at 96 (0.45), and
// 10000 us for a backward; 1 us launch each.
TEST(Cost, attention_has_rates_by_phase_head_size_and_length) {
  Machine machine = tiny_machine();
  const auto curve = [](double scale) {
    Curve result;
    result.points = {{1024, scale * 0.2e12}, {4096, scale * 0.4e12}};
    return result;
  };
  machine.gpu.attention = {{64, curve(1), flat(0.1e12)}, {128, curve(2), flat(0.2e12)}};
  const auto us = [&](Phase phase, int64_t head_size) {
    const AttentionWork work{1, 2048, 1, 1, head_size, DType::kBf16, Bytes{1000}, Flops{1e9}};
    return cost(attention(phase, work), machine).us();
  };
  EXPECT_NEAR(us(Phase::kForward, 64), 3334.33, 0.01);
  EXPECT_NEAR(us(Phase::kRecompute, 96), 2223.22, 0.01);
  EXPECT_NEAR(us(Phase::kForward, 128), 1667.67, 0.01);
  EXPECT_NEAR(us(Phase::kBackward, 64), 10001, 0.01);
  EXPECT_NEAR(us(Phase::kBackward, 256), 5001, 0.01);
}

// Eager attention, 2 heads of 256 tokens, head size 64: products of 4 * 256 * 256 * 64 FLOP with
// the 256 x 256 scores of both heads, 262144 B. On one multiprocessor of 1 TFLOP/s, 64 of k filling
// each tile:
//   scores 256 x 256, k 64: two tiles of 128 x 256 a head, 4 * 2*128*256*128 FLOP = 33.554 us
//   sums   256 x 64, k 256: two tiles of 128 x 64 a head (of 1.225), 4 * 2*128*64*320 * 1.225
//          = 25.690 us
// The products move the scores once each, in less time (2.6 us). Of 1,524,288 B the rest is 1 MB
// after a forward's two products: 10 us at 100 GB/s. A backward's four leave 475,712 B: 4.757 us.
TEST(Cost, eager_attention_pays_for_tiles_and_for_passes_over_the_scores) {
  AttentionWork work{1, 256, 2, 2, 64, DType::kBf16, Bytes{1'524'288}, {}, AttentionKind::kEager};
  work.flops = {4.0 * 256 * 256 * 64 * 2};
  const double two = cost(attention(Phase::kForward, work), tiny_machine()).us();
  EXPECT_NEAR(two, 33.554 + 25.690 + 10 + 2, 0.001);
  work.flops = {8.0 * 256 * 256 * 64 * 2};
  const double four = cost(attention(Phase::kBackward, work), tiny_machine()).us();
  EXPECT_NEAR(four, 33.554 + 3 * 25.690 + 4.757 + 4, 0.001);
}

// At 1 GB/s the products are bound by moving their scores: 262144 B and two operands of 65536 B
// take 393.2 us, where the arithmetic takes a tenth. A forward of nothing but its products takes
// two.
TEST(Cost, products_of_eager_attention_are_bound_by_their_scores_on_slow_memory) {
  Machine machine = tiny_machine();
  machine.gpu.memory_bandwidth.value = Bandwidth::from_gb_per_s(1);
  AttentionWork work{1, 256, 2, 2, 64, DType::kBf16, Bytes{524'288}, {}, AttentionKind::kEager};
  work.flops = {4.0 * 256 * 256 * 64 * 2};
  EXPECT_NEAR(cost(attention(Phase::kForward, work), machine).us(), 2 * 393.216 + 2, 0.001);
}

// 1 MB at 100 GB/s: 10 us; 2 MFLOP at 0.1 TFLOP/s: 20 us, which is more; and 1 us launch.
TEST(Cost, row_operations_take_the_longer_of_traffic_and_arithmetic) {
  const auto row = [](double flops) {
    return op_of(OpKind::kNorm, Phase::kForward, LaneKind::kCompute,
                 RowWork{1000, 250, DType::kBf16, Bytes{1'000'000}, Flops{flops}});
  };
  EXPECT_NEAR(cost(row(1e3), tiny_machine()).us(), 11, 1e-6);
  EXPECT_NEAR(cost(row(2e6), tiny_machine()).us(), 21, 1e-6);
}

// Packing on the GPU moves 2 MB at 100 GB/s: 20 us and the launch.
TEST(Cost, bucket_operations_on_the_gpu_take_their_traffic) {
  const Costed result =
      cost(bucket(OpKind::kPack, LaneKind::kCopyOut, Site::kGpu, 1, 2'000'000), tiny_machine());
  EXPECT_NEAR(result.us(), 21, 1e-6);
  EXPECT_EQ(result.demand("multiprocessors"), 1);
  EXPECT_NEAR(result.demand("hbm"), spread(2e6, 21), 1);
  EXPECT_EQ(result.demand("dram"), 0);
}

// --- the CPU -----------------------------------------------------------------------------------

// 1e6 parameters at 2e9 a second: 500 us where that was measured; "slow" takes 1000. 28 B a
// parameter in 1000 us are 28 GB/s of the 50; Adam runs on both optimizer threads.
TEST(Cost, adam_runs_at_the_rate_of_the_named_curve) {
  Machine machine = tiny_machine();
  machine.cpu.adam["quick"].measured = true;
  EXPECT_NEAR(cost(adam(1'000'000), machine).us(), 500, 1e-6);
  const Costed slow = cost(adam(1'000'000), tiny_machine(), nullptr, "slow");
  EXPECT_NEAR(slow.us(), 1000, 1e-6);
  EXPECT_NEAR(slow.demand("dram"), 28e9, 1);
  EXPECT_EQ(slow.demand("cores"), 2);
}

// 28 MB at 50 GB/s are 560 us, whatever a rate that was not measured here promises.
TEST(Cost, an_adam_that_was_not_measured_takes_at_least_its_traffic) {
  const Costed result = cost(adam(1'000'000), tiny_machine());
  EXPECT_NEAR(result.us(), 560, 1e-6);
  EXPECT_EQ(result.cost.provenance, Provenance::kRoofline);
}

// 28 MB in 500 us would be 56 GB/s of a memory of 50: alone it runs as measured all the same.
TEST(Cost, no_operation_demands_more_than_there_is) {
  Machine machine = tiny_machine();
  machine.cpu.adam["quick"].measured = true;
  EXPECT_EQ(cost(adam(1'000'000), machine).demand("dram"), 50e9);
}

TEST(Cost, an_adam_that_the_machine_does_not_know_is_an_error) {
  EXPECT_THROW(cost(adam(1), tiny_machine(), nullptr, "sve"), Error);
}

// Casts 5e9 elements a second, a snapshot 50 GB/s: 200 us, 160 us.
TEST(Cost, bucket_operations_on_the_cpu_use_their_curves_or_the_memory) {
  const Machine machine = tiny_machine();
  const auto us = [&](OpKind kind, LaneKind lane) {
    return cost(bucket(kind, lane, Site::kCpu, 1'000'000, 8'000'000), machine).us();
  };
  EXPECT_NEAR(us(OpKind::kCast, LaneKind::kCpu), 200, 1e-6);
  EXPECT_NEAR(us(OpKind::kSnapshot, LaneKind::kCpu), 160, 1e-6);
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

// Two devices a node: 2 ranks use the node's links (100 GB/s), 4 ranks the network (10 GB/s a card,
// two cards a node). All-gather of 400 MB, latencies 0, under NCCL's Simple protocol:
//   2 ranks: 200 MB at 100 GB/s = 2000 us, and 8.4 + 2.9 us
//   4 ranks: 300 MB at 20 GB/s = 15000 us, and 8.4 + 2 * 2.9 + 6.9 us; each card sends 150 MB
TEST(Cost, a_collective_of_more_ranks_than_a_node_has_goes_over_the_network) {
  Machine machine = tiny_machine();
  machine.devices_per_node = 2;
  machine.node.emplace().bandwidth.value = Bandwidth::from_gb_per_s(100);
  machine.network.emplace().bandwidth.value = Bandwidth::from_gb_per_s(10);
  const auto gather = [&](int64_t ranks) {
    return cost(op_of(OpKind::kCollective, Phase::kOptimizer, LaneKind::kDataNetwork,
                      CollectiveWork{CollectiveKind::kAllGather, Bytes{400'000'000}, ranks}),
                machine);
  };
  EXPECT_NEAR(gather(2).us(), 2011.3, 1e-6);
  EXPECT_NEAR(gather(2).demand("node"), spread(200e6, 2011.3), 10);
  EXPECT_NEAR(gather(4).us(), 15021.1, 1e-6);
  EXPECT_NEAR(gather(4).demand("network"), spread(150e6, 15021.1), 10);
  EXPECT_NEAR(gather(4).demand("hbm"), spread(600e6, 15021.1), 10);
  EXPECT_EQ(gather(4).demand("multiprocessors"), 0);
}

TEST(Cost, a_collective_without_an_interconnect_is_an_error) {
  const Op op = op_of(OpKind::kCollective, Phase::kOptimizer, LaneKind::kDataNetwork,
                      CollectiveWork{CollectiveKind::kAllReduce, Bytes{8}, 2});
  EXPECT_THROW(cost(op, tiny_machine()), Error);
}

// 1 MB over a remote link of 4 GB/s: 250 us and 2 us of latency; a remote link of 40 GB/s is not
// what binds: 100 us at the device's own 10 GB/s.
TEST(Cost, a_remote_binding_copies_over_the_remote_link) {
  Machine machine = tiny_machine();
  tests::Usage usage;
  usage.plan.numa = NumaBinding::kRemote;
  machine.link.remote.emplace().value = Bandwidth::from_gb_per_s(4);
  const Costed slow = cost_with(copy_in(1'000'000), machine, usage);
  EXPECT_NEAR(slow.us(), 252, 1e-6);
  EXPECT_NEAR(slow.capacities.at(4).amount, 8e9, 1);  // link total: 4 GB/s each way
  machine.link.remote.emplace().value = Bandwidth::from_gb_per_s(40);
  EXPECT_NEAR(cost_with(copy_in(1'000'000), machine, usage).us(), 102, 1e-6);
}

std::string complaint_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Cost, a_remote_binding_without_a_remote_link_names_the_key) {
  tests::Usage usage;
  usage.plan.numa = NumaBinding::kRemote;
  const std::string text =
      complaint_of([&] { CostModel(tiny_machine(), usage.plan, usage.stack, nullptr); });
  EXPECT_NE(text.find("link.remote_gb_per_s"), std::string::npos) << text;
  EXPECT_NE(text.find("numa remote"), std::string::npos) << text;
}

// Half the rate of products: 2 * 67.109 us; a quarter of the memory's: 4 * 10 us; a third of
// attention's: 3 * 2000 us; 1 us more for each launch. What the host takes is no time of the GPU's:
// 1 kB in a quarter of 100 GB/s is 0.04 us and 1 us. A copy is not a kernel: unchanged.
TEST(Cost, the_constants_of_a_stack_scale_the_roofline) {
  tests::Usage usage;
  usage.stack.constants.gemm = 0.5;
  usage.stack.constants.elementwise = 0.25;
  usage.stack.constants.attention = 1.0 / 3;
  usage.stack.constants.launch = Duration::from_us(5);
  const auto us = [&](const Op& op) { return cost_with(op, tiny_machine(), usage).us(); };
  EXPECT_NEAR(us(gemm(128, 256, 960)), 2 * 67.109 + 1, 0.001);
  EXPECT_NEAR(us(op_of(OpKind::kNorm, Phase::kForward, LaneKind::kCompute,
                       RowWork{1'000, 250, DType::kBf16, Bytes{1'000'000}, Flops{1e3}})),
              41, 1e-6);
  EXPECT_NEAR(us(op_of(OpKind::kNorm, Phase::kForward, LaneKind::kCompute,
                       RowWork{1, 250, DType::kBf16, Bytes{1'000}, Flops{1e3}})),
              1.04, 1e-6);
  const AttentionWork work{1, 128, 1, 1, 64, DType::kBf16, Bytes{1000}, Flops{1e9}};
  EXPECT_NEAR(us(attention(Phase::kForward, work)), 6001, 1e-6);
  EXPECT_NEAR(us(copy_in(1'000'000)), 102, 1e-6);
}

// What was measured already falls short as it does.
TEST(Cost, the_constants_of_a_stack_leave_measurements_alone) {
  tests::Usage usage;
  usage.stack.constants.gemm = 0.5;
  usage.stack.constants.launch = Duration::from_us(5);
  Measurements known;
  known[cost_key(gemm(128, 256, 960))] =
      measurement_of(gemm(128, 256, 960), {Duration::from_us(123), Duration{}});
  EXPECT_NEAR(cost_with(gemm(128, 256, 960), tiny_machine(), usage, &known).us(), 123, 1e-9);
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
  Program program;
  program.ops = {copy_in(1000), copy_in(1000)};
  program.ops[1].lane = lane_of(1, LaneKind::kCopyIn);
  Graph graph;
  graph.lanes = 2 * kLaneKinds;
  const CostTable table = CostModel(machine, Plan{}, Stack{}, nullptr).table(program, graph);
  ASSERT_EQ(table.capacities.size(), 14u);
  EXPECT_EQ(table.ops[1].demands[0].capacity, table.ops[0].demands[0].capacity + 7);
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
