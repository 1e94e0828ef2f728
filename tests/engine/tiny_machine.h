// A machine of round numbers, for arithmetic by hand.
#pragma once

#include "sim/spec/machine.h"
#include "tests/tiny.h"

namespace ballast::tests {

using tiny::flat;

// GPU: 1 TFLOP/s, 100 GB/s, 1 multiprocessor, launch 1 us. CPU: 4 cores, 2 of them for Adam, 50
// GB/s. Link: 10 GB/s each way, 15 in total, latency 2 us. Hand-over 1 us.
inline Machine tiny_machine() {
  Machine machine = tiny::machine("tiny");
  machine.gpu.matmul[DType::kF32].value = FlopRate::from_tflops(0.5);
  machine.gpu.multiprocessors = 1;
  machine.cpu.optimizer_threads = 2;
  machine.cpu.memory.value = {int64_t{4} << 30};
  machine.cpu.memory_bandwidth.value = Bandwidth::from_gb_per_s(50);
  machine.cpu.adam["slow"] = flat(1e9);
  machine.cpu.adam["quick"] = flat(2e9);
  machine.cpu.cast = flat(5e9);
  machine.link.latency.value = Duration::from_us(2);
  machine.handover.value = Duration::from_us(1);
  return machine;
}

// Nodes of four such devices: 100 GB/s and 1 us inside, a card of 10 GB/s and 5 us each between.
inline Machine tiny_cluster() {
  Machine machine = tiny_machine();
  machine.devices_per_node = 4;
  machine.devices = 256;
  machine.node.emplace();
  machine.node->bandwidth.value = Bandwidth::from_gb_per_s(100);
  machine.node->latency.value = Duration::from_us(1);
  machine.network.emplace();
  machine.network->bandwidth.value = Bandwidth::from_gb_per_s(10);
  machine.network->latency.value = Duration::from_us(5);
  return machine;
}

// Two layers of width 256: about 2 million parameters.
inline Model tiny_model() {
  return tiny::gpt2({.hidden = 256,
                     .heads = 4,
                     .kv_heads = 4,
                     .head_size = 64,
                     .ffn = 1024,
                     .vocab = 512,
                     .positions = 128});
}

// 4 sequences of 128 tokens a step, two at a time.
inline Plan tiny_plan(OptimizerPlacement placement) {
  Plan plan = tiny::waiting_plan({.sequences = 4, .micro_batch = 2, .tokens = 128}, 2 << 20);
  plan.optimizer.placement = placement;
  return plan;
}

}  // namespace ballast::tests
