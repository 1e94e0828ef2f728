// All stages of a pipeline as one graph: device s is stage s, for all the ranks that share its
// layers. Every stage has a program of its own, on which the passes of the table run as on a graph
// without a pipeline; then the programs are brought together.
#include "sim/graph/schedules/pipeline.h"

#include <algorithm>
#include <list>
#include <map>
#include <optional>

#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"
#include "sim/graph/passes/passes.h"
#include "sim/graph/schedules/merge_stages.h"
#include "sim/graph/schedules/multiplex.h"

namespace ballast {
namespace {

// Operations of all turns of a micro-batch, were they spread.
int64_t operations_of(const PipelineContext& context) {
  int64_t operations = 0;
  for (const ChunkKind* kind : context.kind_of_chunk) {
    operations += static_cast<int64_t>(kind->inside.step.ops.size());
  }
  return operations;
}

// Eight modules go forward; back, four of them are two products each.
constexpr int64_t kLeastOperationsOfALayer = 20;

// Of all turns of a micro-batch.
int64_t least_operations(const Model& model, const Plan& plan) {
  return kLeastOperationsOfALayer * model.layers * plan.subsequences;
}

// Of `plan`, of which the context may have fewer micro-batches.
Turns turns_for(const PipelineContext& context, const Plan& plan, Folding folding) {
  // What all stages do together is timed as a whole.
  if (folding == Folding::kOn || plan.multiplex) return Turns::kFolded;
  if (folding == Folding::kOff) return Turns::kSpread;
  const bool asks = folding == Folding::kIfLarge || overlaps_inside(plan);
  if (!asks) return Turns::kFolded;
  const int64_t operations = operations_of(context);
  CHECK(operations >= least_operations(context.model, plan));
  return operations * plan.accumulation() <= kMostSpreadOperations ? Turns::kSpread
                                                                   : Turns::kFolded;
}
Turns turns_for(const PipelineContext& context, Folding folding) {
  return turns_for(context, context.plan, folding);
}

// Later stages hold less, and may offload less (ActivationPlan::offload_share_fall).
Plan plan_on(int64_t stage, Plan plan) {
  ActivationPlan& activations = *plan.activations;
  const double less = static_cast<double>(stage) * activations.offload_share_fall;
  activations.offload_share = std::max(0.0, activations.offload_share - less);
  return plan;
}

// Of chunks alike the inside is made once.
class Chunks {
 public:
  Chunks(const Model& model, const Plan& plan, const StackFacts& facts)
      : context_(model, plan, facts) {
    for (int64_t c = 0; c < context_.chunks(); ++c) {
      const ChunkLayers layers{context_.first_layer(c),
                               context_.first_layer(c + 1),
                               {c == 0, c + 1 == context_.chunks()}};
      const Plan on_stage = plan_on(c % plan.pipeline, plan);
      auto found = std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& kind) {
        return kind.activations == on_stage.activations && are_alike(model, kind.layers, layers);
      });
      if (found == kinds_.end()) {
        ChunkKind kind = make_chunk(model, on_stage, facts, layers);
        found = kinds_.insert(kinds_.end(), {layers, on_stage.activations, std::move(kind)});
      }
      context_.kind_of_chunk.push_back(&found->kind);
    }
    if (plan.multiplex) share_ends(facts);
  }

  void fold() {
    std::map<const ChunkKind*, int32_t> blocks;
    const auto fold_all = [&](std::list<Kind>& kinds, const Plan& plan) {
      for (Kind& one : kinds) {
        Plan on_stage = plan;
        on_stage.activations = one.activations;
        fold_turns(one.kind, context_.model, on_stage, context_.facts);
        blocks[&one.kind] = static_cast<int32_t>(blocks_.size());
        for (ChunkTurn& turn : one.kind.turns) blocks_.push_back(std::move(turn.ops));
      }
    };
    fold_all(kinds_, context_.plan);
    fold_all(shared_, spread_over_stages(context_.plan));
    for (const ChunkKind* kind : context_.kind_of_chunk) {
      context_.block_of_chunk.push_back(blocks.at(kind));
    }
    for (const ChunkKind* kind : context_.shared_kinds) {
      context_.shared_blocks.push_back(blocks.at(kind));
    }
  }

  const PipelineContext& context() const { return context_; }
  std::vector<Program> take_blocks() { return std::move(blocks_); }

 private:
  struct Kind {
    ChunkLayers layers;  // of the first chunk of this kind
    std::optional<ActivationPlan> activations;
    ChunkKind kind;
  };

  // Layer by layer, and in the ends of the model: one with experts is not like one without.
  static bool are_alike(const Model& model, const ChunkLayers& one, const ChunkLayers& other) {
    if (one.last - one.first != other.last - other.first) return false;
    if (one.ends.first != other.ends.first || one.ends.last != other.ends.last) return false;
    for (int64_t i = 0; i < one.last - one.first; ++i) {
      if (!model.are_alike(one.first + i, other.first + i)) return false;
    }
    return true;
  }

  // Every stage gives other parts away, so that none is like another: of each what it keeps, and
  // what all do of it.
  void share_ends(const StackFacts& facts) {
    const Plan& plan = context_.plan;
    const Plan spread = spread_over_stages(plan);
    std::list<Kind> alike;
    alike.swap(kinds_);
    std::map<const ChunkKind*, ChunkKind> spread_kinds;
    for (int64_t s = 0; s < plan.pipeline; ++s) {
      const ChunkKind*& whole = context_.kind_of_chunk[static_cast<size_t>(s)];
      const auto kind = std::find_if(alike.begin(), alike.end(),
                                     [&](const Kind& one) { return &one.kind == whole; });
      auto found = spread_kinds.find(whole);
      if (found == spread_kinds.end()) {
        Plan on_stage = spread;
        on_stage.activations = kind->activations;
        ChunkKind made = make_chunk(context_.model, on_stage, facts, kind->layers);
        found = spread_kinds.emplace(whole, std::move(made)).first;
      }
      const SharedParts parts = shared_parts(plan, s);
      shared_.push_back(
          {kind->layers, kind->activations, shared_chunk(found->second, plan, parts)});
      context_.shared_kinds.push_back(&shared_.back().kind);
      kinds_.push_back(*kind);
      leave_to_all_stages(kinds_.back().kind, plan, parts);
      whole = &kinds_.back().kind;
    }
  }

  PipelineContext context_;
  std::list<Kind> kinds_;   // which stay where they are
  std::list<Kind> shared_;  // of Plan::multiplex, by stage; likewise
  std::vector<Program> blocks_;
};

}  // namespace

bool is_surely_folded(const Model& model, const Plan& plan) {
  return plan.pipeline > 1 &&
         least_operations(model, plan) * plan.accumulation() > kMostSpreadOperations;
}

bool overlaps_inside(const Plan& plan) {
  const auto& fate = plan.activations->fate;
  return std::find(fate.begin(), fate.end(), ActivationFate::kOffload) != fate.end() ||
         plan.weights.flow_share.value_or(1) > 0 || plan.optimizer.sync != SyncMode::kWait;
}

Graph build_pipeline(const Model& model, const Plan& plan, const StackFacts& facts) {
  return build_pipeline(model, plan, facts, Folding::kAuto);
}

namespace {

// Norms of a stage whose gradients are complete, and the copies of what they find, wait until no
// other stage waits for its turns.
void norms_after_shared_turns(Graph& stage) {
  const auto shared = [](const Op& op) { return is_shared(op); };
  const auto is_of_norm = [&](const Op& op) {
    return op.phase == Phase::kOptimizer &&
           std::any_of(op.accesses.begin(), op.accesses.end(), [&](const Access& access) {
             return stage.tensor(access.tensor).kind == TensorKind::kNormPartials;
           });
  };
  std::vector<Op>& ops = stage.step.ops;
  const auto end = std::find_if(ops.rbegin(), ops.rend(), shared).base();
  std::stable_partition(ops.begin(), end, [&](const Op& op) { return !is_of_norm(op); });
}

Graph build_from(Chunks& chunks, Turns turns) {
  if (turns == Turns::kFolded) chunks.fold();
  const PipelineContext& context = chunks.context();
  const Plan& plan = context.plan;
  const PassContext passes{context.model, plan, context.facts};
  std::vector<Graph> stages;
  for (int64_t s = 0; s < plan.pipeline; ++s) {
    stages.push_back(run_passes(stage_program(s, context, turns), passes, "reload", "host copies"));
    if (plan.multiplex) norms_after_shared_turns(stages.back());
  }
  Graph graph = merge_stages(std::move(stages), context);
  if (turns == Turns::kFolded) {
    graph.blocks = chunks.take_blocks();
  } else {
    graph = run_passes(std::move(graph), passes, "gemm codes", "gemm codes");
  }
  verify(graph);
  return graph;
}

}  // namespace

Graph build_pipeline(const Model& model, const Plan& plan, const StackFacts& facts,
                     Folding folding) {
  Chunks chunks(model, plan, facts);
  return build_from(chunks, turns_for(chunks.context(), folding));
}

bool is_spread(const Model& model, const Plan& plan, const StackFacts& facts) {
  const Chunks chunks(model, plan, facts);
  return turns_for(chunks.context(), Folding::kAuto) == Turns::kSpread;
}

namespace {

Plan with_micro_batches(Plan plan, int64_t count) {
  plan.global_batch = plan.data * *plan.micro_batch * count;
  return plan;
}

}  // namespace

FoldedPipeline build_folded(const Model& model, const Plan& plan, const StackFacts& facts,
                            int64_t micro_batches) {
  const Plan fewer = with_micro_batches(plan, micro_batches);
  Chunks chunks(model, fewer, facts);  // of one micro-batch, whatever their number
  FoldedPipeline folded;
  folded.even_so_short = turns_for(chunks.context(), Folding::kAuto) == Turns::kFolded;
  folded.graph = build_from(chunks, Turns::kFolded);
  return folded;
}

Graph build_pipeline_to_ask(const Model& model, const Plan& plan, const StackFacts& facts,
                            int64_t micro_batches) {
  const Plan fewer = with_micro_batches(plan, micro_batches);
  Chunks chunks(model, fewer, facts);
  return build_from(chunks, turns_for(chunks.context(), plan, Folding::kIfLarge));
}

}  // namespace ballast
