#include "profiles/frameworks/megatron_chunks.h"

#include <fmt/format.h>

#include "sim/base/error.h"

namespace ballast {
namespace {

const std::string kEmbeddingCounts = "--account-for-embedding-in-pipeline-split";
const std::string kLossCounts = "--account-for-loss-in-pipeline-split";
const std::string kLayersOfChunk = "--num-layers-per-virtual-pipeline-stage";

// What embedding and loss count for where layers are split: both as one, or neither.
int64_t read_ends(OptionReader& reader) {
  const bool embedding = reader.flag(kEmbeddingCounts), loss = reader.flag(kLossCounts);
  if (embedding != loss) {
    reader.fail(embedding ? kEmbeddingCounts : kLossCounts, "stands alone", "give both, or none");
  }
  return embedding ? 2 : 0;
}

}  // namespace

void write_megatron_chunks(OrderedJson& out, const Plan& plan, const Model& model) {
  const int64_t chunks = plan.pipeline * plan.virtual_pipeline;
  const bool ends_count = ends_count_as_layers(chunks, model.layers);
  if (ends_count) out[kEmbeddingCounts] = out[kLossCounts] = true;
  if (plan.virtual_pipeline > 1) {
    out[kLayersOfChunk] = (model.layers + (ends_count ? 2 : 0)) / chunks;
  }
}

void read_megatron_chunks(OptionReader& reader, Plan& plan, const Model& model) {
  const std::string& by_layers = kLayersOfChunk;
  const std::string by_chunks = "--num-virtual-stages-per-pipeline-rank";
  const auto layers = reader.whole_if_present(by_layers, kOptionCount);
  const auto chunks = reader.whole_if_present(by_chunks, kOptionCount);
  if (layers && chunks) reader.fail(by_layers, by_chunks + " is given too", "give one of them");
  plan.virtual_pipeline = chunks.value_or(1);
  const int64_t counted = model.layers + read_ends(reader);
  if (layers) {
    // Both factors are at most 2^20.
    if (counted % (plan.pipeline * *layers) != 0) {
      reader.fail(by_layers,
                  fmt::format("{} layers do not divide into {} stages of chunks of {}", counted,
                              plan.pipeline, *layers),
                  "correct one of them");
    }
    plan.virtual_pipeline = counted / (plan.pipeline * *layers);
  }
  const int64_t cut = plan.pipeline * plan.virtual_pipeline;
  if ((counted > model.layers) != ends_count_as_layers(cut, model.layers) && cut > 2) {
    reader.fail(kEmbeddingCounts, fmt::format("{} layers in {} chunks", model.layers, cut),
                "count embedding and loss where layers divide with them alone");
  }
  if (plan.virtual_pipeline > 1 && plan.pipeline == 1) {
    reader.fail(layers ? by_layers : by_chunks, "there is one pipeline stage",
                "set --pipeline-model-parallel-size");
  }
}

}  // namespace ballast
