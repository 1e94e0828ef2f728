// Bounds of plans whose stages share the parts next to the bubbles (Plan::multiplex).
#include "autotune/bounds/shared_turns.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "autotune/bounds/cell_bound.h"
#include "autotune/bounds/layer_costs.h"
#include "autotune/space/layout.h"
#include "sim/engine/predict.h"
#include "tests/autotune/support.h"

namespace ballast::tests {
namespace {

Machine networked(int64_t devices, double gb_per_s) {
  Machine machine = gpu_machine();
  machine.devices = machine.devices_per_node = devices;
  machine.network =
      Interconnect{given(Bandwidth::from_gb_per_s(gb_per_s)), given(Duration::from_us(9))};
  machine.node = machine.network;
  return machine;
}

Model model_of(int64_t parts) {
  Model model = small_model();
  model.heads = model.kv_heads = 8;
  model.head_size = 16;
  model.layers = 8;
  model.max_positions = parts * 2 * kAttentionTile;
  return model;
}

Plan shared_plan(int64_t stages, int64_t sequence, int64_t parts, SubsequenceSplit split) {
  Plan plan = auto_plan(1);
  plan.devices = stages * sequence;
  plan.pipeline = stages;
  plan.sequence = sequence;
  plan.subsequences = parts;
  plan.subsequence_split = split;
  plan.sequence_length = parts * 2 * kAttentionTile;
  plan.multiplex = true;
  plan.micro_batch = 1;
  plan.optimizer.placement = OptimizerPlacement::kGpu;
  plan.optimizer.sync = SyncMode::kWait;
  plan.optimizer.gpu_buckets = 0;
  plan.optimizer.stream_share = 0;
  plan.weights.flow_share = 0;
  return plan;
}

std::vector<ActivationPlan> activations() {
  std::vector<ActivationPlan> plans(1);
  ActivationPlan leaves;
  leaves.fate.fill(ActivationFate::kOffload);
  leaves.offload_per_mflop = 10'000;
  plans.push_back(leaves);
  leaves.offload_share = 0.5;
  plans.push_back(leaves);
  leaves.reload = ReloadOrder::kByModule;
  plans.push_back(leaves);
  leaves.offload_share = 1;
  leaves.fate[static_cast<size_t>(ModuleKind::kNorm1)] = ActivationFate::kRecompute;
  leaves.fate[static_cast<size_t>(ModuleKind::kActivation)] = ActivationFate::kRecompute;
  plans.push_back(leaves);
  return plans;
}

// Of two to eight stages, alone or with ranks that share sequences, from a network that decides the
// step to one that does not count.
TEST(SharedTurns, no_plan_is_faster_or_smaller_than_its_cell) {
  int seen = 0, close = 0;
  for (const double gb_per_s : {0.2, 5.0, 500.0}) {
    for (const auto& [stages, sequence] :
         {std::pair<int64_t, int64_t>{2, 1}, {2, 4}, {4, 1}, {4, 2}, {8, 1}}) {
      const Machine machine = networked(stages * sequence, gb_per_s);
      const CostModel costs(machine, Plan{}, Stack{}, nullptr);
      const Usable usable{machine.gpu.memory.value, machine.cpu.memory.value, Bytes{}};
      for (const int64_t parts : {int64_t{8}, int64_t{16}}) {
        for (const SubsequenceSplit split : {SubsequenceSplit::kTokens, SubsequenceSplit::kFlops}) {
          const Model model = model_of(parts);
          LayerProfiles layers(model, costs);
          StepFloors floors(costs);
          for (const ActivationPlan& kept : activations()) {
            Plan plan = shared_plan(stages, sequence, parts, split);
            plan.activations = kept;
            SCOPED_TRACE(fmt::format("{}, {}, {} GB/s, {} of the layers leave, {}",
                                     layout_name(plan), to_string(split), gb_per_s,
                                     kept.offload_share, to_string(kept.reload)));
            if (refusal_of_multiplex(plan, model)) continue;
            ASSERT_NO_THROW(check(plan, model));
            layers.prepare({plan}, 1);
            const Graph graph = build(model, plan);
            const Duration step = step_time_of(graph, plan, costs);
            const StepFloor floor = floors.of(plan, space_of(model, plan, OpenKnobs{}));
            const Duration bound = cell_time(model, plan, layers.of(plan), floor, usable);
            EXPECT_LE(bound.ps, step.ps);
            for (const PlacePeak& peak : cell_memory(model, plan, layers.of(plan), usable)) {
              EXPECT_LE(peak.arena.count, graph.arenas.size[static_cast<size_t>(peak.place)].count)
                  << to_string(peak.place);
            }
            ++seen;
            close += bound.seconds() > 0.7 * step.seconds();
          }
        }
      }
    }
  }
  EXPECT_GT(seen, 100);
  EXPECT_GT(close, seen / 4);
  fmt::print("{} plans, {} of them within 30 % of their bounds\n", seen, close);
}

// Two stages, four parts of a second each way and stage: stage 0 shares the first part, stage 1 the
// last, each there and back, so that a device has four halves and six seconds of its own. Where
// nothing else is sent, that is all. Of weights that take two seconds to come, and as long to go
// back as sums, each turn waits: two seconds forward, four back.
TEST(SharedTurns, take_what_they_compute_or_wait_for_by_hand) {
  constexpr int64_t kSecond = 1'000'000'000'000;
  const Model model = model_of(4);
  const Plan plan = shared_plan(2, 1, 4, SubsequenceSplit::kTokens);
  StageParts stage;
  stage.forward_ps = stage.backward_ps = std::vector<int64_t>(4, kSecond);
  stage.layers = 4;
  stage.parameters = 1'000'000;
  StepFloor floor;
  EXPECT_EQ(least_with_shared_turns(model, plan, {stage, stage}, floor), 8 * kSecond);
  floor.broadcast = floor.scatter = 2e12 / (1e6 * static_cast<double>(size_of(plan.dtype)));
  EXPECT_EQ(least_with_shared_turns(model, plan, {stage, stage}, floor), 18 * kSecond);
  // Keys and values of 8 heads of 16, 256 tokens a part, by half of the heads: 32,768 elements. On
  // the left those of one part go and their sums come, on the right those of three come twice, and
  // go once as sums: 2 + 4 + 6 + 6 + 12 = 30 bytes an element and layer.
  floor.broadcast = floor.scatter = 0;
  floor.send = 2e12 / (4 * 32'768);  // two seconds a byte of each
  ASSERT_EQ(size_of(plan.dtype), 2);
  EXPECT_EQ(least_with_shared_turns(model, plan, {stage, stage}, floor), (60 + 6) * kSecond);
}

}  // namespace
}  // namespace ballast::tests
