#include "profiles/names/clusters.h"

#include <string_view>

namespace ballast {
namespace {

struct Cluster {
  std::string_view named;   // by cases
  std::string_view source;  // a word of it
  std::string_view machine;
};

constexpr Cluster kClusters[] = {
    // huggingface/nanotron@2411b022: examples/train_tiny_llama.sh exports FI_PROVIDER="efa",
    // src/nanotron/trainer.py line 387 reads what the nodes count of EFA, and
    // scripts/scaling_benchmarks.py runs in the same partition, hopper-prod.
    {"dgx-h100-80gb", "nanotron", "hgx-h100-80gb-efa"},
    // deepspeedai/DeepSpeed, docs/_tutorials/ulysses-offload.md, "Training Environment": a node has
    // four A100 SXM4, so that eight are two nodes.
    {"hgx-a100-80gb", "FPDT", "hgx-a100-80gb-quad"},
};

}  // namespace

std::string cluster_of(const std::string& named, const std::string& source) {
  for (const Cluster& cluster : kClusters) {
    if (cluster.named == named && source.find(cluster.source) != std::string::npos) {
      return std::string(cluster.machine);
    }
  }
  return named;
}

}  // namespace ballast
