// Turns a model and a plan into the graph of one training step.
//
//   build = the passes of sim/graph/passes/passes.h, in the order of that table
//
// Will not do: choose a knob (autotune does; every "auto" must be filled in), or cost anything.
#pragma once

#include "sim/graph/core/graph.h"

namespace ballast {

// Requires check(plan, model) to pass and every auto knob to have a value. `facts`: of the stack
// that runs the plan; of its attention kinds the first is taken.
Graph build(const Model& model, const Plan& plan, const StackFacts& facts);
// The same as Ballast runs it.
Graph build(const Model& model, const Plan& plan);

// What a device runs, and what is predicted of one that is this machine's own: of a pipeline the
// operations of all turns, up to a number (kMostSpreadOperations), though the plan may not ask for
// overlap with their inside.
Graph build_to_run(const Model& model, const Plan& plan, const StackFacts& facts);
Graph build_to_run(const Model& model, const Plan& plan);
// The same without the edges.
Graph build_to_run_placed(const Model& model, const Plan& plan);
// What stands for it where a device is asked whether it carries out its operations: of few
// micro-batches, whose first, last and those between ask for all that a long step asks for, and
// without addresses. Whether a pipeline's turns are spread the plan's own number decides.
Graph build_to_ask(const Model& model, const Plan& plan);

// All of build but places and edges, both of which link() adds: what lives when is known, which is
// all that a framework without planned memory needs.
Graph build_unplaced(const Model& model, const Plan& plan, const StackFacts& facts);
// All of build but the edges: memory is known, and link() makes it the graph that runs.
Graph build_placed(const Model& model, const Plan& plan, const StackFacts& facts);

// One rank's part of a model under tensor parallelism: heads, feed-forward columns and vocabulary
// divided, width whole. Rounded up where they do not divide; at least one key/value head.
Model rank_model(const Model& model, const Plan& plan);
// With the experts alone that one of the ranks has that share them: what its modules with experts
// are of. `rank`: as rank_model() has it.
Model own_experts(const Model& rank, const Plan& plan);
// All modules of the model, with what such a rank holds of each.
std::vector<Module> modules_held(const Model& rank, const Plan& plan);
// The same with what one rank steps of each: under stage 3 its share. Of a pipeline, all stages'.
std::vector<Module> modules_stepped(const Model& model, const Plan& plan);

// --- what the table of passes is made of -----------------------------------------------------

// Forward, loss and backward of every micro-batch; all tensors on the GPU; every module's weights
// and gradients present; no optimizer.
Graph build_plain(const Model& model, const Plan& plan);
Graph build_plain(const Model& model, const Plan& plan, const StackFacts& facts);

// Which ends of the model a run of consecutive layers has: the embedding, the head and loss.
struct ChunkEnds {
  bool first = true;
  bool last = true;
};
// The same for such a run, without buckets. `rank`: a model with so many layers. What another
// stage sends arrives by an operation that costs nothing.
Graph build_chunk(const Model& rank, const Plan& plan, const StackFacts& facts, ChunkEnds ends);

// pipeline.cpp: all stages of a pipeline, each a device of the graph, in blocks (Graph::blocks),
// which are linked already.
Graph build_pipeline(const Model& model, const Plan& plan, const StackFacts& facts);

// gemm_formats.cpp: says of every product in what format it multiplies (Plan::products). Before any
// other pass, so that what they copy or cut is right.
void choose_product_formats(Graph& graph, const Plan& plan, const StackFacts& facts);
// gemm_formats.cpp: which products make codes of weights and which take them
// (WeightsPlan::keep_codes). After every pass that copies products.
Graph weight_codes_pass(Graph graph);
// gemm_formats.cpp: gives every 8-bit product a tensor for its operands' codes (Role::kCodes).
// After every other pass, so that each operation has its own, for as long as it runs.
Graph products_pass(Graph graph);
// Where the codes of an operation's factors begin in it: m x k first, unless they are those of a
// gradient that two products share, then k x n, unless they are those of a weight that many do.
struct CodesLayout {
  Bytes second;
  Bytes whole;
};
CodesLayout codes_layout(const GemmWork& work);
// Codes that several products share, of a gradient or a weight (Role::kGradientCodes,
// kWeightCodes): as stored, then turned over, then the scale of each of the matrices that an
// operation may multiply it with, 256 bytes apart.
struct SharedCodesLayout {
  Bytes turned;
  Bytes scales;
  Bytes whole;
};
inline constexpr int64_t kSharedScales = 4;
inline constexpr int64_t kCodesAlignment = 256;  // bytes, of codes and scales
SharedCodesLayout gradient_codes_layout(const GemmWork& work);
SharedCodesLayout weight_codes_layout(const GemmWork& work);

// tensor.cpp: collectives of tensor parallelism around the products (Plan::tensor).
Graph tensor_pass(Graph graph, const Model& model, const Plan& plan, const StackFacts& facts);

// sequence.cpp: all-to-alls around attention (Plan::sequence), or keys and values passed around a
// ring beside it (Plan::context).
Graph sequence_pass(Graph graph, const Plan& plan, const StackFacts& facts = {});

// gather.cpp: weights that are split over ranks, gathered before each use, and gradients that are
// scattered after (ZeRO stage 3). Needs every weight's uses, so it runs after checkpoint.
Graph gather_pass(Graph graph, const Plan& plan, const StackFacts& facts);

// checkpoint.cpp: recompute and offload of activations (Plan::activations).
Graph checkpoint_pass(Graph graph, const Plan& plan, const StackFacts& facts);

// routing.cpp: exchanges of tokens and experts beside computation, where a framework runs them so.
// Of what is computed again too, so it runs after checkpoint.
Graph expert_overlap_pass(Graph graph);

// reload.cpp: when what was offloaded comes back (ActivationPlan::reload), and how many copies out
// are under way. On the whole program of a device, where a pipeline's chunks stand in their order.
Graph reload_pass(Graph graph, const Plan& plan);

// residency.cpp: weights that flow in before each use and are dropped after (Plan::weights).
// Their home is the host copy that the optimizer pass keeps up to date.
Graph residency_pass(Graph graph, const Plan& plan);

// optimizer.cpp: buckets, packing, copies, casts, norms, steps, and the three kinds of sync.
Graph optimizer_pass(Graph graph, const Plan& plan);
Graph optimizer_pass(Graph graph, const Plan& plan, const StackFacts& facts);

// accumulate.cpp: gradients of micro-batches that the CPU steps add up in its memory, and not on
// the GPU (StackFacts::accumulates_on_cpu).
Graph accumulate_pass(Graph graph, const Plan& plan, const StackFacts& facts);

// shard.cpp: reduce-scatter and all-gather of buckets over Plan::data ranks (ZeRO).
Graph shard_pass(Graph graph, const Plan& plan, const StackFacts& facts);

// direct_access.cpp: kernels that read and write CPU memory, instead of copies of weights and
// gradients (OptimizerPlan::transfers).
Graph direct_access_pass(Graph graph);

// host_copies.cpp: what a framework falls short of pinned copies by bucket beside the computation:
// pageable memory, calls tensor by tensor, a host that waits, weights that return all at once.
Graph host_copies_pass(Graph graph, const Plan& plan, const StackFacts& facts);

// Every invariant of a graph; a violation is a bug and fails CHECK. run_passes() asks it.
void verify(const Graph& graph);

// link.cpp: derives lives and places tensors in the arenas. What memory a graph takes is known
// then.
void place(Graph& graph);
// Places what is not placed, and derives the edges, those that memory reuse asks for included.
void link(Graph& graph);
// The same of a step that is run once, from a standing start: it has the edges of any step but
// those that reach back into the one before.
void link_once(Graph& graph);

}  // namespace ballast
