#include "sim/graph/build.h"

#include "sim/graph/core/edit.h"

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

Graph build_plain(const Model& model, const Plan& plan) {
  return build_plain(model, plan, StackFacts{});
}

Graph build_plain(const Model& model, const Plan& plan, const StackFacts& facts) {
  Graph graph = build_chunk(rank_model(model, plan), plan, facts, {});
  choose_product_formats(graph, plan);
  graph.buckets = buckets_of(graph.modules, plan.optimizer);
  add_bucket_state(graph, plan, facts);
  return graph;
}

Graph build(const Model& model, const Plan& plan) { return build(model, plan, StackFacts{}); }

Graph build(const Model& model, const Plan& plan, const StackFacts& facts) {
  Graph graph = build_placed(model, plan, facts);
  link(graph);
  return graph;
}

namespace {

Graph build_stages(const Model& model, const Plan& plan, const StackFacts& facts) {
  check(plan, model);
  CHECK(plan.micro_batch && plan.activations && plan.weights.flow_share &&
        plan.optimizer.gpu_buckets);
  if (plan.pipeline > 1) return build_pipeline(model, plan, facts);
  Graph graph = build_plain(model, plan, facts);
  verify(graph);
  graph = tensor_pass(std::move(graph), model, plan, facts);
  verify(graph);
  graph = sequence_pass(std::move(graph), plan);
  verify(graph);
  graph = checkpoint_pass(std::move(graph), plan);
  verify(graph);
  graph = gather_pass(std::move(graph), plan, facts);
  verify(graph);
  graph = residency_pass(std::move(graph), plan);
  verify(graph);
  graph = optimizer_pass(std::move(graph), plan, facts);
  verify(graph);
  graph = accumulate_pass(std::move(graph), plan, facts);
  verify(graph);
  graph = shard_pass(std::move(graph), plan);
  verify(graph);
  graph = host_copies_pass(std::move(graph), plan, facts);
  verify(graph);
  graph = products_pass(std::move(graph));
  verify(graph);
  return graph;
}

}  // namespace

Graph build_placed(const Model& model, const Plan& plan, const StackFacts& facts) {
  Graph graph = build_stages(model, plan, facts);
  graph.reuse = plan.memory_reuse.value_or(MemoryReuse::kApart);
  place(graph);
  return graph;
}

}  // namespace ballast
