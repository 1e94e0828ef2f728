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
  kLayerStates,       // GiB, of the layers of one GPU: weights, gradients and optimizer
  kLayerActivations,  // GiB, of the layers of one GPU
  kFits,              // 1 or 0
};
inline constexpr int kMetrics = 10;
std::string_view metric_name(Metric metric);  // "step_time_s", ...
// Follows from the step time; else from memory.
bool is_time(Metric metric);

struct Measured {
  Metric metric{};
  double value = 0;
};

// What is recomputed in the backward, in the words of the sources. kSelective: the scores of eager
// attention (arXiv 2205.05198). kFull: everything but the input of each layer. kFfnAndNorms: both
// norms, the first product of the feed-forward and its activation.
enum class Recompute : uint8_t { kNone, kSelective, kFull, kFfnAndNorms };
ActivationPlan activations_of(Recompute recompute);

struct PublishedCase {
  std::string id;
  std::string machine;  // name of a machine
  std::string stack;    // name of a stack
  Model model;          // with as many positions as the run's sequences have tokens
  std::optional<AttentionKind> attention;  // where the case overrides its stack
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
  bool tflops_count_recompute = false;
  std::vector<Measured> measured;  // in the order of Metric
  std::string read;                // text, figure or derived: how it was taken from the source
  std::string note;
};

// A case that was read, or why it could not be: one bad case must not hide the others of its file.
struct PublishedEntry {
  std::string id;
  std::optional<PublishedCase> of;
  std::string error;  // empty where `of` is there
};

struct PublishedFile {
  std::string path;
  std::string title;
  std::string source;
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
