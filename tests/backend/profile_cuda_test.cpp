// The profile of a GPU, on a device whose times can be worked out by hand (priced_cuda.h), and
// whose operations of training run on threads.
#include "backend/measure/cuda/profile_cuda.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <set>

#include "backend/measure/cuda/profile_cuda_compute.h"
#include "backend/measure/profile_operations.h"
#include "kernels/fp8.h"
#include "profiles/load.h"
#include "sim/engine/cost.h"
#include "tests/backend/cuda_training.h"
#include "tests/backend/priced_cuda.h"

namespace ballast {
namespace {

using tests::PricedCuda;
using tests::PricedDevice;
using tests::PricedKernels;
using tests::SteadyMonitor;

PricedDevice small_gpu() {
  PricedDevice device;
  device.properties.name = "Priced 100";
  device.properties.major = 9;
  device.properties.memory = {8'000'000'000};
  device.properties.multiprocessors = 4;
  device.properties.l2 = {50'000'000};
  device.properties.driver_version = 13020;
  device.properties.runtime_version = 13000;
  return device;
}

// Everything has its full rate from the first byte on.
PricedDevice without_latencies() {
  PricedDevice device = small_gpu();
  device.copy_latency = device.launch = device.handover = 0;
  return device;
}

CudaProfileOptions quick() {
  CudaProfileOptions options;
  options.effort = ProfileEffort::kQuick;
  options.when = "2026-01-02";
  options.models = {tiny::llama_model()};
  return options;
}

// What is left of the parts when the profile is over.
struct Seen {
  std::vector<std::string> calls;
};

CudaProfileParts parts_of(const PricedDevice& device, Seen* seen = nullptr) {
  CudaProfileParts parts;
  auto runtime = std::make_unique<PricedCuda>(device);
  PricedCuda* const priced = runtime.get();
  parts.make_kernels = [seen, priced](CudaRuntime&) -> std::unique_ptr<CudaProbeKernels> {
    struct Watched : PricedKernels {
      Watched(PricedCuda& r, Seen* s) : PricedKernels(r), runtime(r), seen_by(s) {}
      ~Watched() override {
        if (seen_by != nullptr) seen_by->calls = runtime.calls();
      }
      PricedCuda& runtime;
      Seen* seen_by;
    };
    return std::make_unique<Watched>(*priced, seen);
  };
  parts.now = [priced] { return priced->now(); };
  parts.runtime = std::move(runtime);
  parts.monitor = std::make_unique<SteadyMonitor>();
  parts.trainer = tests::on_thread_cuda({}, {});
  return parts;
}

Profile profile_of(const PricedDevice& device) { return profile_cuda(quick(), parts_of(device)); }

std::string failure_of(const CudaProfileOptions& options, const PricedDevice& device) {
  try {
    profile_cuda(options, parts_of(device));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

const ProbeReport& report(const Profile& profile, const std::string& name) {
  for (const ProbeReport& probe : profile.probes) {
    if (probe.name == name) return probe;
  }
  throw Error(name, "is no probe", "name another");
}

// A kernel of 2 us between two events: 2 us an operation. There and back over two streams takes two
// kernels and two waits of 3 us, on one stream the kernels alone: 3 us a wait.
TEST(CudaProfile, launch_and_handover_are_told_apart) {
  const Machine machine = profile_of(small_gpu()).machine;
  EXPECT_NEAR(machine.gpu.launch.value.us(), 2, 1e-6);
  EXPECT_NEAR(machine.handover.value.us(), 3, 1e-6);
}

// Rates as they are; 25 % of pinned; 50 and 40 GB/s at once are 90.
TEST(CudaProfile, rates_of_the_device_come_out) {
  const Machine machine = profile_of(without_latencies()).machine;
  EXPECT_NEAR(machine.gpu.memory_bandwidth.value.gb_per_s(), 4000, 1);
  EXPECT_NEAR(machine.gpu.vector.value.tflops(), 50, 0.01);
  EXPECT_NEAR(machine.gpu.matmul.at(DType::kBf16).value.tflops(), 600, 0.5);
  EXPECT_NEAR(machine.gpu.matmul.at(DType::kF16).value.tflops(), 500, 0.5);
  EXPECT_NEAR(machine.gpu.matmul.at(DType::kF32).value.tflops(), 40, 0.1);
  EXPECT_NEAR(machine.gpu.matmul.at(DType::kE4m3).value.tflops(), 1100, 1);
  EXPECT_TRUE(machine.gpu.matmul.at(DType::kE4m3).measured);
  ASSERT_EQ(machine.gpu.attention.size(), 1U);
  ASSERT_EQ(machine.gpu.attention[0].forward.points.size(), 2U);
  EXPECT_EQ(machine.gpu.attention[0].head_size, 64);
  EXPECT_NEAR(machine.gpu.attention[0].forward.rate_at(256) / 1e12, 200, 0.2);
  EXPECT_NEAR(machine.gpu.attention[0].backward.rate_at(256) / 1e12, 200, 0.2);
  EXPECT_NEAR(machine.gpu.attention_efficiency.value, 200.0 / 600, 1e-3);
  EXPECT_NEAR(machine.link.host_to_device.rate_at(65536) / 1e9, 50, 0.01);
  EXPECT_NEAR(machine.link.device_to_host.rate_at(65536) / 1e9, 40, 0.01);
  EXPECT_NEAR(machine.link.kernel_reads.rate_at(65536) / 1e9, 20, 0.01);
  EXPECT_NEAR(machine.link.kernel_writes.rate_at(65536) / 1e9, 20, 0.01);
  EXPECT_NEAR(machine.link.pageable_share.value, 0.25, 1e-4);
  EXPECT_NEAR(machine.link.both_total.value.gb_per_s(), 90, 0.1);
}

// 4096 bytes: 2 us and 0.08192 us at 50 GB/s, so 1.967 GB/s. 262144 bytes: 2 and 5.243, 36.19 GB/s.
TEST(CudaProfile, small_copies_pay_for_their_start) {
  const Machine machine = profile_of(small_gpu()).machine;
  const std::vector<Curve::Point>& points = machine.link.host_to_device.points;
  ASSERT_EQ(points.size(), 4U);
  EXPECT_EQ(points.front().size, 4096);
  EXPECT_NEAR(points.front().rate / 1e9, 1.967, 0.001);
  EXPECT_EQ(points.back().size, 262144);
  EXPECT_NEAR(points.back().rate / 1e9, 36.19, 0.01);
  EXPECT_EQ(machine.link.latency.value.ps, 0);  // it is in the rates
}

// The 2 us of a kernel's start are those of every kernel: 20 GB/s at every size.
TEST(CudaProfile, rates_of_kernels_across_the_link_are_without_their_start) {
  const Link link = profile_of(small_gpu()).machine.link;
  for (const Curve& curve : {link.kernel_reads, link.kernel_writes}) {
    ASSERT_EQ(curve.points.size(), 4U);
    EXPECT_TRUE(curve.measured);
    EXPECT_NEAR(curve.points.back().rate / 1e9, 20, 0.01);
    // 0.2 us beside a start of 2: half of the 2.2 are the most that is taken off.
    EXPECT_NEAR(curve.points.front().rate / 1e9, 4096 / 1.1024 / 1e3, 0.01);
  }
}

TEST(CudaProfile, gpu_that_cannot_address_pinned_memory_is_asked_for_no_such_rates) {
  PricedDevice device = small_gpu();
  device.properties.addresses_pinned_memory = false;
  const Link link = profile_of(device).machine.link;
  EXPECT_TRUE(link.kernel_reads.empty());
  EXPECT_TRUE(link.kernel_writes.empty());
}

// 500 MB of context and 40 MB of libraries; the profile's own memory does not count.
TEST(CudaProfile, memory_that_is_taken_is_that_of_context_and_libraries) {
  const Profile profile = profile_of(small_gpu());
  EXPECT_EQ(profile.machine.gpu.memory.value.count, 8'000'000'000);
  EXPECT_EQ(profile.machine.gpu.reserved.value.count, 540'000'000);
  EXPECT_TRUE(report(profile, "memory of context and libraries")
                  .result.starts_with("540 MB, of which 500 MB before the first kernel"));
}

TEST(CudaProfile, machine_can_be_written_and_read_and_is_measured_throughout) {
  const Machine machine = profile_of(small_gpu()).machine;
  const std::string json = machine_json(machine);
  EXPECT_EQ(machine_json(parse_machine(json, "profile")), json);
  EXPECT_EQ(json.find("\"measured\": false"), std::string::npos);
  EXPECT_EQ(machine.name, "here");
  EXPECT_EQ(machine.gpu.name, "Priced 100");
  EXPECT_EQ(machine.gpu.multiprocessors, 4);
  EXPECT_FALSE(machine.gpu.is_host_thread);
  EXPECT_EQ(machine.link.kind, "pcie");
  EXPECT_EQ(machine.cpu.adam.size(), kernels::available().size());
  EXPECT_GT(machine.cpu.core_bandwidth->value.bytes_per_s, 0);
  EXPECT_NE(machine.description.find("driver 580.65.06, CUDA 13.0"), std::string::npos);
}

TEST(CudaProfile, memory_that_is_shared_makes_a_coherent_link) {
  PricedDevice device = small_gpu();
  device.properties.shares_page_tables = true;
  EXPECT_EQ(profile_of(device).machine.link.kind, "c2c");
}

TEST(CudaProfile, every_number_says_under_which_conditions_it_was_measured) {
  const Profile profile = profile_of(small_gpu());
  const std::string conditions =
      "at 1755 MHz (memory 3201), up to 512 W and 61 C, slowed by its power limit";
  const std::string source = "measured 2026-01-02 by ballast profile; GPU " + conditions;
  EXPECT_EQ(profile.machine.gpu.memory_bandwidth.source, source);
  EXPECT_EQ(profile.machine.link.host_to_device.source, source);
  for (const ProbeReport& probe : profile.probes) {
    EXPECT_TRUE(probe.ran) << probe.name << ": " << probe.result;
    EXPECT_TRUE(probe.result.ends_with(conditions)) << probe.name << ": " << probe.result;
  }
}

TEST(CudaProfile, without_a_monitor_only_the_conditions_are_missing) {
  CudaProfileParts parts = parts_of(small_gpu());
  parts.monitor = std::make_unique<SteadyMonitor>("it is not here");
  const Machine machine = profile_cuda(quick(), std::move(parts)).machine;
  EXPECT_EQ(machine.gpu.memory_bandwidth.source, "measured 2026-01-02 by ballast profile");
  EXPECT_NE(machine.description.find("driver for CUDA 13.2, CUDA 13.0"), std::string::npos);
}

TEST(CudaProfile, probes_come_in_the_order_in_which_they_need_one_another) {
  Seen seen;
  const Profile profile = profile_cuda(quick(), parts_of(small_gpu(), &seen));
  std::vector<std::string> names;
  for (size_t i = 0; i < profile.probes.size(); ++i) {
    EXPECT_EQ(profile.probes[i].index, static_cast<int>(i) + 1);
    EXPECT_EQ(profile.probes[i].count, static_cast<int>(profile.probes.size()));
    if (!profile.probes[i].name.starts_with("Adam ")) names.push_back(profile.probes[i].name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"memory of context and libraries",
                                             "least operation",
                                             "hand-over between streams",
                                             "memory of the GPU",
                                             "fp32 arithmetic",
                                             "copy host to device",
                                             "copy device to host",
                                             "kernel reads CPU memory",
                                             "kernel writes CPU memory",
                                             "copies of pageable memory",
                                             "copy both ways at once",
                                             "square products",
                                             "square products in fp8",
                                             "products of the models",
                                             "attention by length",
                                             "cast fp32 to bf16",
                                             "snapshot of optimizer state",
                                             "memory of the CPU",
                                             "gpt2 width 64, 2 x 32 tokens, bf16",
                                             "layer of tiny-llama, 128 x 64 tokens, bf16"}));
  std::vector<std::string> kernels;  // by their first call
  for (const std::string& call : seen.calls) {
    if (std::find(kernels.begin(), kernels.end(), call) == kernels.end()) kernels.push_back(call);
  }
  EXPECT_EQ(kernels,
            (std::vector<std::string>{"empty", "product bf16", "copy kernel", "triad", "arithmetic",
                                      "cast", "product fp16", "product fp32", "product fp8",
                                      "attention forward", "attention backward"}));
}

TEST(CudaProfile, operations_price_a_plan_by_measurement) {
  const Profile profile = profile_of(small_gpu());
  std::set<std::string> keys;
  std::set<OpKind> kinds;
  Measurements measurements;
  for (const OperationTime& time : profile.operations) {
    EXPECT_TRUE(keys.insert(cost_key(time.op)).second) << cost_key(time.op);
    EXPECT_GT(time.median.ps, 0);
    kinds.insert(time.op.kind);
    measurements[cost_key(time.op)] = measurement_of(time.op, {time.median, time.deviation});
  }
  for (const OpKind kind : {OpKind::kGemm, OpKind::kAttention, OpKind::kNorm, OpKind::kActivation,
                            OpKind::kLoss, OpKind::kEmbedding, OpKind::kAdam, OpKind::kCopy}) {
    EXPECT_TRUE(kinds.contains(kind)) << to_string(kind);
  }
  // A copy of 16 KiB of pageable memory to the device: 2 us and 16384 / 12.5e9 s, 3.31 us.
  Op copy;
  copy.kind = OpKind::kCopy;
  copy.phase = Phase::kFetch;
  copy.work = CopyWork{{16384}, CopyDirection::kHostToDevice, HostMemory::kPageable, 1};
  ASSERT_TRUE(measurements.contains(cost_key(copy)));
  EXPECT_NEAR(measurements[cost_key(copy)].median.us(), 3.311, 0.001);
}

TEST(CudaProfile, copy_that_does_not_arrive_is_noticed) {
  PricedDevice device = small_gpu();
  device.loses_copies = true;
  const std::string failure = failure_of(quick(), device);
  EXPECT_NE(failure.find("probe 'copy host to device'"), std::string::npos) << failure;
  EXPECT_NE(failure.find("4096 bytes did not arrive"), std::string::npos) << failure;
}

TEST(CudaProfile, probe_that_fails_names_itself_and_the_others_go_on) {
  PricedDevice device = small_gpu();
  device.failing = "triad";
  CudaProfileOptions options = quick();
  std::vector<ProbeReport> seen;
  options.on_probe = [&](const ProbeReport& probe) { seen.push_back(probe); };
  const std::string failure = failure_of(options, device);
  EXPECT_NE(failure.find("probe 'memory of the GPU'"), std::string::npos) << failure;
  EXPECT_NE(failure.find("cuda kernel triad"), std::string::npos) << failure;
  int failed = 0;
  for (const ProbeReport& probe : seen) failed += !probe.ran;
  EXPECT_EQ(failed, 1);
  EXPECT_GT(seen.size(), 15U);
}

TEST(CudaProfile, what_cannot_be_measured_comes_from_a_shipped_machine_and_says_so) {
  PricedDevice device = small_gpu();
  device.failing = "attention backward";
  CudaProfileOptions options = quick();
  options.shipped = [](const std::string& gpu, Bytes memory) {
    EXPECT_EQ(gpu, "Priced 100");
    EXPECT_EQ(memory, small_gpu().properties.memory);
    return load_machine("hgx-h200-quad");
  };
  const Gpu gpu = profile_cuda(options, parts_of(device)).machine.gpu;
  EXPECT_FALSE(gpu.attention_efficiency.measured);
  EXPECT_EQ(gpu.attention_efficiency.value,
            load_machine("hgx-h200-quad").gpu.attention_efficiency.value);
  EXPECT_TRUE(
      gpu.attention_efficiency.source.starts_with("not measured here; machine hgx-h200-quad: "));
  EXPECT_TRUE(gpu.memory_bandwidth.measured);
}

// A clock that is ten seconds later whenever it is read: the whole time is soon over.
TEST(CudaProfile, time_that_is_used_up_leaves_sizes_out_and_never_the_first) {
  CudaProfileParts parts = parts_of(small_gpu());
  parts.now = [now = 0.0]() mutable { return now += 10; };
  const Profile profile = profile_cuda(quick(), std::move(parts));
  EXPECT_EQ(profile.machine.link.host_to_device.points.size(), 1U);
  EXPECT_EQ(profile.machine.gpu.attention[0].forward.points.size(), 1U);
  EXPECT_TRUE(report(profile, "products of the models").result.starts_with("1 of "));
  const ProbeReport& layer = report(profile, "layer of tiny-llama, 128 x 64 tokens, bf16");
  EXPECT_FALSE(layer.ran);
  EXPECT_NE(layer.result.find("is used up"), std::string::npos);
}

TEST(CudaProfile, gpu_older_than_fp8_has_no_rate_of_it_and_the_probe_says_why) {
  PricedDevice device = small_gpu();
  device.properties.major = 8;
  device.properties.minor = 6;
  Seen seen;
  CudaProfileOptions options = quick();
  options.shipped = [](const std::string&, Bytes) { return load_machine("hgx-h200-quad"); };
  const Profile profile = profile_cuda(options, parts_of(device, &seen));
  EXPECT_FALSE(profile.machine.gpu.matmul.contains(DType::kE4m3));
  EXPECT_TRUE(profile.machine.gpu.matmul.at(DType::kBf16).measured);
  EXPECT_EQ(std::count(seen.calls.begin(), seen.calls.end(), "product fp8"), 0);
  const ProbeReport& probe = report(profile, "square products in fp8");
  EXPECT_FALSE(probe.ran);
  EXPECT_NE(probe.result.find("8.9 or newer, and Priced 100 has 8.6"), std::string::npos)
      << probe.result;
}

// Products in fp8 are a choice of plans: a profile without their rate is one. The rate of a shipped
// machine with the same GPU is named as such.
TEST(CudaProfile, fp8_that_fails_is_left_out_or_taken_from_a_shipped_machine) {
  PricedDevice device = small_gpu();
  device.failing = "product fp8";
  EXPECT_FALSE(profile_of(device).machine.gpu.matmul.contains(DType::kE4m3));
  CudaProfileOptions options = quick();
  options.shipped = [](const std::string&, Bytes) { return load_machine("hgx-h200-quad"); };
  const Gpu gpu = profile_cuda(options, parts_of(device)).machine.gpu;
  const Sourced<FlopRate>& rate = gpu.matmul.at(DType::kE4m3);
  EXPECT_FALSE(rate.measured);
  EXPECT_TRUE(rate.source.starts_with("not measured here; machine hgx-h200-quad: "));
}

TEST(CudaProfile, gpu_without_memory_to_work_on_is_refused_with_a_reason) {
  PricedDevice device = small_gpu();
  device.context = {device.properties.memory.count - 1000};
  const std::string failure = failure_of(quick(), device);
  EXPECT_NE(failure.find("working memory of the profile"), std::string::npos) << failure;
}

TEST(CudaProfile, impossible_options_are_refused) {
  CudaProfileOptions many_threads = quick();
  many_threads.optimizer_threads = static_cast<int>(host_facts().cores) + 1;
  EXPECT_THROW(profile_cuda(many_threads, parts_of(small_gpu())), Error);
  CudaProfileOptions nowhere = quick();
  nowhere.device = "cuda:nowhere";
  EXPECT_THROW(profile_cuda(nowhere), Error);
}

// --- Its parts ---------------------------------------------------------------------------------

// Notes products instead of computing them.
class NotedProducts : public PricedKernels {
 public:
  using PricedKernels::PricedKernels;
  void multiply(const CudaGemm& gemm, CudaStream stream) override {
    noted.push_back(gemm);
    PricedKernels::multiply(gemm, stream);
  }
  std::vector<CudaGemm> noted;
};

// x [2, 5] W [3, 5]^T; dy [2, 3] W [3, 5]; dy [2, 3]^T x [2, 5]: what is stored decides the
// strides.
TEST(CudaProfile, products_are_asked_for_as_models_store_their_matrices) {
  PricedCuda runtime(small_gpu());
  NotedProducts kernels(runtime);
  CudaStopwatch watch(runtime, [] { return 0.0; }, {4096});
  CudaWorkspace workspace(runtime, watch.stream(), {1 << 20});
  CudaCompute compute(runtime, kernels, watch, workspace, {});
  struct Case {
    Phase phase;
    GemmWork work;
    int64_t a_stride, b_stride;
    Orientation a, b;
  };
  using enum Orientation;
  for (const Case& tried :
       {Case{Phase::kForward, {2, 3, 5, DType::kBf16}, 5, 5, kAsStored, kTransposed},
        Case{Phase::kBackwardInput, {2, 5, 3, DType::kBf16}, 3, 5, kAsStored, kAsStored},
        Case{
            Phase::kBackwardWeight, {3, 5, 2, DType::kBf16, true}, 3, 5, kTransposed, kAsStored}}) {
    Op op;
    op.kind = OpKind::kGemm;
    op.phase = tried.phase;
    op.work = tried.work;
    kernels.noted.clear();
    compute.product(op, {2, 4, 0.001, 0.05});
    ASSERT_FALSE(kernels.noted.empty());
    const CudaGemm& gemm = kernels.noted.front();
    EXPECT_EQ(gemm.m, tried.work.m);
    EXPECT_EQ(gemm.n, tried.work.n);
    EXPECT_EQ(gemm.k, tried.work.k);
    EXPECT_EQ(gemm.a.stride, tried.a_stride);
    EXPECT_EQ(gemm.b.stride, tried.b_stride);
    EXPECT_EQ(gemm.a.orientation, tried.a);
    EXPECT_EQ(gemm.b.orientation, tried.b);
    EXPECT_EQ(gemm.out_stride, tried.work.n);
    EXPECT_EQ(gemm.added, tried.work.accumulate ? gemm.out : nullptr);
    // Small operands change from repeat to repeat, or they would come from a cache.
    const CudaGemm& last = kernels.noted.back();
    const CudaGemm& before = kernels.noted[kernels.noted.size() - 2];
    EXPECT_NE(last.a.data, before.a.data);
    EXPECT_NE(last.out, before.out);
  }
}

// What cuBLASLt takes of 8 bits on Hopper: the summed side next to each other in both factors, a
// scale for each on the device, bf16 out. The factors are numbers that spread over e4m3's range.
TEST(CudaProfile, products_in_fp8_are_asked_for_as_the_library_takes_them) {
  PricedCuda runtime(small_gpu());
  NotedProducts kernels(runtime);
  CudaStopwatch watch(runtime, [] { return 0.0; }, {4096});
  CudaWorkspace workspace(runtime, watch.stream(), {1 << 20});
  CudaCompute::Extent extent;
  extent.square = 256;
  extent.limits = {2, 4, 0.001, 0.05};
  CudaCompute compute(runtime, kernels, watch, workspace, extent);
  compute.best_product(DType::kE4m3);
  ASSERT_FALSE(kernels.noted.empty());
  std::set<int64_t> sides;
  for (const CudaGemm& gemm : kernels.noted) {
    sides.insert(gemm.m);
    EXPECT_TRUE(gemm.m == gemm.n && gemm.n == gemm.k);
    EXPECT_EQ(gemm.a.orientation, Orientation::kAsStored);
    EXPECT_EQ(gemm.b.orientation, Orientation::kTransposed);
    EXPECT_EQ(gemm.out_dtype, DType::kBf16);
    for (const GemmOperand& factor : {gemm.a, gemm.b}) {
      EXPECT_EQ(factor.dtype, DType::kE4m3);
      EXPECT_EQ(factor.stride, gemm.k);
      ASSERT_NE(factor.scale, nullptr);
      EXPECT_EQ(*factor.scale, 1.0f);
      float largest = 0;
      const auto* codes = static_cast<const uint8_t*>(factor.data);
      for (int64_t i = 0; i < gemm.m * gemm.k; ++i) {
        const float value = kernels::float_of_fp8(kernels::Fp8::kE4m3, codes[i]);
        ASSERT_TRUE(std::isfinite(value)) << i;
        largest = std::max(largest, std::fabs(value));
      }
      EXPECT_GT(largest, 100);
    }
  }
  EXPECT_EQ(sides, (std::set<int64_t>{64, 128, 256}));
}

// Seven products of a llama layer and the head, in three phases; q, k and v are one and so are gate
// and up: qkv, out, fc1, fc2, head. As wide as it is, the output has the shape of no other.
TEST(CudaProfile, products_of_a_model_are_those_of_a_layer_and_the_head) {
  const std::vector<Op> ops = product_grid({tiny::llama_model()}, {128});
  EXPECT_EQ(ops.size(), 15U);
  std::set<std::string> keys;
  double flops = 0;
  for (const Op& op : ops) {
    EXPECT_TRUE(keys.insert(cost_key(op)).second);
    EXPECT_GE(flops_of(op.work).count, flops);
    flops = flops_of(op.work).count;
  }
  // Biases are summed in operations of gpt2's products.
  EXPECT_TRUE(product_grid({tiny::gpt2_model()}, {128}).empty());
}

TEST(CudaProfile, layers_are_timed_once_a_shape_and_up_to_a_size) {
  Model twin = tiny::llama_model();
  twin.name = "twin";
  twin.layers = 80;
  twin.scaled_rope = true;
  Model experts = twin;
  experts.experts = 8;
  const std::vector<OperationCase> grid =
      layer_grid({tiny::gpt2_model(), tiny::llama_model(), twin, experts}, 1'000'000);
  ASSERT_EQ(grid.size(), 2U);
  EXPECT_TRUE(grid[0].name.starts_with("layer of tiny-llama, "));  // the smaller layer first
  EXPECT_TRUE(grid[1].name.starts_with("layer of tiny-gpt2, "));
  for (const OperationCase& operation : grid) {
    EXPECT_EQ(operation.model.layers, 1);
    check(operation.plan, operation.model);
  }
  EXPECT_TRUE(layer_grid({tiny::gpt2_model()}, 1000).empty());
}

TEST(CudaProfile, every_shipped_model_that_devices_run_has_products_or_layers) {
  std::vector<Model> models;
  for (const Shipped& shipped : shipped_models()) models.push_back(load_model(shipped.name));
  EXPECT_GT(product_grid(models, {1024, 8192}).size(), 100U);
  const std::vector<OperationCase> grid = layer_grid(models, 1'000'000'000);
  EXPECT_GT(grid.size(), 8U);
  for (const OperationCase& operation : grid) check(operation.plan, operation.model);
}

}  // namespace
}  // namespace ballast
