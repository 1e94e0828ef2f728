#include <algorithm>

#include "sim/graph/core/module_index.h"
#include "sim/graph/schedules/stage_program.h"

namespace ballast {
namespace {

// nanotron (src/nanotron/models/base.py, build_model): blocks are given to a stage until their
// weights pass its part of the sum; the head's matrix is one of them.
std::vector<int64_t> cut_by_weights(const Model& model, int64_t chunks) {
  double layer = 0;
  double head = 0;
  for (const Module& module : modules_of(model)) {
    if (module.layer == 0) layer += static_cast<double>(module.count);
    if (module.kind == ModuleKind::kHead) head += static_cast<double>(model.vocab * model.hidden);
  }
  const auto layers = static_cast<double>(model.layers);
  std::vector<int64_t> cuts = {0};
  for (int64_t chunk = 1; chunk < chunks; ++chunk) {
    const double before =
        (layers * layer + head) * static_cast<double>(chunk) / static_cast<double>(chunks) / layer;
    // Every stage has a layer.
    cuts.push_back(std::clamp<int64_t>(static_cast<int64_t>(before) + 1, chunk,
                                       model.layers - (chunks - chunk)));
  }
  cuts.push_back(model.layers);
  return cuts;
}

std::vector<int64_t> cuts_of(const Model& model, const Plan& plan, const StackFacts& facts) {
  const int64_t chunks = plan.pipeline * plan.virtual_pipeline;
  // By weights every stage has a layer.
  const bool by_weights = facts.balances_stages && plan.virtual_pipeline == 1;
  if (by_weights && chunks <= model.layers) return cut_by_weights(model, chunks);
  std::vector<int64_t> cuts;
  for (int64_t c = 0; c <= chunks; ++c) cuts.push_back(first_layer_of(c, chunks, model.layers));
  return cuts;
}

}  // namespace

PipelineContext::PipelineContext(const Model& whole, const Plan& asked, const StackFacts& known)
    : model(whole),
      plan(asked),
      facts(known),
      parts(subsequences_of(asked, whole)),
      first_layers(cuts_of(whole, asked, known)),
      modules(modules_held(rank_model(whole, asked), asked)),
      module_index(modules) {}

Label PipelineContext::place_of_chunk(int64_t chunk) const {
  Label place;
  if (first_layer(chunk) < first_layer(chunk + 1)) {
    place.layer = static_cast<int16_t>(first_layer(chunk));
  } else if (chunk > 0) {
    place.module = ModuleKind::kHead;
  }
  return place;
}

int64_t PipelineContext::chunk_of(const Label& place) const {
  if (place.layer < 0) return place.module == ModuleKind::kEmbedding ? 0 : chunks() - 1;
  return std::upper_bound(first_layers.begin(), first_layers.end(), place.layer) -
         first_layers.begin() - 1;
}

const Module& PipelineContext::whole_module(const Module& module) const {
  return modules[static_cast<size_t>(module_index.of(module.layer, module.kind))];
}

}  // namespace ballast
