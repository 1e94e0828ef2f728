// A small model, two machines of round numbers and plans for the tests of autotune.
#pragma once

#include <string>

#include "autotune/search/search.h"
#include "autotune/space/space.h"
#include "sim/engine/engine.h"
#include "sim/graph/build.h"
#include "tests/tiny.h"

namespace ballast::tests {

using tiny::flat;
using tiny::given;

// 4 layers of width 128: 0.86 million parameters, five buckets of 1 MiB.
inline Model small_model() {
  Model model = tiny::gpt2({.layers = 4,
                            .hidden = 128,
                            .heads = 4,
                            .kv_heads = 4,
                            .head_size = 32,
                            .ffn = 512,
                            .vocab = 512,
                            .positions = 64});
  model.layout = Model{}.layout;
  model.qkv_bias = model.attention_out_bias = model.mlp_bias = false;
  return model;
}

// A GPU of 1 TFLOP/s with 100 GB/s, a CPU with 20 GB/s, and a link of 10 GB/s.
inline Machine gpu_machine() {
  Machine machine = tiny::machine("test-gpu");
  machine.devices = machine.devices_per_node = 2;
  machine.gpu.matmul[DType::kF32] = machine.gpu.matmul[DType::kF16] =
      machine.gpu.matmul[DType::kBf16];
  machine.gpu.multiprocessors = 4;
  machine.cpu.optimizer_threads = 3;
  machine.cpu.memory = given(Bytes{int64_t{1} << 30});
  machine.cpu.memory_bandwidth = given(Bandwidth::from_gb_per_s(20));
  machine.cpu.adam["plain"] = flat(5e8);
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
