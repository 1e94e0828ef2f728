// The passes that turn a plan into the graph of a step: one table, in the order in which they run.
//
// Will not do: say what a pass does to a graph (its own file does), or order a pipeline's chunks
// (sim/graph/schedules).
#pragma once

#include <span>
#include <string_view>

#include "sim/graph/core/graph.h"

namespace ballast {

// What a pass is told beside the graph. References must outlive the run.
struct PassContext {
  const Model& model;
  const Plan& plan;
  const StackFacts& facts;
};

struct Pass {
  std::string_view name;  // no two are the same
  std::string_view file;  // under sim/graph, where it is written
  std::string_view does;  // one line
  // False where nothing of the plan or the framework asks for it; then it is not run.
  bool (*applies)(const PassContext& context);
  Graph (*run)(Graph graph, const PassContext& context);
};

// All of them; the first makes the plain graph from an empty one, the last links it.
std::span<const Pass> passes();

// Index of a pass by its name, which must be one of the table's.
size_t pass_at(std::string_view name);

// Of some programs only a part is of interest, and operations or accesses are taken out of them:
// their invariants do not hold.
enum class ProgramExtent : uint8_t { kWhole, kCutDown };

// Operations of a program that is verified after every pass.
inline constexpr size_t kMostVerifiedByPass = 2000;

// Runs the passes from `first` to `last`, both included and both by name, as far as they apply,
// and verifies a whole program: after each of them, or once where it is so large that this would
// take as long as the passes.
Graph run_passes(Graph graph, const PassContext& context, std::string_view first,
                 std::string_view last, ProgramExtent extent = ProgramExtent::kWhole);

}  // namespace ballast
