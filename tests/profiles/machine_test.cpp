// Machine files: strict keys, units, round trips.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "profiles/load.h"
#include "tests/profiles/support.h"

namespace ballast {
namespace {

using Json = nlohmann::json;
using Pointer = Json::json_pointer;
using testing::error_of;
using testing::holds;

Json document() { return Json::parse(machine_json(load_machine("gh200-96gb-480gb"))); }

Machine parse(const Json& json) { return parse_machine(json.dump(), "box.json"); }

// 102.625182 GB is 102,625,182,000 bytes; 50 GB/s is 5e10; 5 us is 5e6 ps.
TEST(Machines, units_of_keys_become_types) {
  const Machine machine = load_machine("gh200-96gb-480gb");
  EXPECT_EQ(machine.gpu.memory.value.count, 102'625'182'000);
  EXPECT_EQ(machine.link.host_to_device.points[0].rate, 5e10);
  EXPECT_EQ(machine.link.host_to_device.points[0].size, 1048576);
  EXPECT_EQ(machine.link.latency.value.ps, 5'000'000);
  EXPECT_EQ(machine.gpu.matmul.at(DType::kBf16).value.flops_per_s, 794.5e12);
  EXPECT_TRUE(machine.link.host_to_device.measured);
  EXPECT_FALSE(machine.gpu.matmul.at(DType::kBf16).measured);
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
  const testing::TemporaryFolder folder;
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
      {"/gpu/memory_gb", 96, "key 'gpu.memory_gb': must be an object"},
      {"/gpu/memory_gb/source", "", "key 'gpu.memory_gb.source': is empty"},
      {"/gpu/memory_gb/measured", "no", "key 'gpu.memory_gb.measured': must be true or false"},
      {"/gpu/reserved_gb/value", 200, "gpu.reserved"},
      {"/gpu/attention_efficiency/value", 1.5, "key 'gpu.attention_efficiency.value': is 1.5"},
      {"/gpu/launch_us/value", 1e300, "key 'gpu.launch_us.value'"},
      {"/link/kind", "c2", "did you mean 'c2c'"},
      {"/link/host_to_device/bytes", Json::array({1, 1}), "has 1 after 1"},
      {"/link/host_to_device/bytes", Json::array({1, 2, 3}), "has 2 numbers for 3 sizes"},
      {"/link/host_to_device/gb_per_s", Json::array({0, 1}), "is 0"},
      {"/link/host_to_device/gb_per_s", Json::array(), "must be a list of numbers"},
      {"/cpu/optimizer_threads", 1000, "cpu.optimizer_threads"},
      {"/devices_per_node", 4, "node"},
      {"/gpu/matmul_tflops", Json::object(), "gpu.matmul"},
      {"/handover_us", nullptr, "key 'handover_us': must be an object, and is null"}};
  for (const Change& change : changes) {
    Json json = document();
    json[Pointer(change.pointer)] = change.value;
    const std::string message = error_of([&] { parse(json); });
    EXPECT_TRUE(holds(message, change.message)) << change.pointer;
    EXPECT_TRUE(holds(message, "box.json")) << change.pointer;
  }
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

TEST(Machines, every_key_is_required) {
  const Json json = document();
  for (const auto& item : json.items()) {
    Json less = json;
    less.erase(item.key());
    EXPECT_TRUE(holds(error_of([&] { parse(less); }), "is missing")) << item.key();
    if (!item.value().is_object()) continue;
    for (const auto& inner : item.value().items()) {
      less = json;
      less[item.key()].erase(inner.key());
      EXPECT_TRUE(holds(error_of([&] { parse(less); }), "is missing")) << inner.key();
    }
  }
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
