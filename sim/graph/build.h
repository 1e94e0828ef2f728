// Turns a model and a plan into the graph of one training step.
//
//   build = plain forward and backward  ->  passes, each in its own file  ->  link
//
// Will not do: choose a knob (autotune does; every "auto" must be filled in), or cost anything.
#pragma once

#include "sim/graph/graph.h"

namespace ballast {

// Requires check(plan, model) to pass and every auto knob to have a value.
Graph build(const Model& model, const Plan& plan);

// --- the stages of build, in their order, public for tests -----------------------------------

// Forward, loss and backward of every micro-batch; all tensors on the GPU; every module's weights
// and gradients present; no optimizer.
Graph build_plain(const Model& model, const Plan& plan);

// checkpoint.cpp: recompute and offload of activations (Plan::activations).
Graph checkpoint_pass(Graph graph, const Plan& plan);

// residency.cpp: weights that flow in before each use and are dropped after (Plan::weights).
// Their home is the host copy that the optimizer pass keeps up to date.
Graph residency_pass(Graph graph, const Plan& plan);

// optimizer.cpp: buckets, packing, copies, casts, norms, steps, and the three kinds of sync.
Graph optimizer_pass(Graph graph, const Plan& plan);

// shard.cpp: reduce-scatter and all-gather of buckets over Plan::data ranks (ZeRO).
Graph shard_pass(Graph graph, const Plan& plan);

// Every invariant of a graph; a violation is a bug and fails CHECK. Run after each pass.
void verify(const Graph& graph);

// link.cpp: derives lives, places tensors in the arenas, and derives the edges, those that memory
// reuse asks for included.
void link(Graph& graph);

}  // namespace ballast
