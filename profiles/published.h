// Published cases: measurements of others, as files of schema "ballast.published/1".
//
// A case says on which machine, with which framework, which model was trained how, and what was
// measured. What was published becomes a plan; what was not stays open, to be chosen
// (autotune/calibrate/published_cases.h).
// Will not do: load the machine or the stack, fill in what is open, or predict.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/spec/knobs.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"
#include "sim/spec/stack.h"

namespace ballast {

// What can be published of a run; in files by the names of metric_name().
enum class Metric : uint8_t {
  kStepTime,          // s
  kTokensPerS,        // of all devices
  kTokensPerDevice,   // tokens per second and device
  kTflopsPerDevice,   // by the formula of the source (PublishedCase::tflops_count_recompute)
  kMfu,               // percent of the vendor's peak, without recompute
  kHfu,               // the same with recompute
  kPeakMemory,        // GB (1e9), most of any GPU
  kMemoryShare,       // the same in percent of the GPU's memory
  kLayerStates,       // GiB, of the layers of one GPU: weights, gradients and optimizer
  kLayerActivations,  // GiB, of the layers of one GPU
  kFits,              // 1 or 0
};
inline constexpr int kMetrics = 11;
std::string_view metric_name(Metric metric);  // "step_time_s", ...
// Follows from the step time; else from memory.
bool is_time(Metric metric);
// Of those that follow from it: all but the step time itself, which alone grows as speed falls.
bool is_rate(Metric metric);

struct Measured {
  Metric metric{};
  double value = 0;
};

// What is recomputed in the backward, in the words of the sources. kSelective: the scores of eager
// attention (arXiv 2205.05198). kFull: everything but the input of each layer. kFfnAndNorms: both
// norms, the first product of the feed-forward and its activation. kNormsAndActivation: the same
// without the product. kEveryOtherProduct: norms, activation and every second product in the order
// of the layer (torchtitan's selective_ac_option "op"), where gate and up of a gated `activation`
// are two.
enum class Recompute : uint8_t {
  kNone,
  kSelective,
  kFull,
  kFfnAndNorms,
  kNormsAndActivation,
  kEveryOtherProduct
};
ActivationPlan activations_of(Recompute recompute,
                              ActivationKind activation = ActivationKind::kGeluTanh);

// What a source counts as a FLOP of the model, beside the products of its layers.
struct FlopsConvention {
  bool attention = true;        // scores and values
  bool half_attention = false;  // of them only what lies below the diagonal
  bool logits = true;
  double peak_tflops = 0;  // that a utilisation refers to; 0: the data sheet's
  bool operator==(const FlopsConvention&) const = default;
};
// Those that a source may mean by these words, likeliest first; what the words leave open stands
// there in every form. Of no words the whole square of attention comes before half of it.
std::vector<FlopsConvention> conventions_of(const std::string& formula);

// What a run's framework does other than its stack says (sim/spec/stack.h, StackFacts).
struct CaseFacts {
  std::optional<LossPrecision> loss;
  std::optional<int64_t> loss_bytes;
  std::optional<int64_t> loss_chunks;
  std::optional<GradientPrecision> gradients;
  std::optional<GradientPrecision> reduction;
  std::optional<Overlap> tensor_overlap;
  std::optional<Overlap> expert_overlap;
  std::optional<bool> sends_tokens_once;
  std::optional<bool> keeps_experts_whole;
  std::optional<Scaling8> fp8_scaling;
};

struct PublishedCase {
  std::string id;
  // Name of a machine: the case's, or what the file's source says of it
  // (profiles/names/clusters.h).
  std::string machine;
  // Name of a stack: that of the family that the case names (framework_of in profiles/load.h) which
  // the file's source is of.
  std::string stack;
  Model model;  // with as many positions as the run's sequences have tokens
  std::optional<AttentionKind> attention;           // where the case overrides its stack
  std::optional<AttentionKernel> attention_kernel;  // the same
  // What was published of the run, on top of the strategy. micro_batch, activations, gpu_buckets
  // and flow_share are "auto" where it was not.
  Plan plan;
  // Knobs that were not published and that a plan has no "auto" for: of virtual_pipeline,
  // tensor_sequence, zero_stage and optimizer.adam.
  KnobSet open;
  // The implementation of Adam that the strategy brings (Strategy::adam).
  std::string strategy_adam;
  std::optional<double> optimizer_share_on_cpu;  // decides gpu_buckets
  double rollback_rate = 0;                      // share of the steps that roll back
  CaseFacts facts;
  // What these mean the machine or the stack says (set_up in autotune/calibrate/published_cases.h):
  bool shards_by_node = false;  // state is shared by the ranks of a node, and replicated beyond
  bool offloads_state = false;  // optimizer state is in CPU memory; who steps it is not said
  bool state_may_be_anywhere = false;  // nothing was said of where optimizer state is
  // Documents share a sequence, and attention does not cross them. How long they are is not
  // published; sequence_length is taken for the longest that attention sees.
  bool packed = false;
  bool tflops_count_recompute = false;
  std::string mfu_formula;              // in the source's words; empty: not named
  std::optional<double> step_time_p10;  // s; spread over steps or runs
  std::optional<double> step_time_p90;
  std::vector<Measured> measured;  // in the order of Metric
  std::string read;  // how it was taken from the source: text, table, figure, log, csv, derived
  std::string note;
};

// A case that was read, or why it could not be: one bad case must not hide the others of its file.
struct PublishedEntry {
  std::string id;
  std::optional<PublishedCase> published;
  std::string error;  // empty where `of` is there
};

struct PublishedFile {
  std::string path;
  std::string title;
  std::string source;
  std::vector<std::string> notes;
  std::vector<PublishedEntry> entries;
};

// Throws Error where the file cannot be read, is of another schema, or has a key of its own that
// is unknown. A case with an unknown, missing or impossible key gives an entry whose error names
// file, case and key.
PublishedFile load_published(const std::string& path);
PublishedFile parse_published(std::string_view text, const std::string& file);

// Paths of the shipped files of published cases, sorted; files of other schemas are left out.
std::vector<std::string> shipped_published();

}  // namespace ballast
