#include "autotune/space/layout.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <map>
#include <numeric>
#include <set>

#include "autotune/bounds/cell_bound.h"
#include "autotune/bounds/layer_costs.h"
#include "autotune/bounds/pipeline_bound.h"
#include "sim/engine/cost.h"
#include "sim/engine/predict.h"
#include "sim/graph/schedules/pipeline.h"
#include "tests/autotune/support.h"

namespace ballast::tests {
namespace {

Machine many(int64_t devices) {
  Machine machine = gpu_machine();
  machine.devices = machine.devices_per_node = devices;
  machine.network = Interconnect{given(Bandwidth::from_gb_per_s(2)), given(Duration::from_us(9))};
  return machine;
}

std::string plan_name(const Plan& plan) {
  return fmt::format("{}, {}, micro-batch {}, {} buckets of {} on the GPU, {}, {}, flow {}",
                     layout_name(plan), to_string(plan.optimizer.placement),
                     plan.micro_batch.value(), plan.optimizer.gpu_buckets.value(),
                     plan.optimizer.bucket_bytes.count, to_string(plan.optimizer.cast),
                     to_string(plan.optimizer.sync), plan.weights.flow_share.value());
}

Plan base_plan(int64_t devices) {
  Plan plan = auto_plan(2 * devices);
  plan.devices = plan.data = devices;
  return plan;
}

// Sequences of a tile of attention for each of several parts, of equal FLOPs as near as tiles are.
Plan in_parts(Plan plan, int64_t parts) {
  if (parts == 1) return plan;
  plan.subsequences = parts;
  plan.sequence_length = 2 * parts * kAttentionTile;
  plan.subsequence_split = SubsequenceSplit::kFlops;
  plan.activations.emplace().offload_per_mflop = 10'000;  // what the link carries
  return plan;
}
Model long_model(int64_t parts) {
  Model model = small_model();
  model.max_positions = std::max(model.max_positions, 2 * parts * kAttentionTile);
  return model;
}
KnobSet layout_knobs(int64_t parts) {
  KnobSet open = knobs_of(KnobSearch::kLayout);
  return parts > 1 ? open.remove(KnobId::kSubsequences) : open;
}

TEST(Layouts, without_freedom_the_only_one_is_the_base) {
  const Plan base = base_plan(4);
  EXPECT_EQ(layouts_of(small_model(), base, {}), std::vector<Plan>{base});
}

TEST(Layouts, every_one_is_legal_and_uses_all_devices) {
  const Model model = small_model();
  for (const int64_t devices : {1, 2, 6, 8, 16}) {
    const std::vector<Plan> layouts =
        layouts_of(model, base_plan(devices), knobs_of(KnobSearch::kLayout));
    ASSERT_FALSE(layouts.empty());
    for (const Plan& plan : layouts) {
      ASSERT_NO_THROW(check(plan, model)) << layout_name(plan);
      EXPECT_EQ(plan.data * plan.tensor * plan.pipeline * plan.sequence * plan.context, devices);
    }
  }
}

TEST(Layouts, no_two_are_the_same) {
  const std::vector<Plan> layouts =
      layouts_of(small_model(), base_plan(8), knobs_of(KnobSearch::kLayout));
  for (size_t i = 0; i < layouts.size(); ++i) {
    for (size_t j = i + 1; j < layouts.size(); ++j) EXPECT_NE(layouts[i], layouts[j]);
  }
}

// Two devices, 4 layers, 4 heads. Alone (data 1): tensor 2 with norms whole or split, pipeline 2
// with one or two chunks a stage by any schedule, of which two chunks have one less, sequence 2,
// context 2; and data 2. State: tensor and pipeline leave one rank for each weight, so 2 places;
// the three others share it: stages 0 to 3 on the GPU and 1 to 3 on the CPU, 7 each.
// 2 * 2 + 2 * (2 * schedules - 1) + 3 * 7.
TEST(Layouts, of_two_devices_are_as_many_as_by_hand) {
  EXPECT_EQ(layouts_of(small_model(), base_plan(2), knobs_of(KnobSearch::kLayout)).size(),
            23 + 4 * std::size(kPipelineSchedules));
}

// Of 65,536 tokens a device has all, half or a quarter: parts of 2,048 to 16,384 tokens are 4 to
// 32, 2 to 16 and 1 to 8 in number; and 1.
TEST(Layouts, parts_leave_a_device_two_to_sixteen_thousand_tokens) {
  Plan base = base_plan(4);
  base.sequence_length = 65536;
  Model model = small_model();
  model.max_positions = 65536;
  std::map<int64_t, std::set<int64_t>> parts;  // by ranks that share a sequence
  for (const Plan& plan : layouts_of(model, base, knobs_of(KnobSearch::kLayout))) {
    ASSERT_NO_THROW(check(plan, model)) << layout_name(plan);
    parts[plan.sequence * plan.context].insert(plan.subsequences);
  }
  EXPECT_EQ(parts[1], (std::set<int64_t>{1, 4, 8, 16, 32}));
  EXPECT_EQ(parts[2], (std::set<int64_t>{1, 2, 4, 8, 16}));
  EXPECT_EQ(parts[4], (std::set<int64_t>{1, 2, 4, 8}));
}

// Helpers of a ring share whole sequences without windows: of parts there is no ring, and of a
// model with windows none at all. A search keeps the balance that it was given.
TEST(Layouts, a_ring_of_helpers_has_whole_sequences_and_no_windows) {
  Plan base = base_plan(4);
  base.sequence_length = 65536;
  base.context_balance = ContextBalance::kHelpers;
  Model model = small_model();
  model.max_positions = 65536;
  Model windows = model;
  windows.sliding_window = 1024;
  std::map<bool, std::set<int64_t>> parts;  // by whether sequences go round a ring
  for (const Plan& plan : layouts_of(model, base, knobs_of(KnobSearch::kLayout))) {
    ASSERT_NO_THROW(check(plan, model)) << layout_name(plan);
    EXPECT_EQ(plan.context_balance, ContextBalance::kHelpers);
    parts[plan.context > 1].insert(plan.subsequences);
  }
  EXPECT_EQ(parts[true], (std::set<int64_t>{1}));
  EXPECT_EQ(parts[false], (std::set<int64_t>{1, 2, 4, 8, 16, 32}));
  for (const Plan& plan : layouts_of(windows, base, knobs_of(KnobSearch::kLayout))) {
    ASSERT_NO_THROW(check(plan, windows)) << layout_name(plan);
    EXPECT_EQ(plan.context, 1);
  }
}

TEST(Layouts, a_degree_that_is_not_free_keeps_its_value) {
  Plan base = base_plan(8);
  base.tensor = 2;
  base.data = 4;
  KnobSet open = knobs_of(KnobSearch::kLayout);
  open.remove(KnobId::kTensor);
  for (const Plan& plan : layouts_of(small_model(), base, open)) EXPECT_EQ(plan.tensor, 2);
}

TEST(Layouts, those_whose_ranks_talk_least_come_first) {
  const std::vector<Plan> layouts =
      layouts_of(small_model(), base_plan(8), knobs_of(KnobSearch::kLayout));
  EXPECT_EQ(layouts.front().data, 8);
  EXPECT_EQ(layouts.back().data, 1);
}

// Every layout with some activation choices, simulated: no step is shorter and no memory smaller
// than what its cell says.
void expect_no_plan_beats_its_cell(int64_t parts, size_t every_nth,
                                   const ActivationPlan& like = {}) {
  const Model model = long_model(parts);
  const Machine machine = many(4);
  const CostModel costs(machine, Plan{}, Stack{}, nullptr);
  LayerProfiles layers(model, costs);
  StepFloors floors(costs);
  const Usable usable{machine.gpu.memory.value, machine.cpu.memory.value, Bytes{}};
  int64_t seen = 0;
  Plan base = in_parts(base_plan(4), parts);
  base.activations = like;
  for (const Plan& layout : layouts_of(model, base, layout_knobs(parts))) {
    const Space space = space_of(model, layout, OpenKnobs::all());
    for (const Choice& choice : every(choices_of(space, layout), every_nth)) {
      const Plan plan = plan_of(space, layout, choice);
      layers.prepare({plan}, 1);
      const LayerProfile& profile = layers.of(plan);
      const Graph graph = build(model, plan);
      const Duration step = step_time_of(graph, plan, costs);
      ASSERT_LE(cell_time(model, plan, profile, floors.of(layout, space), usable), step)
          << layout_name(plan) << ", micro-batch " << *plan.micro_batch << ", "
          << space.activations[static_cast<size_t>(choice.activations)].name;
      // A machine that has just what this plan needs leaves it the time it takes.
      ASSERT_LE(cell_time(model, plan, profile, floors.of(layout, space), graph.arenas.size), step)
          << plan_name(plan);
      for (const PlacePeak& peak : cell_memory(model, plan, profile, usable)) {
        ASSERT_LE(peak.arena, graph.arenas.size[static_cast<size_t>(peak.place)])
            << layout_name(plan) << " " << to_string(peak.place);
      }
      ++seen;
    }
  }
  EXPECT_GT(seen, parts > 1 ? 50 : 200);
}
TEST(CellBound, no_plan_is_faster_or_smaller_than_its_cell) {
  expect_no_plan_beats_its_cell(1, 211);
}
TEST(CellBound, no_plan_in_parts_is_faster_or_smaller_than_its_cell) {
  expect_no_plan_beats_its_cell(3, 613);
}

// Codes of weights are made in one of sixteen micro-batches.
TEST(CellBound, no_plan_that_keeps_codes_of_weights_is_faster_than_its_cell) {
  const Model model = small_model();
  Machine machine = many(1);
  machine.gpu.matmul[DType::kE4m3] = machine.gpu.matmul[DType::kBf16];
  const CostModel costs(machine, Plan{}, Stack{}, nullptr);
  LayerProfiles layers(model, costs);
  StepFloors floors(costs);
  const Usable usable{machine.gpu.memory.value, machine.cpu.memory.value, Bytes{}};
  Plan plan = fixed_plan();
  plan.global_batch = 16;
  plan.micro_batch = 1;
  plan.sequence_length = 16;  // few tokens, so that weights are most of what is rounded
  plan.dtype = DType::kBf16;
  plan.products = ProductFormat::kFp8;
  plan.optimizer.placement = OptimizerPlacement::kGpu;
  for (const bool keeps : {false, true}) {
    plan.weights.keep_codes = keeps;
    const Space space = space_of(model, plan, OpenKnobs{});
    layers.prepare({plan}, 1);
    const Duration cell = cell_time(model, plan, layers.of(plan), floors.of(plan, space), usable);
    const Duration step = step_time_of(build(model, plan), plan, costs);
    EXPECT_LE(cell, step);
    EXPECT_GT(cell.seconds(), 0.5 * step.seconds());
  }
}

// What returns by module, and leaves by size and stage, is counted as gone, and as no copy.
ActivationPlan by_module() {
  ActivationPlan plan;
  plan.reload = ReloadOrder::kByModule;
  plan.offload_share_fall = 0.25;
  plan.offload_least = {256};
  plan.offload_in_flight = 2;
  return plan;
}
TEST(CellBound, no_plan_that_reloads_by_module_is_faster_or_smaller_than_its_cell) {
  expect_no_plan_beats_its_cell(1, 307, by_module());
  expect_no_plan_beats_its_cell(3, 911, by_module());
}

// Stages of two to four layers, one or two chunks each, on two networks: no step is shorter than
// its pipeline's bound, and where nothing is shared but the network it is nearly that long.
void expect_pipeline_bounds(int64_t parts, size_t every_nth, const ActivationPlan& like = {}) {
  Model model = long_model(parts);
  model.layers = 8;
  int64_t seen = 0, folded = 0, near = 0;
  for (const double gb_per_s : {0.5, 50.0}) {
    Machine machine = many(8);
    machine.network->bandwidth = given(Bandwidth::from_gb_per_s(gb_per_s));
    const CostModel costs(machine, Plan{}, Stack{}, nullptr);
    Plan base = in_parts(base_plan(8), parts);
    base.global_batch = 32;
    base.activations = like;
    for (const Plan& layout : layouts_of(model, base, layout_knobs(parts))) {
      if (layout.pipeline == 1) continue;
      const Space space = space_of(model, layout, OpenKnobs::all());
      for (const Choice& choice : every(choices_of(space, layout), every_nth)) {
        const Plan plan = plan_of(space, layout, choice);
        const Duration step = step_time_of(build(model, plan), plan, costs);
        const Duration bound = pipeline_step_bound(model, plan, costs);
        ASSERT_LE(bound, step) << plan_name(plan);
        ++seen;
        // What a spread stage copies in or out is not in its bound.
        if (overlaps_inside(plan)) continue;
        ++folded;
        near += bound.seconds() > 0.9 * step.seconds();
      }
    }
  }
  EXPECT_GT(seen, parts > 1 ? 20 : 100);
  EXPECT_GT(folded, parts > 1 ? 10 : 100);
  EXPECT_GT(near, folded / 2);
}
TEST(PipelineBound, no_plan_is_faster_and_few_are_much_slower) { expect_pipeline_bounds(1, 29); }
TEST(PipelineBound, no_plan_in_parts_is_faster) { expect_pipeline_bounds(3, 307); }
TEST(PipelineBound, no_plan_that_reloads_by_module_is_faster) {
  expect_pipeline_bounds(1, 83, by_module());
  expect_pipeline_bounds(3, 307, by_module());
}

// Six layers in eight chunks, the first and the last without one, and in four of one or two.
TEST(PipelineBound, no_plan_whose_ends_count_as_layers_is_faster) {
  Model model = long_model(1);
  model.layers = 6;
  const Machine machine = many(8);
  const CostModel costs(machine, Plan{}, Stack{}, nullptr);
  int64_t seen = 0;
  for (const int64_t chunks : {2, 4}) {
    Plan base = base_plan(8);
    base.global_batch = 32;
    base.data = 4;
    base.pipeline = 2;
    base.virtual_pipeline = chunks;
    const std::vector<Plan> layouts = layouts_of(model, base, {});
    ASSERT_EQ(layouts, std::vector<Plan>{base});
    const Space space = space_of(model, base, OpenKnobs::all());
    for (const Choice& choice : every(choices_of(space, base), 29)) {
      const Plan plan = plan_of(space, base, choice);
      const Duration step = step_time_of(build(model, plan), plan, costs);
      ASSERT_LE(pipeline_step_bound(model, plan, costs), step) << plan_name(plan);
      ++seen;
    }
  }
  EXPECT_GT(seen, 20);
}

// By every choice of activations: twelve layers, of which those that offload are back one by one.
TEST(CellBound, no_memory_is_smaller_whatever_the_activations) {
  Model model = small_model();
  model.layers = 12;
  const Machine machine = many(2);
  const CostModel costs(machine, Plan{}, Stack{}, nullptr);
  LayerProfiles layers(model, costs);
  const Usable usable{machine.gpu.memory.value, machine.cpu.memory.value, Bytes{}};
  Plan base = base_plan(1);
  base.global_batch = 64;
  base.micro_batch = 64;
  base.optimizer.gpu_buckets = 0;
  base.weights.flow_share = 1;
  const Space space = space_of(model, base, OpenKnobs{});
  const std::vector<Choice> choices = choices_of(space, base);
  EXPECT_GE(choices.size(), 20);
  for (const Choice& choice : choices) {
    const Plan plan = plan_of(space, base, choice);
    layers.prepare({plan}, 1);
    const Graph graph = build(model, plan);
    for (const PlacePeak& peak : cell_memory(model, plan, layers.of(plan), usable)) {
      EXPECT_LE(peak.arena, graph.arenas.size[static_cast<size_t>(peak.place)])
          << space.activations[static_cast<size_t>(choice.activations)].name;
    }
  }
}

// Whatever is free, the search finds what simulating every plan finds.
void expect_the_optimum(const Plan& base, const Machine& machine, const OpenKnobs& open,
                        const KnobSet& layouts) {
  const Model model = small_model();
  const SearchSpace space{layouts_of(model, base, layouts), open};
  SearchOptions options;
  const SearchResult bounded = search(model, space, machine, nullptr, options);
  options.exhaustive = true;
  const SearchResult all = search(model, space, machine, nullptr, options);
  ASSERT_TRUE(bounded.best && all.best);
  EXPECT_EQ(plan_name(bounded.best->plan), plan_name(all.best->plan));
  EXPECT_EQ(bounded.best->plan, all.best->plan);
  EXPECT_EQ(bounded.best->step_time.ps, all.best->step_time.ps);
  EXPECT_EQ(bounded.considered, all.considered);
  EXPECT_EQ(bounded.considered, bounded.simulated + bounded.bounded + bounded.infeasible);
  EXPECT_LT(bounded.simulated, all.simulated);
}

// A plan of which only what `freedom` and the layouts free is open: a few thousand plans in all.
Plan narrow_plan(int64_t devices) {
  Plan plan = base_plan(devices);
  plan.optimizer.gpu_buckets = 1;
  plan.weights.flow_share = 0;
  plan.activations = ActivationPlan{};
  return plan;
}

OpenKnobs micro_batch_alone() {
  OpenKnobs open;
  open.add(KnobId::kMicroBatch);
  return open;
}

TEST(LayoutSearch, finds_the_optimum_of_two_devices) {
  OpenKnobs open = micro_batch_alone();
  open.add(KnobId::kSync).add(KnobId::kCast);
  expect_the_optimum(narrow_plan(2), many(2), open, knobs_of(KnobSearch::kLayout));
}

TEST(LayoutSearch, finds_the_optimum_of_activations) {
  Plan base = narrow_plan(2);
  base.activations.reset();
  base.micro_batch = 2;
  expect_the_optimum(base, many(2), OpenKnobs{}, knobs_of(KnobSearch::kLayout));
}

TEST(LayoutSearch, finds_the_optimum_of_weights_that_flow) {
  OpenKnobs open;
  open.add(KnobId::kFlowShare).add(KnobId::kGpuBuckets);
  Plan base = narrow_plan(2);
  base.micro_batch = 1;
  expect_the_optimum(base, many(2), open, knobs_of(KnobSearch::kLayout));
}

// One fetch serves a layer's forward and backward where the look-ahead reaches over both.
TEST(LayoutSearch, finds_the_optimum_of_weights_that_flow_with_a_long_look_ahead) {
  OpenKnobs open;
  open.add(KnobId::kFlowShare).add(KnobId::kGpuBuckets);
  Plan base = narrow_plan(2);
  base.micro_batch = 1;
  base.weights.look_ahead = 64;
  Machine machine = many(2);
  machine.link.host_to_device = flat(0.05e9);
  expect_the_optimum(base, machine, open, knobs_of(KnobSearch::kLayout));
}

TEST(LayoutSearch, finds_the_optimum_where_gpu_memory_is_short) {
  Machine machine = many(2);
  machine.gpu.memory.value = Bytes{int64_t{9} << 20};
  Plan base = narrow_plan(2);
  base.activations.reset();
  base.micro_batch = 2;
  expect_the_optimum(base, machine, OpenKnobs{}, knobs_of(KnobSearch::kLayout));
}

TEST(LayoutSearch, finds_the_optimum_where_cpu_memory_is_short) {
  Machine machine = many(2);
  machine.cpu.memory.value = Bytes{int64_t{6} << 20};
  expect_the_optimum(narrow_plan(2), machine, micro_batch_alone(), knobs_of(KnobSearch::kLayout));
}

TEST(LayoutSearch, finds_the_optimum_on_a_slow_network) {
  Machine machine = many(4);
  machine.devices_per_node = 2;
  machine.network->bandwidth.value = Bandwidth::from_gb_per_s(0.5);
  expect_the_optimum(narrow_plan(4), machine, micro_batch_alone(), knobs_of(KnobSearch::kLayout));
}

TEST(LayoutSearch, finds_the_optimum_on_a_slow_processor) {
  Machine machine = many(2);
  machine.cpu.adam["plain"] = flat(5e6);
  OpenKnobs open = micro_batch_alone();
  open.add(KnobId::kGpuBuckets);
  expect_the_optimum(narrow_plan(2), machine, open, knobs_of(KnobSearch::kLayout));
}

TEST(LayoutSearch, finds_the_optimum_on_a_slow_link) {
  Machine machine = many(2);
  machine.link.host_to_device = machine.link.device_to_host = flat(1e9);
  OpenKnobs open = micro_batch_alone();
  open.add(KnobId::kBucketBytes);
  expect_the_optimum(narrow_plan(2), machine, open, knobs_of(KnobSearch::kLayout));
}

TEST(LayoutSearch, finds_the_optimum_of_four_devices) {
  expect_the_optimum(narrow_plan(4), many(4), micro_batch_alone(), knobs_of(KnobSearch::kLayout));
}

TEST(LayoutSearch, finds_the_optimum_of_pipelines) {
  KnobSet layouts;
  layouts.add(KnobId::kPipeline)
      .add(KnobId::kVirtualPipeline)
      .add(KnobId::kPipelineSchedule)
      .add(KnobId::kZeroStage)
      .add(KnobId::kPlacement);
  Plan base = narrow_plan(4);
  base.activations.reset();
  expect_the_optimum(base, many(4), micro_batch_alone(), layouts);
}

// A space over parts of sequences: what strategies leave open that are about them.
struct PartsSpace {
  const char* name;
  KnobSet layouts;
  Plan base;
  Machine machine;
};

KnobSet degrees_with_parts() {
  return KnobSet{}.add(KnobId::kPipeline).add(KnobId::kSubsequences).add(KnobId::kZeroStage);
}

// Of 8,192 tokens a device has parts of 2,048 at the least.
Plan parts_base(int64_t devices, int64_t global_batch) {
  Plan base = narrow_plan(devices);
  base.sequence_length = 8192;
  base.subsequence_split = SubsequenceSplit::kFlops;
  base.global_batch = global_batch;
  base.data = std::gcd(devices, global_batch);
  base.optimizer.placement = OptimizerPlacement::kGpu;
  base.optimizer.sync = SyncMode::kWait;
  base.optimizer.gpu_buckets = 0;
  base.micro_batch = 1;
  base.activations.reset();
  return base;
}

std::vector<PartsSpace> parts_spaces() {
  std::vector<PartsSpace> spaces;
  Plan sppo = parts_base(4, 1);
  sppo.activations.emplace().reload = ReloadOrder::kByModule;
  sppo.activations->offload_per_mflop = 10'000;
  spaces.push_back({"SPPO", degrees_with_parts().add(KnobId::kSequence), sppo, many(4)});
  Machine short_of_memory = many(4);
  short_of_memory.gpu.memory.value = Bytes{int64_t{48} << 20};
  spaces.push_back({"stages, little memory", degrees_with_parts(), sppo, short_of_memory});
  const KnobSet shared_ends = degrees_with_parts().add(KnobId::kMultiplex);
  spaces.push_back(
      {"SPPO, multiplexed", KnobSet(shared_ends).add(KnobId::kSequence), sppo, many(4)});
  spaces.push_back({"stages that share, little memory", shared_ends, sppo, short_of_memory});
  const Plan seq1f1b = parts_base(4, 2);
  spaces.push_back({"Seq1F1B",
                    degrees_with_parts().add(KnobId::kTensor).add(KnobId::kVirtualPipeline),
                    seq1f1b, many(4)});
  Plan terapipe = parts_base(4, 1);
  terapipe.pipeline_schedule = PipelineSchedule::kGpipe;
  spaces.push_back({"TeraPipe", degrees_with_parts().add(KnobId::kTensor), terapipe, many(4)});
  Machine nodes = many(4);
  nodes.devices_per_node = 2;
  nodes.network->bandwidth.value = Bandwidth::from_gb_per_s(0.5);
  spaces.push_back({"rings over two nodes", degrees_with_parts().add(KnobId::kContext),
                    parts_base(4, 1), nodes});
  return spaces;
}

TEST(LayoutSearch, over_parts_of_sequences_finds_what_simulating_every_plan_finds) {
  Model model = small_model();
  model.max_positions = 8192;
  std::set<std::string> in_parts;
  for (const PartsSpace& each : parts_spaces()) {
    SCOPED_TRACE(each.name);
    OpenKnobs open;
    open.add(KnobId::kActivations).add(KnobId::kMemoryReuse);
    const SearchSpace space{layouts_of(model, each.base, each.layouts), open};
    SearchOptions options;
    const SearchResult bounded = search(model, space, each.machine, nullptr, options);
    options.exhaustive = true;
    const SearchResult all = search(model, space, each.machine, nullptr, options);
    ASSERT_TRUE(bounded.best && all.best);
    EXPECT_EQ(bounded.best->plan, all.best->plan)
        << plan_name(bounded.best->plan) << " and " << plan_name(all.best->plan);
    EXPECT_EQ(bounded.best->step_time.ps, all.best->step_time.ps);
    EXPECT_EQ(bounded.considered, all.considered);
    EXPECT_LT(bounded.simulated, all.simulated);
    if (all.best->plan.subsequences > 1) in_parts.insert(each.name);
    fmt::print("{}: {} plans, {} and {} simulated, {} and {} do not fit; the best: {}\n", each.name,
               all.considered, bounded.simulated, all.simulated, bounded.infeasible, all.infeasible,
               plan_name(all.best->plan));
  }
  EXPECT_GE(in_parts.size(), 2u);
}

// Where everything leaves, a layer has keys and values of three parts of four on the GPU when the
// last part went back, of 2 bytes each, and the sums of their gradients, of 4 bytes. Of keys and
// values that stay it is the same.
TEST(LayerProfiles, between_parts_lie_keys_values_and_the_sums_of_their_gradients) {
  Model model = small_model();
  model.max_positions = 8192;
  Plan plan = parts_base(2, 1);
  plan.pipeline = 2;
  plan.data = 1;
  plan.subsequences = 4;
  plan.subsequence_split = SubsequenceSplit::kTokens;
  plan.activations.emplace().fate.fill(ActivationFate::kOffload);
  const Machine machine = many(2);
  const CostModel costs(machine, plan, Stack{}, nullptr);
  LayerProfiles profiles(model, costs);
  profiles.prepare({plan}, 1);
  const int64_t elements = 8192 / 4 * 3 * 2 * model.kv_heads * model.head_size;
  EXPECT_EQ(profiles.of(plan).layer(0, model.layers).between_parts.count, elements * (2 + 4));
}

TEST(LayoutSearch, does_not_depend_on_threads) {
  const Model model = small_model();
  const Machine machine = many(4);
  const SearchSpace space{layouts_of(model, narrow_plan(4), knobs_of(KnobSearch::kLayout)),
                          micro_batch_alone()};
  SearchOptions options;
  options.threads = 1;
  const SearchResult one = search(model, space, machine, nullptr, options);
  options.threads = 3;
  const SearchResult three = search(model, space, machine, nullptr, options);
  EXPECT_EQ(one.simulated, three.simulated);
  EXPECT_EQ(one.infeasible, three.infeasible);
  ASSERT_EQ(one.ranked.size(), three.ranked.size());
  for (size_t i = 0; i < one.ranked.size(); ++i) {
    EXPECT_EQ(one.ranked[i].plan, three.ranked[i].plan);
  }
}

}  // namespace
}  // namespace ballast::tests
