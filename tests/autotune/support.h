// A small model, two machines of round numbers and plans for the tests of autotune.
#pragma once

#include <string>

#include "autotune/search/search.h"
#include "autotune/space/space.h"
#include "sim/engine/engine.h"
#include "sim/graph/build.h"

namespace ballast::tests {

template <class Quantity>
Sourced<Quantity> given(Quantity value) {
  return {value, false, "test"};
}

inline Curve flat(double rate) { return {{{1, rate}, {1e9, rate}}, "test", false}; }

// 4 layers of width 128: 0.86 million parameters, five buckets of 1 MiB.
inline Model small_model() {
  Model model;
  model.name = "small";
  model.architecture = "gpt2";
  model.layers = 4;
  model.hidden = 128;
  model.heads = 4;
  model.kv_heads = 4;
  model.head_size = 32;
  model.ffn = 512;
  model.vocab = 512;
  model.max_positions = 64;
  model.tied_embeddings = true;
  return model;
}

// A GPU of 1 TFLOP/s with 100 GB/s, a CPU with 20 GB/s, and a link of 10 GB/s.
inline Machine gpu_machine() {
  Machine machine;
  machine.name = "test-gpu";
  machine.devices = machine.devices_per_node = 2;
  machine.gpu.name = "gpu";
  machine.gpu.memory = given(Bytes{int64_t{1} << 30});
  machine.gpu.reserved = given(Bytes{0});
  machine.gpu.memory_bandwidth = given(Bandwidth::from_gb_per_s(100));
  for (const DType type : {DType::kF32, DType::kBf16, DType::kF16}) {
    machine.gpu.matmul[type] = given(FlopRate::from_tflops(1));
  }
  machine.gpu.vector = given(FlopRate::from_tflops(0.1));
  machine.gpu.attention_efficiency = given(0.5);
  machine.gpu.launch = given(Duration::from_us(1));
  machine.gpu.multiprocessors = 4;
  machine.cpu.name = "cpu";
  machine.cpu.cores = 4;
  machine.cpu.optimizer_threads = 3;
  machine.cpu.memory = given(Bytes{int64_t{1} << 30});
  machine.cpu.reserved = given(Bytes{0});
  machine.cpu.memory_bandwidth = given(Bandwidth::from_gb_per_s(20));
  machine.cpu.adam["plain"] = flat(5e8);
  machine.link.kind = "pcie";
  machine.link.host_to_device = flat(10e9);
  machine.link.device_to_host = flat(10e9);
  machine.link.both_total = given(Bandwidth::from_gb_per_s(15));
  machine.link.pageable_share = given(0.5);
  machine.link.latency = given(Duration::from_us(5));
  machine.node = Interconnect{given(Bandwidth::from_gb_per_s(5)), given(Duration::from_us(2))};
  machine.handover = given(Duration::from_us(2));
  return machine;
}

// The same with a compute thread for a GPU: every lane shares two cores and one memory.
inline Machine host_machine() {
  Machine machine = gpu_machine();
  machine.name = "test-host";
  machine.gpu.is_host_thread = true;
  for (auto& [type, rate] : machine.gpu.matmul) rate.value = FlopRate::from_tflops(0.05);
  machine.gpu.memory_bandwidth = given(Bandwidth::from_gb_per_s(12));
  machine.cpu.cores = 2;
  machine.cpu.optimizer_threads = 2;
  return machine;
}

// Every knob of it "auto" that can be.
inline Plan auto_plan(int64_t global_batch = 4) {
  Plan plan;
  plan.global_batch = global_batch;
  plan.sequence_length = 64;
  plan.optimizer.bucket_bytes = {1 << 20};
  return plan;
}

// Every knob of it given a value.
inline Plan fixed_plan() {
  Plan plan = auto_plan();
  plan.micro_batch = 4;
  plan.activations = ActivationPlan{};
  plan.optimizer.gpu_buckets = 0;
  plan.optimizer.sync = SyncMode::kWait;
  plan.weights.flow_share = 0;
  return plan;
}

inline SearchResult run_search(const Plan& base, const OpenKnobs& open, const Machine& machine,
                               const SearchOptions& options = {}) {
  const Model model = small_model();
  return search(model, base, space_of(model, base, open), machine, nullptr, options);
}

// Every n-th choice of a space.
inline std::vector<Choice> every(const std::vector<Choice>& choices, size_t n) {
  std::vector<Choice> some;
  for (size_t i = 0; i < choices.size(); i += n) some.push_back(choices[i]);
  return some;
}

inline bool has_fate(const Plan& plan, ActivationFate fate) {
  for (const ActivationFate each : plan.activations->fate) {
    if (each == fate) return true;
  }
  return false;
}

}  // namespace ballast::tests
