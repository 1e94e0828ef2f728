// A machine of round numbers, for arithmetic by hand.
#pragma once

#include "sim/spec/machine.h"

namespace ballast::tests {

inline Curve flat_curve(double rate) {
  Curve curve;
  curve.points = {{1, rate}};
  return curve;
}

// GPU: 1 TFLOP/s, 100 GB/s, 1 multiprocessor, launch 1 us. CPU: 4 cores, 2 of them for Adam, 50
// GB/s. Link: 10 GB/s each way, 15 in total, latency 2 us. Hand-over 1 us.
inline Machine tiny_machine() {
  Machine machine;
  machine.name = "tiny";
  machine.gpu.name = "tiny gpu";
  machine.gpu.memory.value = {int64_t{1} << 30};
  machine.gpu.memory_bandwidth.value = Bandwidth::from_gb_per_s(100);
  machine.gpu.matmul[DType::kBf16].value = FlopRate::from_tflops(1);
  machine.gpu.matmul[DType::kF32].value = FlopRate::from_tflops(0.5);
  machine.gpu.vector.value = FlopRate::from_tflops(0.1);
  machine.gpu.attention_efficiency.value = 0.5;
  machine.gpu.launch.value = Duration::from_us(1);
  machine.gpu.multiprocessors = 1;
  machine.cpu.name = "tiny cpu";
  machine.cpu.cores = 4;
  machine.cpu.optimizer_threads = 2;
  machine.cpu.memory.value = {int64_t{4} << 30};
  machine.cpu.memory_bandwidth.value = Bandwidth::from_gb_per_s(50);
  machine.cpu.adam["slow"] = flat_curve(1e9);
  machine.cpu.adam["quick"] = flat_curve(2e9);
  machine.cpu.cast = flat_curve(5e9);
  machine.cpu.sum_of_squares = flat_curve(4e9);
  machine.link.kind = "pcie";
  machine.link.host_to_device = flat_curve(10e9);
  machine.link.device_to_host = flat_curve(10e9);
  machine.link.both_total.value = Bandwidth::from_gb_per_s(15);
  machine.link.pageable_share.value = 0.5;
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

}  // namespace ballast::tests
