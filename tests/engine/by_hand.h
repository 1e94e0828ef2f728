// A machine of round numbers and a layer of 4 and 8 ms, for whole steps that are written down by
// hand and must come out to the picosecond.
//
// Every matrix product of a layer takes 1 ms and every other operation of the GPU none, by
// measurement: a layer takes 4 ms forward and 8 ms backward. Layers, and the final norm with the
// head, have 1040 parameters each, the embedding 1032:
//
//   C=8, H=2, D=4, F=32, V=129
//   layer: norm1 8 + qkv 8*24 + out 8*8 + norm2 8 + fc1 8*64 + fc2 32*8 = 1040
//   final norm 8 + head 129*8 = 1040,  embedding 129*8 = 1032
//
// The link moves 4 bytes a microsecond; Adam takes 2 for a parameter.
#pragma once

#include <gtest/gtest.h>
#include <optional>

#include "sim/engine/cost.h"
#include "sim/engine/engine.h"
#include "sim/engine/predict.h"
#include "sim/graph/build.h"
#include "tests/engine/tiny_machine.h"

namespace ballast::by_hand {

inline constexpr Duration kForward{4'000'000'000};
inline constexpr Duration kBackward{8'000'000'000};
inline constexpr double kInstant = 1e24;  // bytes, values or FLOPs a second

constexpr Duration us(int64_t count) { return {count * 1'000'000}; }
constexpr Duration times(int64_t count, Duration one) { return {count * one.ps}; }

inline Model model_of(int64_t layers) { return tiny::llama({.layers = layers, .vocab = 129}); }

// One micro-batch of 2 x 4 tokens, a bucket a layer.
inline Plan plan_of(OptimizerPlacement placement) {
  Plan plan = tiny::waiting_plan({}, 1040 * 4);
  plan.optimizer.placement = placement;
  return plan;
}

inline Machine round_machine() {
  Machine machine = tests::tiny_cluster();
  machine.gpu.memory_bandwidth.value = {kInstant};
  machine.gpu.vector.value = {kInstant};
  machine.gpu.launch.value = {};
  machine.cpu.memory_bandwidth.value = {kInstant};
  machine.cpu.adam.clear();
  machine.cpu.adam["best"] = tests::flat(0.5e6);
  machine.cpu.cast = tests::flat(kInstant);
  machine.link.host_to_device = machine.link.device_to_host = tests::flat(4e6);
  machine.link.both_total.value = {8e6};
  machine.link.latency.value = {};
  machine.handover.value = {};
  machine.node->bandwidth.value = {1e6};
  return machine;
}

// For what stays on the GPU: norms cross the link in no time.
inline Machine without_link() {
  Machine machine = round_machine();
  machine.link.host_to_device = machine.link.device_to_host = tests::flat(kInstant);
  machine.link.both_total.value = {kInstant};
  return machine;
}

inline std::optional<Duration> time_of(const Op& op) {
  switch (op.kind) {
    case OpKind::kGemm:
      return op.label.layer >= 0 ? us(1000) : Duration{};
    case OpKind::kAttention:
    case OpKind::kLoadBatch:
      return Duration{};
    default:
      return std::nullopt;
  }
}

// What `time` says of the operations of a graph; two that look alike must take the same.
template <class Time>
void measure(const Program& program, Time time, Measurements& measurements) {
  for (const Op& op : program.ops) {
    const std::optional<Duration> taken = time(op);
    if (!taken) continue;
    const auto [entry, is_new] =
        measurements.try_emplace(cost_key(op), measurement_of(op, Sample{*taken, {}}));
    EXPECT_EQ(entry->second.median, *taken) << cost_key(op);
  }
}

struct Case {
  Model model;
  Plan plan;
  Machine machine = round_machine();
  Stack stack = {};
};

template <class Time>
Duration step_of(const Case& given, Time time) {
  const Graph graph = build(given.model, given.plan, given.stack.facts);
  Measurements measurements;
  measure(graph.step, time, measurements);
  for (const Program& block : graph.blocks) measure(block, time, measurements);
  const Prediction result =
      predict(given.model, given.plan, given.machine, given.stack, &measurements);
  EXPECT_TRUE(result.fits) << result.reason;
  EXPECT_TRUE(result.settled);
  return result.step_time;
}
inline Duration step_of(const Case& given) { return step_of(given, time_of); }

}  // namespace ballast::by_hand
