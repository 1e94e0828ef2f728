#include "sim/engine/predict.h"

#include <algorithm>
#include <bit>
#include <fmt/format.h>

#include "sim/engine/cost.h"
#include "sim/engine/engine.h"
#include "sim/engine/repetition.h"
#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"
#include "sim/graph/core/stages.h"

namespace ballast {
namespace {

// "95.17 GiB", and smaller units where two digits of that would show nothing.
std::string size_text(Bytes bytes) {
  constexpr double kMib = 1 << 20;
  constexpr double kKib = 1 << 10;
  const auto count = static_cast<double>(bytes.count);
  if (bytes.gib() >= 0.01 || bytes.count == 0) return fmt::format("{:.2f} GiB", bytes.gib());
  if (count >= 0.01 * kMib) return fmt::format("{:.2f} MiB", count / kMib);
  return fmt::format("{:.2f} KiB", count / kKib);
}

// What to change in the plan when this category is what fills the GPU.
std::string_view gpu_remedy(Category category, const Plan& plan) {
  const bool optimizer_on_gpu = plan.optimizer.placement == OptimizerPlacement::kGpu;
  switch (category) {
    case Category::kWeights:
      if (plan.weights.keep_codes) return "set weights.keep_codes=false";
      return "let more weights flow (weights.flow_share) or use more devices";
    case Category::kGradients:
      return optimizer_on_gpu ? "move the optimizer to the CPU (optimizer.placement)"
                              : "use more devices or a smaller model";
    case Category::kMaster:
    case Category::kMoments:
      return optimizer_on_gpu ? "move the optimizer to the CPU (optimizer.placement)"
                              : "keep fewer buckets on the GPU (optimizer.gpu_buckets)";
    case Category::kActivations:
      return "recompute or offload activations, or use a smaller micro_batch";
    case Category::kStaging:
      return "use smaller buckets (optimizer.bucket_bytes)";
    case Category::kSnapshot:
      return "use optimizer.undo exact or optimizer.sync wait";
    case Category::kWorkspace:
    case Category::kData:
      return "use a smaller micro_batch";
  }
  return "";
}

// The same for the memory of the CPU.
std::string_view cpu_remedy(Category category) {
  switch (category) {
    case Category::kActivations:
      return "offload fewer activations (activations.offload_share)";
    case Category::kStaging:
      return "use smaller buckets (optimizer.bucket_bytes)";
    case Category::kSnapshot:
      return "use optimizer.undo exact or optimizer.sync wait";
    default:
      return "shard over more devices (data) or keep more buckets on the GPU "
             "(optimizer.gpu_buckets)";
  }
}

// `missing`: all that lacks memory; the first is told with numbers.
std::string too_much(const PlacePeak& peak, const std::vector<Shortfall>& missing) {
  const Shortfall& shortfall = missing.front();
  std::string text = fmt::format("{}: {} needed, {} usable, {}", memory_name(shortfall.place),
                                 size_text(shortfall.needed), size_text(shortfall.usable),
                                 lacking_text(shortfall));
  for (size_t i = 1; i < missing.size(); ++i) {
    text += fmt::format(", and {} {}", memory_name(missing[i].place), lacking_text(missing[i]));
  }
  if (!peak.holders.empty()) {
    const Holder& largest = peak.holders.front();
    text +=
        fmt::format("; {} fill {} of it", to_string(largest.category), size_text(largest.bytes));
  }
  return text;
}

Category largest_of(const PlacePeak& peak) {
  return peak.holders.empty() ? Category::kWorkspace : peak.holders.front().category;
}

std::array<double, kProvenances> provenance_of(const Graph& graph, const CostTable& costs,
                                               const Timeline& timeline) {
  std::array<double, kProvenances> shares{};
  double total = 0;
  for (const Span& span : timeline.spans) {
    const auto op = static_cast<size_t>(span.op);
    if (kind_of(graph.step.ops[op].lane) != LaneKind::kCompute) continue;
    const double seconds = (span.end - span.begin).seconds();
    shares[static_cast<size_t>(costs.ops[op].provenance)] += seconds;
    total += seconds;
  }
  if (total > 0) {
    for (double& share : shares) share /= total;
  }
  return shares;
}

Flops gpu_flops(const Program& program, const std::vector<Flops>& blocks) {
  Flops sum;
  for (const Op& op : program.ops) {
    if (kind_of(op.lane) != LaneKind::kCompute) continue;
    const auto* block = std::get_if<BlockWork>(&op.work);
    sum += block != nullptr ? blocks[static_cast<size_t>(block->block)] : flops_of(op.work);
  }
  return sum;
}

Flops gpu_flops(const Graph& graph) {
  std::vector<Flops> blocks;
  for (const Program& block : graph.blocks) blocks.push_back(gpu_flops(block, {}));
  return gpu_flops(graph.step, blocks);
}

// The operations before the commit, to be run once from a standing start.
Program prefix_of(const Graph& graph) {
  const auto count = static_cast<size_t>(graph.commit);
  const Program& step = graph.step;
  Program prefix;
  prefix.ops.assign(step.ops.begin(), step.ops.begin() + graph.commit);
  prefix.edge_begin.push_back(0);
  for (size_t i = 0; i < count; ++i) {
    for (int32_t e = step.edge_begin[i]; e < step.edge_begin[i + 1]; ++e) {
      const Edge& edge = step.edges[static_cast<size_t>(e)];
      if (edge.steps_ahead == 0) prefix.edges.push_back(edge);  // others lie before the start
    }
    prefix.edge_begin.push_back(static_cast<int32_t>(prefix.edges.size()));
  }
  return prefix;
}

Duration time_once(const Program& program, const Graph& graph, const CostModel& costs) {
  if (program.ops.empty()) return {};
  const SimulateOptions once{.max_steps = 1, .record_steps = 0};
  return simulate(program, graph, costs.table(program, graph), once).step_time;
}

struct BlockCost {
  Duration alone, host, host_first;
  HostWait host_waits = HostWait::kNone;
};

// The costs of a block's operations without the host's time for those that it enqueues ahead, which
// `block` gets: all of them, or, where it waits for a result, those up to that.
OpCosts without_ahead(const OpCosts& costs, BlockCost& block) {
  OpCosts result;
  result.reserve(costs.size());
  std::vector<int32_t> ahead(costs.kinds().size(), -1);
  std::vector<int32_t> behind = ahead;
  for (size_t i = 0; i < costs.size(); ++i) {
    const OpCost& cost = costs[i];
    const bool is_ahead = block.host_waits == HostWait::kNone;
    if (cost.host_waits != HostWait::kNone) block.host_waits = HostWait::kOfItsDevice;
    if (is_ahead) {
      block.host += cost.host;
      block.host_first = std::max(block.host_first, cost.host_first);
    }
    int32_t& kind = (is_ahead ? ahead : behind)[costs.kind_at(i)];
    if (kind < 0) {
      kind = result.add_kind(cost);
      OpCost& added = result.kinds().back();
      if (is_ahead) added.host = added.host_first = {};
    }
    result.append(kind);
  }
  return result;
}

// A block lasts as long as its operations do from a standing start. The host enqueues them ahead,
// as it does those of an operation of many kernels; behind a result that it waits for it enqueues
// beside them, and what follows the block when that is over.
BlockCost block_cost(const Program& block, const Graph& graph, const CostModel& costs) {
  BlockCost cost;
  if (block.ops.empty()) return cost;
  CostTable table = costs.table_of_block(block);
  table.ops = without_ahead(table.ops, cost);
  cost.alone = simulate(block, graph, table, {.max_steps = 1, .record_steps = 0}).step_time;
  return cost;
}

std::optional<Duration> rollback_time_of(const Graph& graph, const CostModel& costs) {
  if (graph.repair.ops.empty() || graph.commit < 0) return std::nullopt;
  return time_once(graph.repair, graph, costs) + time_once(prefix_of(graph), graph, costs);
}

// What another framework's allocators take: no planned arena, but the tensors and some slack, and
// host buffers as its pinned allocator rounds them.
void take_as_allocated(std::vector<PlacePeak>& peaks, const Plan& plan, const Stack& stack) {
  if (stack.memory_is_planned()) return;
  const StackFacts facts = facts_of(stack.facts, plan);
  for (PlacePeak& peak : peaks) {
    peak.arena = peak.live;
    if (peak.place == Place::kHbm) {
      const double slack = stack.constants.memory_slack * static_cast<double>(peak.live.count);
      peak.arena += Bytes{static_cast<int64_t>(slack)};
    }
    // Stages 1 and 2 that wait have one buffer for a rank's whole share. Stage 3 cuts it into
    // groups, and steps that go by bucket have buffers of a bucket: nearly powers of two already.
    const bool whole = plan.optimizer.sync == SyncMode::kWait && plan.zero_stage < 3;
    if (peak.place != Place::kDram || !facts.pinned_power_of_two || !whole) continue;
    for (const Holder& holder : peak.holders) {
      const bool pinned =
          holder.category == Category::kMaster || holder.category == Category::kGradients;
      if (!pinned) continue;
      const auto bytes = static_cast<uint64_t>(holder.bytes.count);
      peak.arena += Bytes{static_cast<int64_t>(std::bit_ceil(bytes) - bytes)};
    }
  }
}

// A pipeline that waits empties at the end of every step, so a few steps show its period: one from
// a standing start, three that are alike, and one for their stages to go on with.
SimulateOptions options_for(const Plan& plan) {
  if (plan.pipeline == 1 || plan.optimizer.sync != SyncMode::kWait) return {};
  return {.max_steps = 5, .record_steps = 2};
}

// The machine's best rate of the plan's products; null where it names none.
const Sourced<FlopRate>* best_rate(const Plan& plan, const Machine& machine) {
  const DType factors = plan.products == ProductFormat::kFp8 ? DType::kE4m3 : plan.dtype;
  const auto best = machine.gpu.matmul.find(factors);
  return best == machine.gpu.matmul.end() ? nullptr : &best->second;
}

// What Prediction::mfu divides by.
FlopRate peak_of_mfu(const Plan& plan, const Machine& machine) {
  if (machine.gpu.nominal_matmul) return machine.gpu.nominal_matmul->value;
  const Sourced<FlopRate>* const best = best_rate(plan, machine);
  if (best == nullptr) {
    const DType factors = plan.products == ProductFormat::kFp8 ? DType::kE4m3 : plan.dtype;
    throw Error("machine " + machine.name + ": gpu.matmul",
                "has no rate for " + std::string(to_string(factors)),
                "add it to the machine's file or choose another dtype");
  }
  return best->value;
}

// Of `result`, which has a linked graph, all that its timeline says.
void simulate_step(Prediction& result, const Plan& plan, const CostModel& costs) {
  result.costs = costs_of(result.graph, costs);
  result.timeline = simulate(result.graph.step, result.graph, result.costs, options_for(plan));
  result.step_time = result.timeline.step_time;
  result.settled = result.timeline.settled;
  CHECK(result.step_time.ps > 0);
  result.gpu_work = gpu_flops(result.graph);
  result.kinds = time_by_kind(result.graph, result.timeline);
  result.lanes = lane_use(result.graph, result.timeline);
  result.longest_path = longest_path(result.graph, result.timeline);
  result.provenance = provenance_of(result.graph, result.costs, result.timeline);
  result.rollback_time = rollback_time_of(result.graph, costs);
}

// Addresses planned for many micro-batches may pack a few percent worse than those for few, and to
// plan them takes a while: of a step of a hundred thousand operations and more it is done where
// that may decide whether the plan fits.
bool is_worth_placing(const Prediction& from_less, const Model& model, const Plan& plan,
                      const Machine& machine) {
  constexpr int64_t kQuicklyPlaced = 5000;  // layers times micro-batches
  constexpr double kMostDrift = 0.1;
  if (model.layers * plan.accumulation() <= kQuicklyPlaced) return true;
  return std::any_of(from_less.peaks.begin(), from_less.peaks.end(), [&](const PlacePeak& peak) {
    return static_cast<double>(peak.arena.count) * (1 + kMostDrift) >
           static_cast<double>(usable(machine, peak.place).count);
  });
}

// `whole`: of the step that `of` was not simulated as; they agree in whether it fits.
void take_memory(Prediction& simulated, Prediction whole) {
  simulated.reason = std::move(whole.reason);
  simulated.peaks = std::move(whole.peaks);
  simulated.gpu_peak = whole.gpu_peak;
}

// Everything that follows from the simulated step.
void fill_rates(Prediction& result, const Model& model, const Plan& plan, const Machine& machine) {
  const double seconds = result.step_time.seconds();
  const auto devices = static_cast<double>(plan.devices);
  const auto simulated = static_cast<double>(devices_of(result.graph));
  result.tokens_per_s = static_cast<double>(plan.tokens_per_step()) / seconds;
  result.tokens_per_s_per_device = result.tokens_per_s / devices;
  const Flops model_flops =
      model_flops_per_step(model, plan.tokens_per_step(), plan.sequence_length);
  result.model_rate = {model_flops.count / devices / seconds};
  result.hardware_rate = {result.gpu_work.count / simulated / seconds};
  result.mfu = result.model_rate.flops_per_s / peak_of_mfu(plan, machine).flops_per_s;
  const Sourced<FlopRate>* const best = best_rate(plan, machine);
  if (machine.gpu.nominal_matmul && best != nullptr && best->measured) {
    result.of_measured = {result.model_rate.flops_per_s / best->value.flops_per_s, best->value};
  }
}

// Operations that stand for a block take what it does.
void time_blocks(const Graph& graph, const CostModel& costs, CostTable& table) {
  std::vector<BlockCost> blocks;
  for (const Program& block : graph.blocks) blocks.push_back(block_cost(block, graph, costs));
  for (size_t i = 0; i < table.ops.size(); ++i) {
    const auto* work = std::get_if<BlockWork>(&graph.step.ops[i].work);
    if (work == nullptr) continue;
    const BlockCost& block = blocks[static_cast<size_t>(work->block)];
    OpCost& kind = table.ops.kinds()[table.ops.kind_at(i)];
    kind.alone = block.alone;
    kind.host = block.host;
    kind.host_first = block.host_first;
    kind.host_waits = block.host_waits;
  }
}

// What lies between three operations, of which that is all that was recorded.
std::optional<Duration> even_period(const Timeline& timeline) {
  if (!timeline.settled || timeline.spans.size() != 3) return std::nullopt;
  const Duration one = timeline.spans[1].begin - timeline.spans[0].begin;
  const Duration two = timeline.spans[2].begin - timeline.spans[1].begin;
  return one == two && one.ps > 0 ? std::optional(one) : std::nullopt;
}

}  // namespace

CostTable costs_of(const Graph& graph, const CostModel& costs) {
  CostTable table = costs.table(graph.step, graph);
  time_blocks(graph, costs, table);
  return table;
}

CostTable costs_of(const Prediction& prediction, const CostModel& costs) {
  const Graph& graph = prediction.graph;
  CostTable table = costs.table(graph.step, graph, prediction.costs.ops);
  time_blocks(graph, costs, table);
  return table;
}

Duration step_time_of(const Prediction& prediction, const Plan& plan,
                      const std::function<CostTable(const Prediction&)>& costs_of) {
  if (!prediction.repetition) {
    return step_time_of(prediction.graph, plan, costs_of(prediction));
  }
  SimulateOptions options = options_for(plan);
  options.spans_of = prediction.repetition->apart;
  options.record_steps = options.spans_of.empty() ? 0 : 1;
  const Timeline timeline =
      simulate(prediction.graph.step, prediction.graph, costs_of(prediction), options);
  const Duration simulated = timeline.step_time;
  if (const std::optional<Duration> period = even_period(timeline)) {
    return prediction.repetition->lengthen(simulated - *period, simulated);
  }
  const Prediction& shorter = *prediction.shorter;
  const Duration less = step_time_of(shorter.graph, plan, costs_of(shorter));
  return prediction.repetition->lengthen(less, simulated);
}

Duration step_time_of(const Prediction& prediction, const Plan& plan, const CostModel& costs) {
  return step_time_of(prediction, plan,
                      [&](const Prediction& simulated) { return costs_of(simulated, costs); });
}

Duration step_time_of(const Graph& graph, const Plan& plan, const CostModel& costs) {
  return step_time_of(graph, plan, costs_of(graph, costs));
}

Duration step_time_of(const Graph& graph, const Plan& plan, const CostTable& costs) {
  SimulateOptions options = options_for(plan);
  options.record_steps = 0;
  return simulate(graph.step, graph, costs, options).step_time;
}

Bytes usable(const Machine& machine, Place place) {
  switch (place) {
    case Place::kHbm:
      return machine.gpu.memory.value - machine.gpu.reserved.value;
    case Place::kDram:
      return machine.cpu.memory.value - machine.cpu.reserved.value;
    case Place::kNvme:
      return machine.nvme ? machine.nvme->capacity.value : Bytes{};
  }
  return {};
}

Sourced<Bytes>& memory_at(Machine& machine, Place place) {
  CHECK(place == Place::kHbm || place == Place::kDram);
  return place == Place::kHbm ? machine.gpu.memory : machine.cpu.memory;
}

std::vector<Shortfall> shortfalls(const std::vector<PlacePeak>& peaks, const Machine& machine) {
  std::vector<Shortfall> list;
  for (const PlacePeak& peak : peaks) {
    const Bytes limit = usable(machine, peak.place);
    if (peak.arena > limit) list.push_back({peak.place, peak.arena, limit});
  }
  return list;
}

std::string lacking_text(const Shortfall& shortfall) {
  return size_text(shortfall.lacking()) + " too much";
}

std::string memory_name(Place place) {
  switch (place) {
    case Place::kHbm:
      return "GPU memory";
    case Place::kDram:
      return "CPU memory";
    case Place::kNvme:
      return "NVMe";
  }
  return "";
}

std::string reason_not_to_fit(const std::vector<PlacePeak>& peaks, const Plan& plan,
                              const Machine& machine) {
  const std::vector<Shortfall> missing = shortfalls(peaks, machine);
  if (missing.empty()) return "";
  const Shortfall& first = missing.front();
  const PlacePeak& peak = *std::find_if(
      peaks.begin(), peaks.end(), [&](const PlacePeak& one) { return one.place == first.place; });
  switch (first.place) {
    case Place::kHbm:
      return too_much(peak, missing) + "; " + std::string(gpu_remedy(largest_of(peak), plan));
    case Place::kDram:
      return too_much(peak, missing) + "; " + std::string(cpu_remedy(largest_of(peak)));
    case Place::kNvme:
      if (machine.nvme) return too_much(peak, missing) + "; shard over more devices (data)";
      return fmt::format(
          "the plan keeps {} on NVMe, and the machine describes none; "
          "set optimizer.placement to cpu",
          size_text(peak.arena));
  }
  return "";
}

Prediction predict(const Model& model, const Plan& plan, const Machine& machine,
                   const Measurements* measurements) {
  return predict(model, plan, machine, Stack{}, measurements);
}

Prediction predict(const Model& model, const Plan& plan, const Machine& machine, const Stack& stack,
                   const Measurements* measurements) {
  check(stack);
  Prediction result;
  if (plan.devices > machine.devices) {
    result.reason =
        fmt::format("the plan uses {} devices, and machine {} has {}; use fewer devices",
                    plan.devices, machine.name, machine.devices);
    return result;
  }
  for (const AttentionKind kind : stack.facts.attention) {
    StackFacts facts = stack.facts;
    facts.attention = {kind};
    const auto predict_whole = [&](const Plan& changed) {
      // Of the machine that runs it itself what is predicted is what runs.
      Graph graph = machine.gpu.is_host_thread ? build_to_run(model, changed, facts)
                                               : build(model, changed, facts);
      return predict(std::move(graph), model, changed, machine, stack, measurements);
    };
    std::optional<Prediction> from_less;
    if (!machine.gpu.is_host_thread && is_long(model, plan)) {
      from_less = repeated(model, plan, predict_whole);
    }
    if (from_less && stack.memory_is_planned() &&
        is_worth_placing(*from_less, model, plan, machine)) {
      Prediction whole = predict_memory(build_placed(model, plan, facts), plan, machine, stack);
      // Where the whole one is folded, for it is long, the memory of short ones that are not
      // stands.
      const bool alike = whole.graph.blocks.empty() == from_less->graph.blocks.empty();
      if (alike && whole.fits == from_less->fits) {
        take_memory(*from_less, std::move(whole));
      } else if (alike) {
        from_less.reset();
      }
    }
    result = from_less ? *std::move(from_less) : predict_whole(plan);
    if (result.fits) fill_rates(result, model, plan, machine);
    if (result.fits) break;
  }
  return result;
}

Prediction predict(Graph graph, const Model& model, const Plan& plan, const Machine& machine,
                   const Measurements* measurements) {
  return predict(std::move(graph), model, plan, machine, Stack{}, measurements);
}

Prediction predict_memory(Graph graph, const Plan& plan, const Machine& machine,
                          const Stack& stack) {
  Prediction result;
  result.graph = std::move(graph);
  result.peaks = memory_peaks(result.graph);
  take_as_allocated(result.peaks, plan, stack);
  result.gpu_peak = result.peaks.front().arena;
  result.reason = reason_not_to_fit(result.peaks, plan, machine);
  result.fits = result.reason.empty();
  return result;
}

Prediction predict_time(Graph graph, const Plan& plan, const CostModel& costs) {
  Prediction result;
  result.graph = std::move(graph);
  result.peaks = memory_peaks(result.graph);
  result.fits = true;
  simulate_step(result, plan, costs);
  return result;
}

Prediction predict(Graph graph, const Model& model, const Plan& plan, const Machine& machine,
                   const Stack& stack, const Measurements* measurements) {
  Prediction result = predict_memory(std::move(graph), plan, machine, stack);
  if (!result.fits) return result;

  simulate_step(result, plan, CostModel(machine, plan, stack, measurements));
  fill_rates(result, model, plan, machine);
  return result;
}

// PyTorch's allocator gives all cached blocks back where the device has none left, and takes them
// anew (c10/cuda/CUDACachingAllocator.cpp, release_cached_blocks). What that takes was not measured
// anywhere, and no time stands for it.
std::optional<std::string> nearly_full_note(const Prediction& prediction, const Machine& machine,
                                            const Stack& stack) {
  constexpr double kNearlyFull = 0.98;
  if (!prediction.fits || stack.memory_is_planned() || machine.gpu.is_host_thread) {
    return std::nullopt;
  }
  const auto peak = std::find_if(prediction.peaks.begin(), prediction.peaks.end(),
                                 [](const PlacePeak& one) { return one.place == Place::kHbm; });
  if (peak == prediction.peaks.end()) return std::nullopt;
  const double filled = static_cast<double>(peak->arena.count) /
                        static_cast<double>(usable(machine, Place::kHbm).count);
  if (filled < kNearlyFull) return std::nullopt;
  return fmt::format(
      "GPU memory is filled to {:.1f} %: where the framework's allocator runs out, it gives its "
      "cached blocks back and takes them anew, which the step time leaves out",
      100 * filled);
}

}  // namespace ballast
