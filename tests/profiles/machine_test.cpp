// Machine files: strict keys, units, round trips.
#include <gtest/gtest.h>
#include <map>
#include <nlohmann/json.hpp>

#include "profiles/load.h"
#include "profiles/shipped.h"
#include "sim/engine/collective.h"
#include "sim/engine/cost.h"
#include "tests/profiles/support.h"

namespace ballast {
namespace {

using Json = nlohmann::json;
using Pointer = Json::json_pointer;
using profile_tests::error_of;
using profile_tests::holds;

Json document() { return Json::parse(machine_json(load_machine("gh200-96gb-480gb"))); }

Machine parse(const Json& json) { return parse_machine(json.dump(), "box.json"); }

// 102.625182 GB is 102,625,182,000 bytes; 403 GB/s is 4.03e11; 2.4 us is 2.4e6 ps.
TEST(Machines, units_of_keys_become_types) {
  const Machine machine = load_machine("gh200-96gb-480gb");
  EXPECT_EQ(machine.gpu.memory.value.count, 102'625'182'000);
  EXPECT_NEAR(machine.link.host_to_device.points.back().rate, 4.03e11, 1e9);
  EXPECT_EQ(machine.link.host_to_device.points[0].size, 4096);
  EXPECT_EQ(machine.gpu.launch.value.ps, 2'400'000);
  EXPECT_EQ(machine.gpu.matmul.at(DType::kF32).value.flops_per_s, 67e12);
  EXPECT_TRUE(machine.link.host_to_device.measured);
  EXPECT_FALSE(machine.gpu.matmul.at(DType::kF32).measured);
  EXPECT_FALSE(machine.node.has_value());
}

// Table 3 of arXiv 2509.21271: 1e9 parameters in 0.082 s.
TEST(Machines, grace_adam_has_the_published_rate) {
  const Machine machine = load_machine("gh200-96gb-480gb");
  EXPECT_NEAR(machine.cpu.adam.at("grace-adam").rate_at(1e9), 1e9 / 0.082, 1e5);
  EXPECT_NEAR(machine.cpu.adam.at("pt-cpu").rate_at(8e9), 8e9 / 1.834, 1e5);
}

TEST(Machines, writing_and_reading_give_the_same_text) {
  for (const Shipped& shipped : shipped_machines()) {
    const std::string text = machine_json(load_machine(shipped.name));
    EXPECT_EQ(machine_json(parse_machine(text, "copy")), text) << shipped.name;
  }
}

TEST(Machines, saved_machine_loads_again) {
  const profile_tests::TemporaryFolder folder;
  const Machine machine = load_machine("alps-gh200-quad");
  save_machine(machine, folder.file("mine.json"));
  EXPECT_EQ(machine_json(load_machine(folder.file("mine.json"))), machine_json(machine));
}

struct Change {
  const char* pointer;
  Json value;
  const char* message;
};

TEST(Machines, wrong_values_name_the_file_and_the_key) {
  const Change changes[] = {
      {"/schema", "ballast.machine/2", "key 'schema'"},
      {"/gpu/memory_gb/value", -1, "key 'gpu.memory_gb.value': is -1"},
      {"/power_watts/value", 0, "key 'power_watts.value': is 0"},
      {"/gpu/memory_gb", 96, "key 'gpu.memory_gb': must be an object"},
      {"/gpu/memory_gb/source", "", "key 'gpu.memory_gb.source': is empty"},
      {"/gpu/memory_gb/measured", "no", "key 'gpu.memory_gb.measured': must be true or false"},
      {"/gpu/reserved_gb/value", 200, "gpu.reserved"},
      {"/gpu/attention_efficiency/value", 1.5, "key 'gpu.attention_efficiency.value': is 1.5"},
      {"/gpu/launch_us/value", 1e300, "key 'gpu.launch_us.value'"},
      {"/link/kind", "c2", "did you mean 'c2c'"},
      {"/link/host_to_device/bytes", Json::array({1, 1, 2, 3, 4, 5, 6, 7}), "has 1 after 1"},
      {"/link/host_to_device/bytes", Json::array({1, 2, 3}), "has 8 numbers for 3 sizes"},
      {"/link/host_to_device/bytes/0", 1e-308, "key 'link.host_to_device.bytes"},
      {"/link/host_to_device/gb_per_s", Json::array({0, 1}), "is 0"},
      {"/link/host_to_device/gb_per_s", Json::array(), "must be a list of numbers"},
      {"/cpu/optimizer_threads", 1000, "cpu.optimizer_threads"},
      {"/devices_per_node", 4, "node"},
      {"/gpu/matmul_tflops", Json::object(), "gpu.matmul"},
      {"/handover_us", nullptr, "key 'handover_us': must be an object, and is null"}};
  for (const Change& change : changes) {
    Json json = document();
    json["gpu"].erase("kernels");  // which stands for rates that the file leaves out
    json[Pointer(change.pointer)] = change.value;
    const std::string message = error_of([&] { parse(json); });
    EXPECT_TRUE(holds(message, change.message)) << change.pointer;
    EXPECT_TRUE(holds(message, "box.json")) << change.pointer;
  }
}

// Machines that were profiled before there was a choice used one thread.
TEST(Machines, compute_threads_are_of_a_host_and_one_where_nothing_is_said) {
  Json json = document();
  EXPECT_EQ(parse(json).gpu.compute_threads, 1);
  json["gpu"]["compute_threads"] = 2;
  EXPECT_TRUE(holds(error_of([&] { parse(json); }), "gpu.compute_threads"));
  json["gpu"]["is_host_thread"] = true;
  const Machine machine = parse(json);
  EXPECT_EQ(machine.gpu.compute_threads, 2);
  EXPECT_EQ(parse(Json::parse(machine_json(machine))).gpu.compute_threads, 2);
  json["gpu"]["compute_threads"] = 1'000'000;
  EXPECT_TRUE(holds(error_of([&] { parse(json); }), "is larger than cpu.cores"));
  json["gpu"]["compute_threads"] = 0;
  EXPECT_TRUE(holds(error_of([&] { parse(json); }), "gpu.compute_threads"));
}

TEST(Machines, unknown_keys_name_the_nearest_known_one) {
  Json json = document();
  json["link"]["latency_ms"] = 1;
  const std::string message = error_of([&] { parse(json); });
  EXPECT_TRUE(holds(message, "key 'link.latency_ms': is unknown; did you mean 'latency_us'?"));
}

TEST(Machines, missing_keys_name_the_unknown_key_that_looks_like_it) {
  Json json = document();
  json["gpu"]["memry_gb"] = json["gpu"]["memory_gb"];
  json["gpu"].erase("memory_gb");
  const std::string message = error_of([&] { parse(json); });
  EXPECT_TRUE(holds(message, "key 'gpu.memory_gb': is missing; add it, or rename 'memry_gb'"));
}

// Of the same card the same design power, whoever built the node; and none where it is not known.
TEST(Machines, know_the_power_of_a_device_where_a_data_sheet_says_it) {
  const std::map<std::string, double> watts = {
      {"h100-sxm-80gb", 700},   {"dgx-h100-80gb", 700},    {"hgx-h200-quad", 700},
      {"hgx-a100-80gb", 400},   {"selene-a100-80gb", 400}, {"dgx-2-v100", 350},
      {"jedi-gh200-quad", 680}, {"gh200-96gb-480gb", 1000}};
  for (const auto& [name, power] : watts) {
    const Machine machine = load_machine(name);
    ASSERT_TRUE(machine.power_watts) << name;
    EXPECT_EQ(machine.power_watts->value, power) << name;
    EXPECT_FALSE(machine.power_watts->measured) << name;
  }
  EXPECT_FALSE(load_machine("mi300a-quad").power_watts);
}

// What not every machine has; see the head of profiles/machine.cpp.
bool optional(const std::string& key) {
  return key == "attention_tflops" || key == "core_bandwidth_gb_per_s" || key == "dispatch_us" ||
         key == "power_watts" || key == "nominal_matmul_tflops" || key == "node" ||
         key == "network" || key == "kernel_reads" || key == "kernel_writes";
}

// A part of a generation of device tables brings rates, which the file's own go before.
TEST(Machines, a_part_of_the_device_tables_brings_what_the_file_leaves_out) {
  Json json = document();
  EXPECT_EQ(json["gpu"]["kernels"], Json({{"generation", "hopper"}, {"part", "gh200-480gb"}}));
  json["gpu"]["kernels"]["part"] = "h200";
  json["gpu"].erase("memory_bandwidth_gb_per_s");
  json["gpu"]["matmul_tflops"].erase("bf16");
  json["gpu"]["matmul_tflops"]["fp8"]["value"] = 1000.0;
  const Machine machine = parse(json);
  EXPECT_EQ(machine.gpu.memory_bandwidth.value.gb_per_s(), 4150);
  EXPECT_EQ(machine.gpu.matmul.at(DType::kBf16).value.tflops(), 788);
  EXPECT_TRUE(machine.gpu.matmul.at(DType::kBf16).measured);
  EXPECT_EQ(machine.gpu.matmul.at(DType::kE4m3).value.tflops(), 1000);
  json["gpu"]["kernels"]["part"] = "h2000";
  EXPECT_TRUE(holds(error_of([&] { parse(json); }), "gpu.kernels.part"));
  json["gpu"]["kernels"] = {{"generation", "hoper"}, {"part", "h200"}};
  EXPECT_TRUE(holds(error_of([&] { parse(json); }), "did you mean 'hopper'"));
}

TEST(Machines, every_key_but_the_optional_ones_is_required) {
  Json json = document();
  json["gpu"].erase("kernels");  // which stands for others
  for (const auto& item : json.items()) {
    if (optional(item.key())) continue;
    Json less = json;
    less.erase(item.key());
    EXPECT_TRUE(holds(error_of([&] { parse(less); }), "is missing")) << item.key();
    if (!item.value().is_object()) continue;
    for (const auto& inner : item.value().items()) {
      if (optional(inner.key())) continue;
      less = json;
      less[item.key()].erase(inner.key());
      EXPECT_TRUE(holds(error_of([&] { parse(less); }), "is missing")) << inner.key();
    }
  }
}

TEST(Machines, a_rate_that_profiles_had_before_is_read_and_not_written_again) {
  Json json = document();
  EXPECT_FALSE(json["cpu"].contains("sum_of_squares"));
  json["cpu"]["sum_of_squares"] = {
      {"elements", {1e6}}, {"elements_per_s", {1e9}}, {"source", "test"}, {"measured", true}};
  EXPECT_EQ(machine_json(parse(json)), machine_json(parse(document())));
  json["cpu"]["sum_of_squares"] = nullptr;
  EXPECT_EQ(machine_json(parse(json)), machine_json(parse(document())));
}

TEST(Machines, keys_that_few_machines_have_may_be_left_out) {
  Json json = document();
  json.erase("power_watts");
  json["gpu"].erase("attention_tflops");
  json["cpu"].erase("core_bandwidth_gb_per_s");
  json["cpu"].erase("dispatch_us");
  const Machine less = parse(json);
  EXPECT_FALSE(less.power_watts);
  EXPECT_TRUE(less.gpu.attention.empty());
  EXPECT_FALSE(less.cpu.core_bandwidth || less.cpu.dispatch);
  EXPECT_EQ(host_slowness(less.cpu), 1) << "as fast as the reference";
  EXPECT_FALSE(less.link.remote || less.link.network_share || less.nvme || less.node);
  const Json number = {{"value", 4.0}, {"source", "test"}, {"measured", false}};
  const Json curve = {
      {"bytes", {1e6}}, {"gb_per_s", {2.0}}, {"source", "test"}, {"measured", true}};
  json["power_watts"] = number;
  json["link"]["remote_gb_per_s"] = number;
  json["link"]["network_share"] = {{"value", 0.5}, {"source", "test"}, {"measured", false}};
  json["cpu"]["core_bandwidth_gb_per_s"] = number;
  json["cpu"]["dispatch_us"] = number;
  json["nvme"] = {
      {"capacity_gb", number}, {"read", curve}, {"write", curve}, {"latency_us", number}};
  EXPECT_FALSE(parse(json).nvme->both_share);
  json["nvme"]["both_share"] = {{"value", 1.5}, {"source", "test"}, {"measured", true}};
  Json table = {{"ranks", 8}, {"nodes", 2}, {"bytes", {1e6}}, {"bus_gb_per_s", {3.0}}};
  table.update({{"source", "test"}, {"measured", true}});
  json["node"] = {{"bandwidth_gb_per_s", number}, {"latency_us", number}};
  json["network"] = {{"bandwidth_gb_per_s", number},        {"latency_us", number},
                     {"switch_reduction_gb_per_s", number}, {"point_to_point", curve},
                     {"multiprocessors", number},           {"all_reduce", table}};
  const Machine more = parse(json);
  EXPECT_EQ(more.power_watts->value, 4);
  EXPECT_EQ(more.link.remote->value.gb_per_s(), 4);
  EXPECT_EQ(more.link.network_share->value, 0.5);
  EXPECT_EQ(more.cpu.core_bandwidth->value.gb_per_s(), 4);
  EXPECT_EQ(more.cpu.dispatch->value.us(), 4);
  EXPECT_EQ(more.nvme->capacity.value.count, 4'000'000'000);
  EXPECT_EQ(more.nvme->read.rate_at(5), 2e9);
  EXPECT_EQ(more.nvme->both_share->value, 1.5);
  json["nvme"]["both_share"]["value"] = 2.5;
  EXPECT_TRUE(holds(error_of([&] { parse(json); }), "nvme.both_share"));
  EXPECT_EQ(more.network->switch_reduction->value.gb_per_s(), 4);
  EXPECT_EQ(more.network->point_to_point.rate_at(5), 2e9);
  EXPECT_EQ(more.network->multiprocessors->value, 4);
  EXPECT_EQ(more.network->all_reduce->ranks, 8);
  EXPECT_EQ(more.network->all_reduce->bus.rate_at(5), 3e9);
  EXPECT_EQ(machine_json(parse_machine(machine_json(more), "copy")), machine_json(more));
}

// It can be set where a file leaves it out, which most do.
TEST(Machines, a_network_that_shares_the_link_can_be_said_of_any_machine) {
  const Machine machine = load_machine("hgx-h800-80gb");
  EXPECT_FALSE(machine.link.network_share);
  const Machine shared = apply_override(machine, {"link.network_share", "0.25"});
  EXPECT_EQ(shared.link.network_share->value, 0.25);
  EXPECT_EQ(apply_override(shared, {"link.network_share", "1"}).link.network_share->value, 1);
  const std::string error = error_of([&] { apply_override(machine, {"link.network_share", "2"}); });
  EXPECT_TRUE(holds(error, "network_share"));
  EXPECT_EQ(error.find('\n'), std::string::npos);
}

TEST(Machines, wrong_optional_values_are_errors_too) {
  const auto with = [](const char* pointer, const Json& value) {
    Json json = Json::parse(machine_json(load_machine("alps-gh200-quad")));
    const Json curve = {{"tokens", {512.0, 1024.0}},
                        {"tflops", {1.0, 2.0}},
                        {"source", "test"},
                        {"measured", true}};
    json["gpu"]["attention_tflops"]["128"] = {{"forward", curve}, {"backward", curve}};
    json["network"]["all_reduce"] = {{"ranks", 8},       {"nodes", 2},
                                     {"bytes", {1e6}},   {"bus_gb_per_s", {3.0}},
                                     {"source", "test"}, {"measured", true}};
    json[Pointer(pointer)] = value;
    return error_of([&] { parse(json); });
  };
  EXPECT_TRUE(holds(with("/network/all_reduce/nodes", 3), "cannot lie evenly"));
  EXPECT_TRUE(holds(with("/network/all_reduce/nodes", 1), "is of one node"));
  EXPECT_TRUE(holds(with("/network/latency_ms", 3), "key 'network.latency_ms': is unknown"));
  EXPECT_TRUE(holds(with("/network/all_reduce/rank", 3), "is unknown"));
  EXPECT_TRUE(holds(with("/gpu/attention_tflops/128/forward/tokens", Json::array({1})),
                    "has 2 numbers for 1 sizes"));
  EXPECT_TRUE(holds(with("/gpu/attention_tflops/wide", Json::object()), "is no head size"));
  EXPECT_TRUE(holds(with("/link/remote_gb_per_s", 3), "must be an object"));
}

// --- the shipped machines against what was measured on them ------------------------------------

// A fact of profiles/published/hardware.json.
Json fact(const std::string& machine, const std::string& quantity) {
  const Json facts = Json::parse(profile_tests::read_file(std::string(BALLAST_SOURCE_DIR) +
                                                          "/profiles/published/hardware.json"));
  for (const Json& one : facts.at("facts")) {
    if (one.at("machine") == machine && one.at("quantity") == quantity) return one;
  }
  ADD_FAILURE() << "no fact " << quantity << " of " << machine;
  return {};
}

double seconds_of(const CollectiveWork& work, const Machine& machine) {
  return collective_time(work, machine, {}).time.seconds();
}

// Thirteen all-reduces over eight ranks of two nodes, of another run than the fabric's table: half
// of them within 12 %, all within 40 % (where NCCL changes its protocol, settings decide).
TEST(Machines, alps_comes_near_all_reduces_that_others_measured) {
  const Machine machine = load_machine("alps-gh200-quad");
  const Json measured = fact("alps-gh200-quad", "nccl_all_reduce");
  ASSERT_EQ(measured.at("bytes").size(), 13u);
  int near = 0;
  for (size_t i = 0; i < 13; ++i) {
    const Bytes bytes{measured.at("bytes")[i].get<int64_t>()};
    const double seconds = measured.at("time_us")[i].get<double>() * 1e-6;
    const double predicted = seconds_of({CollectiveKind::kAllReduce, bytes, 8}, machine);
    EXPECT_NEAR(predicted / seconds, 1, 0.4) << bytes.count;
    near += std::abs(predicted / seconds - 1) < 0.12 ? 1 : 0;
  }
  EXPECT_GE(near, 7);
}

// Between two measured sizes the time lies between theirs.
TEST(Machines, alps_interpolates_between_its_measured_all_reduces) {
  const Machine machine = load_machine("alps-gh200-quad");
  double before = 0;
  for (double bytes = 65536; bytes < 2e8; bytes *= 1.3) {
    const double seconds =
        seconds_of({CollectiveKind::kAllReduce, Bytes{static_cast<int64_t>(bytes)}, 8}, machine);
    EXPECT_GT(seconds, before * 0.97) << bytes;
    before = seconds;
  }
}

// One way between two nodes; many messages in flight, so the latency of one is left out.
TEST(Machines, alps_reproduces_its_measured_point_to_point_bandwidth) {
  const Machine machine = load_machine("alps-gh200-quad");
  const Json measured = fact("alps-gh200-quad", "point_to_point_mb_per_s");
  const auto send = [&](int64_t bytes) {
    return seconds_of({CollectiveKind::kSendReceive, Bytes{bytes}, 2, 4}, machine);
  };
  for (size_t i = 0; i < measured.at("bytes").size(); ++i) {
    const auto bytes = measured.at("bytes")[i].get<int64_t>();
    const double rate = static_cast<double>(bytes) / (send(bytes) - send(0));
    EXPECT_NEAR(rate / (measured.at("value")[i].get<double>() * 1e6), 1, 0.15) << bytes;
  }
}

// Eight H200 in a node, on the NVLink and switch of a DGX H100, whose table is of H100: 4 MB and
// more within 10 %, 1 MB within 25 %.
TEST(Machines, dgx_h100_comes_near_all_reduces_of_h200_on_the_same_switch) {
  const Machine machine = load_machine("dgx-h100-80gb");
  const Json measured = fact("hgx-h200", "nccl_all_reduce_busbw_gb_per_s");
  for (size_t i = 0; i < measured.at("bytes").size(); ++i) {
    const double bytes = measured.at("bytes")[i].get<double>();
    const double seconds =
        seconds_of({CollectiveKind::kAllReduce, Bytes{static_cast<int64_t>(bytes)}, 8}, machine);
    const double bus = 2 * 7.0 / 8 * bytes / seconds / 1e9;
    EXPECT_NEAR(bus / measured.at("value")[i].get<double>(), 1, bytes < 4e6 ? 0.25 : 0.1) << bytes;
  }
}

double seconds_of(const Op& op, const Machine& machine) {
  Program program;
  program.ops = {op};
  Graph graph;
  graph.lanes = kLaneKinds;
  return CostModel(machine, Plan{}, Stack{}, nullptr).table(program, graph).ops[0].alone.seconds();
}

double tflops_of_product(const std::string& name, const GemmWork& work) {
  Op op;
  op.kind = OpKind::kGemm;
  op.phase = Phase::kForward;
  op.lane = lane_of(0, LaneKind::kCompute);
  op.work = work;
  return flops_of(Work{work}).count / seconds_of(op, load_machine(name)) / 1e12;
}

// As published: 788 TFLOP/s on H200 and 795 on H100 at 8192 cubed, on A100 253.7, and 255.4 at
// 8192 x 51200 x 4096 (EleutherAI/cookbook).
TEST(Machines, products_reach_published_rates) {
  const GemmWork cube{8192, 8192, 8192, DType::kBf16};
  EXPECT_NEAR(tflops_of_product("hgx-h200-quad", cube) / 788, 1, 0.01);
  EXPECT_NEAR(tflops_of_product("dgx-h100-80gb", cube) / 795, 1, 0.01);
  EXPECT_NEAR(tflops_of_product("hgx-a100-80gb", cube) / 253.7, 1, 0.01);
  const GemmWork logits{8192, 51200, 4096, DType::kBf16};
  EXPECT_NEAR(tflops_of_product("hgx-a100-80gb", logits) / 255.4, 1, 0.01);
}

// Azure's benchmarks: 1382 TFLOP/s of 1979 nominal on H100, 1366 on H200; none on Ampere.
TEST(Machines, those_with_fp8_have_the_rate_that_was_reached) {
  const auto rate = [](const char* name) {
    return load_machine(name).gpu.matmul.at(DType::kE4m3).value.tflops();
  };
  EXPECT_EQ(rate("dgx-h100-80gb"), 1382.2);
  EXPECT_EQ(rate("hgx-h200-quad"), 1366.3);
  EXPECT_FALSE(load_machine("hgx-a100-80gb").gpu.matmul.contains(DType::kE4m3));
}

// Moving 16-bit gradients and casting them on the CPU takes about twice as long as casting on the
// GPU and moving 32-bit ones (arXiv 2509.21271, figure 9: 256 MB to 2 GB).
TEST(Machines, casting_on_the_cpu_of_a_gh200_takes_about_twice_as_long) {
  const Machine machine = load_machine("gh200-96gb-480gb");
  for (const int64_t elements : {64 << 20, 256 << 20, 512 << 20}) {
    const auto op = [&](OpKind kind, LaneKind lane, const Work& work) {
      Op result;
      result.kind = kind;
      result.lane = lane_of(0, lane);
      result.work = work;
      return seconds_of(result, machine);
    };
    const auto cast = [&](Site site) {
      return BucketWork{elements, DType::kBf16, DType::kF32, site, Bytes{6 * elements}};
    };
    const auto copy = [&](int64_t bytes) {
      return op(OpKind::kCopy, LaneKind::kCopyOut,
                CopyWork{Bytes{bytes}, CopyDirection::kDeviceToHost});
    };
    const double on_gpu =
        op(OpKind::kPack, LaneKind::kCopyOut, cast(Site::kGpu)) + copy(4 * elements);
    const double on_cpu = op(OpKind::kCast, LaneKind::kCpu, cast(Site::kCpu)) + copy(2 * elements);
    EXPECT_GT(on_cpu / on_gpu, 1.5) << elements;
    EXPECT_LT(on_cpu / on_gpu, 2.5) << elements;
  }
}

// Copies over C2C as they were timed, whole copies with their start: to the device by size on a
// node of four (the median where a size was timed more than once), and the plateaus of both parts
// in both directions (profiles/published/micro/links-and-dram.json).
TEST(Machines, copies_over_c2c_take_what_was_measured) {
  const auto gb_per_s = [](const char* name, int64_t bytes, CopyDirection direction) {
    Op op;
    op.kind = OpKind::kCopy;
    op.lane = lane_of(0, LaneKind::kCopyIn);
    op.work = CopyWork{Bytes{bytes}, direction};
    return static_cast<double>(bytes) / seconds_of(op, load_machine(name)) / 1e9;
  };
  const Json micro = Json::parse(profile_tests::read_file(
      std::string(BALLAST_SOURCE_DIR) + "/profiles/published/micro/links-and-dram.json"));
  std::map<int64_t, std::vector<double>> by_size;
  for (const Json& one : micro.at("entries")) {
    if (one.at("kind") != "cudaMemcpyAsync pinned") continue;
    by_size[one.at("bytes").get<int64_t>()].push_back(one.at("value").get<double>());
  }
  ASSERT_GE(by_size.size(), 10U);
  for (auto& [bytes, rates] : by_size) {
    std::sort(rates.begin(), rates.end());
    const double median = 0.5 * (rates[(rates.size() - 1) / 2] + rates[rates.size() / 2]);
    const double rate = gb_per_s("alps-gh200-quad", bytes, CopyDirection::kHostToDevice);
    EXPECT_NEAR(rate / median, 1, 0.01) << bytes;
  }
  const int64_t large = int64_t{8} << 30;
  EXPECT_NEAR(gb_per_s("alps-gh200-quad", large, CopyDirection::kDeviceToHost), 170, 1.7);
  EXPECT_NEAR(gb_per_s("gh200-96gb-480gb", large, CopyDirection::kHostToDevice), 403, 4);
  EXPECT_NEAR(gb_per_s("gh200-96gb-480gb", large, CopyDirection::kDeviceToHost), 296.7, 3);
  // 50 GB/s at 1 MiB (arXiv 2509.21271): the start is in the rate, and not added again.
  EXPECT_NEAR(gb_per_s("gh200-96gb-480gb", 1 << 20, CopyDirection::kDeviceToHost), 50, 1);
}

// 536.9M parameters in 1.93 s on one thread of a server with eight H100 (ISEEKYAN/Megatron-LM issue
// 188), whose rate of a core is derived from it; and Table 3 of arXiv 2509.21271 on Grace.
TEST(Machines, adam_of_pytorch_takes_what_its_sources_say) {
  const auto seconds = [](const char* name, int64_t parameters, int64_t threads) {
    const Machine machine = load_machine(name);
    Op op;
    op.kind = OpKind::kAdam;
    op.phase = Phase::kOptimizer;
    op.lane = lane_of(0, LaneKind::kCpu);
    op.work = BucketWork{parameters, DType::kF32, DType::kF32, Site::kCpu, Bytes{28 * parameters}};
    Program program;
    program.ops = {op};
    Graph graph;
    graph.lanes = kLaneKinds;
    Plan plan;
    plan.optimizer.adam = kTorchAdam;
    Stack stack;
    stack.facts.torch_adam_threads = threads;
    return CostModel(machine, plan, stack, nullptr).table(program, graph).ops[0].alone.seconds();
  };
  EXPECT_NEAR(seconds("dgx-h100-80gb", 536'900'000, 1) / 1.93, 1, 0.02);
  EXPECT_NEAR(seconds("gh200-96gb-480gb", 8'000'000'000, 0) / 1.834, 1, 0.02);
}

// Every machine that the published cases name, and GB200, MI300A and one consumer box.
TEST(Machines, all_machines_of_the_published_cases_are_shipped) {
  const char* names[] = {"gh200-96gb-480gb",   "gh200-nvl2-96gb-240gb", "alps-gh200-quad",
                         "jedi-gh200-quad",    "h100-sxm-80gb",         "dgx-h100-80gb",
                         "hgx-h200-quad",      "selene-a100-80gb",      "hgx-a100-80gb",
                         "hgx-a100-80gb-roce", "hgx-a100-40gb-roce",    "dgx-2-v100",
                         "gb200-nvl72",        "mi300a-quad",           "rtx-4090-pcie"};
  for (const char* name : names) EXPECT_EQ(load_machine(name).name, name);
}

TEST(Machines, unmeasured_curves_are_null) {
  Json json = document();
  json["cpu"]["cast"] = nullptr;
  EXPECT_TRUE(parse(json).cpu.cast.empty());
  json["cpu"]["cast"] = {
      {"elements", {1000.0}}, {"elements_per_s", {2e9}}, {"source", "test"}, {"measured", true}};
  EXPECT_EQ(parse(json).cpu.cast.rate_at(5), 2e9);
}

}  // namespace
}  // namespace ballast
