#include "sim/graph/passes/passes.h"

#include <algorithm>
#include <iterator>

#include "sim/base/stop.h"
#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"

namespace ballast {
namespace {

bool always(const PassContext&) { return true; }

bool orders_copies(const PassContext& context) {
  const ActivationPlan& activations = *context.plan.activations;
  return activations.reload == ReloadOrder::kByModule || activations.offload_in_flight > 0;
}

bool shards_state(const PassContext& context) {
  return context.plan.replicas() > 1 &&
         (context.plan.zero_stage == 1 || context.plan.zero_stage == 2);
}

bool gathers_weights(const PassContext& context) {
  return context.plan.replicas() > 1 && context.plan.zero_stage == 3;
}

// Stage 3 over several ranks scatters gradients layer by layer into shards, which may leave then,
// unless they are scattered once a step.
bool adds_up_on_cpu(const PassContext& context) {
  const bool leaves = context.facts.stage3_returns_gradients && !context.facts.sums_whole_gradients;
  const bool stays = gathers_weights(context) && !leaves;
  return context.facts.accumulates_on_cpu && !stays && context.plan.accumulation() > 1 &&
         context.plan.optimizer.placement != OptimizerPlacement::kGpu;
}

bool multiplies_in_8_bits(const PassContext& context) {
  return context.plan.products != ProductFormat::kAsStored;
}

constexpr Pass kPasses[] = {
    {"plain", "passes/decoder/decoder.cpp",
     "forward, loss and backward of every micro-batch of one rank, everything on its GPU", always,
     [](Graph, const PassContext& context) {
       return build_plain(context.model, context.plan, context.facts);
     }},
    {"gemm formats", "passes/gemm_formats.cpp", "which GEMMs multiply 8-bit factors",
     multiplies_in_8_bits,
     [](Graph graph, const PassContext& context) {
       choose_product_formats(graph, context.plan, context.facts);
       return graph;
     }},
    {"tensor", "passes/tensor.cpp",
     "all-reduces, or gather and scatter by token, around GEMMs split over ranks",
     [](const PassContext& context) { return context.plan.tensor > 1; },
     [](Graph graph, const PassContext& context) {
       return tensor_pass(std::move(graph), context.model, context.plan, context.facts);
     }},
    {"sequence", "passes/sequence.cpp",
     "all-to-alls around attention (Ulysses), keys and values around a ring beside it",
     [](const PassContext& context) {
       return context.plan.sequence > 1 || context.plan.context > 1;
     },
     [](Graph graph, const PassContext& context) {
       return sequence_pass(std::move(graph), context.plan, context.facts);
     }},
    {"checkpoint", "passes/checkpoint.cpp", "recompute or offload of activations, by module",
     always,
     [](Graph graph, const PassContext& context) {
       return checkpoint_pass(std::move(graph), context.plan, context.facts);
     }},
    {"weight codes", "passes/gemm_formats.cpp",
     "which GEMMs make the 8-bit codes of weights, and which take those that were made",
     [](const PassContext& context) { return context.plan.weights.keep_codes; },
     [](Graph graph, const PassContext&) { return weight_codes_pass(std::move(graph)); }},
    {"expert overlap", "passes/routing.cpp",
     "which computation an exchange of tokens and experts runs beside, where a framework does so",
     [](const PassContext& context) {
       return context.plan.expert > 1 && context.facts.expert_overlap == Overlap::kFull;
     },
     [](Graph graph, const PassContext&) { return expert_overlap_pass(std::move(graph)); }},
    {"gather", "passes/gather.cpp",
     "ZeRO-3 and FSDP: weights gathered for each visit, gradients scattered after", gathers_weights,
     [](Graph graph, const PassContext& context) {
       return gather_pass(std::move(graph), context.plan, context.facts);
     }},
    {"reload", "passes/reload.cpp",
     "when offloaded activations return by module, and how many leave at once", orders_copies,
     [](Graph graph, const PassContext& context) {
       return reload_pass(std::move(graph), context.plan);
     }},
    {"residency", "passes/residency.cpp", "weights that flow in before each use",
     [](const PassContext& context) { return *context.plan.weights.flow_share > 0; },
     [](Graph graph, const PassContext& context) {
       return residency_pass(std::move(graph), context.plan);
     }},
    {"optimizer", "passes/optimizer.cpp",
     "buckets, casts, norms, Adam, uploads; wait, delay, speculate; state that streams in", always,
     [](Graph graph, const PassContext& context) {
       return optimizer_pass(std::move(graph), context.plan, context.facts);
     }},
    {"accumulate", "passes/accumulate.cpp",
     "gradients of micro-batches that add up in CPU memory, where a framework does that",
     adds_up_on_cpu,
     [](Graph graph, const PassContext& context) {
       return accumulate_pass(std::move(graph), context.plan, context.facts);
     }},
    {"shard", "passes/shard.cpp", "ZeRO-1 and 2: a rank's share of what is stepped", shards_state,
     [](Graph graph, const PassContext& context) {
       return shard_pass(std::move(graph), context.plan, context.facts);
     }},
    {"direct access", "passes/direct_access.cpp",
     "kernels that read and write CPU memory themselves, instead of copies of weights and "
     "gradients",
     [](const PassContext& context) {
       return moves_state_by_kernels(context.plan.optimizer);
     },
     [](Graph graph, const PassContext&) { return direct_access_pass(std::move(graph)); }},
    {"host copies", "passes/host_copies.cpp",
     "pageable memory, calls tensor by tensor, a host that waits, where a framework does so",
     [](const PassContext& context) {
       return context.facts.stage3_copies_by_tensor || context.facts.casts_through_pageable ||
              context.facts.returns_weights_whole || waits_for_gradients(context.facts);
     },
     [](Graph graph, const PassContext& context) {
       return host_copies_pass(std::move(graph), context.plan, context.facts);
     }},
    {"gemm codes", "passes/gemm_formats.cpp", "memory for the 8-bit codes of factors",
     multiplies_in_8_bits,
     [](Graph graph, const PassContext&) { return products_pass(std::move(graph)); }},
    {"place", "core/arena.cpp", "lives, and an address for every tensor", always,
     [](Graph graph, const PassContext& context) {
       graph.reuse = context.plan.memory_reuse.value_or(MemoryReuse::kApart);
       place(graph);
       return graph;
     }},
    {"link", "core/link.cpp", "the edges between lanes", always,
     [](Graph graph, const PassContext&) {
       link(graph);
       return graph;
     }},
};

}  // namespace

std::span<const Pass> passes() { return kPasses; }

size_t pass_at(std::string_view name) {
  const auto found = std::find_if(std::begin(kPasses), std::end(kPasses),
                                  [&](const Pass& pass) { return pass.name == name; });
  CHECK(found != std::end(kPasses) && "no pass of this name");
  return static_cast<size_t>(found - std::begin(kPasses));
}

Graph run_passes(Graph graph, const PassContext& context, std::string_view first,
                 std::string_view last, ProgramExtent extent) {
  const size_t end = pass_at(last) + 1;
  bool changed = false;
  const auto verifies = [&] {
    return extent == ProgramExtent::kWhole && graph.step.ops.size() <= kMostVerifiedByPass;
  };
  for (size_t i = pass_at(first); i < end; ++i) {
    if (!kPasses[i].applies(context)) continue;
    stop_point();
    graph = kPasses[i].run(std::move(graph), context);
    changed = true;
    if (verifies()) verify(graph);
  }
  if (extent == ProgramExtent::kWhole && changed && !verifies()) verify(graph);
  return graph;
}

}  // namespace ballast
