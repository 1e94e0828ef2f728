#include "sim/graph/build.h"

#include <algorithm>

#include "sim/graph/core/edit.h"
#include "sim/graph/passes/passes.h"
#include "sim/graph/schedules/pipeline.h"

namespace ballast {

Model rank_model(const Model& model, const Plan& plan) {
  Model rank = model;
  if (plan.tensor == 1) return rank;
  rank.heads = div_ceil(model.heads, plan.tensor);
  rank.kv_heads = div_ceil(model.kv_heads, plan.tensor);
  rank.ffn = div_ceil(model.ffn, plan.tensor);
  rank.expert_ffn = div_ceil(model.expert_ffn, plan.tensor);
  rank.vocab = div_ceil(model.vocab, plan.tensor);
  return rank;
}

Model own_experts(const Model& rank, const Plan& plan) {
  Model own = rank;
  if (plan.expert == 1) return own;
  own.experts = div_ceil(rank.experts, plan.expert);
  // Nobody chooses among a rank's experts alone.
  own.experts_per_token = std::min(rank.experts_per_token, own.experts);
  own.expert_groups = 1;
  own.chosen_groups = 1;
  return own;
}

std::vector<Module> modules_held(const Model& rank, const Plan& plan) {
  if (plan.expert == 1) return modules_of(rank);
  const std::vector<Module> own = modules_of(own_experts(rank, plan));
  std::vector<Module> modules = modules_of(rank);
  for (size_t i = 0; i < modules.size(); ++i) {
    const ModuleKind kind = modules[i].kind;
    const bool feeds_forward = kind == ModuleKind::kFc1 || kind == ModuleKind::kFc2;
    if (!feeds_forward || !rank.has_experts(modules[i].layer)) continue;
    modules[i].count = own[i].count;
    modules[i].parameters = own[i].parameters;
    modules[i].expert_ranks = plan.expert;
  }
  return modules;
}

std::vector<Module> modules_stepped(const Model& model, const Plan& plan) {
  std::vector<Module> modules = modules_held(rank_model(model, plan), plan);
  if (plan.zero_stage == 3) shard_modules(modules, replica_group(plan).ranks);
  return modules;
}

Graph build_plain(const Model& model, const Plan& plan) {
  return build_plain(model, plan, StackFacts{});
}

Graph build_plain(const Model& model, const Plan& plan, const StackFacts& facts) {
  Graph graph = build_chunk(rank_model(model, plan), plan, facts, {});
  graph.buckets = buckets_of(graph.modules, plan.optimizer);
  add_bucket_state(graph, plan, facts);
  return graph;
}

Graph build(const Model& model, const Plan& plan) { return build(model, plan, StackFacts{}); }

namespace {

// The pass before `place`, and the last of those that build_pipeline() runs.
constexpr std::string_view kLastUnplaced = "gemm codes";
// Micro-batches of a step that stands for one of many: a first, a last and two between.
constexpr int64_t kFewToAsk = 4;

Graph build_up_to(std::string_view last, const Model& model, const Plan& plan,
                  const StackFacts& facts, Folding folding = Folding::kAuto) {
  check(plan, model);
  CHECK(plan.micro_batch && plan.activations && plan.weights.flow_share &&
        plan.optimizer.gpu_buckets);
  const StackFacts own = facts_of(facts, plan);
  const PassContext context{model, plan, own};
  if (plan.pipeline == 1) return run_passes({}, context, "plain", last);
  Graph graph = build_pipeline(model, plan, own, folding);
  if (last == kLastUnplaced) return graph;
  return run_passes(std::move(graph), context, "place", last);
}

}  // namespace

Graph build(const Model& model, const Plan& plan, const StackFacts& facts) {
  return build_up_to("link", model, plan, facts);
}

Graph build_to_run(const Model& model, const Plan& plan, const StackFacts& facts) {
  return build_up_to("link", model, plan, facts, Folding::kIfLarge);
}

Graph build_to_run(const Model& model, const Plan& plan) {
  return build_to_run(model, plan, StackFacts{});
}

Graph build_to_run_placed(const Model& model, const Plan& plan) {
  return build_up_to("place", model, plan, StackFacts{}, Folding::kIfLarge);
}

Graph build_to_ask(const Model& model, const Plan& plan) {
  check(plan, model);
  if (plan.pipeline == 1) {
    Plan asked = plan;
    asked.global_batch = std::min(kFewToAsk, plan.accumulation()) * plan.data * *plan.micro_batch;
    return build_unplaced(model, asked, StackFacts{});
  }
  // Interleaved stages want their number to divide that of the micro-batches.
  const int64_t few = std::min(round_up(kFewToAsk, plan.pipeline), plan.accumulation());
  return build_pipeline_to_ask(model, plan, facts_of(StackFacts{}, plan), few);
}

Graph build_unplaced(const Model& model, const Plan& plan, const StackFacts& facts) {
  Graph graph = build_up_to(kLastUnplaced, model, plan, facts);
  graph.reuse = plan.memory_reuse.value_or(MemoryReuse::kApart);
  return graph;
}

Graph build_placed(const Model& model, const Plan& plan, const StackFacts& facts) {
  return build_up_to("place", model, plan, facts);
}

}  // namespace ballast
