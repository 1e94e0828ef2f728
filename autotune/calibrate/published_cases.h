// Published cases, predicted: which way of running one its source leaves open, what that completion
// gives, and the prediction in the quantities that were published.
//
// Conventions of the published quantities:
//   tflops_per_device  full-square attention whatever the kernel skips. With recompute: 96 B S L
//   h^2
//                      (1 + S/6h + V/16Lh) FLOPs a step, Narayanan et al. (SC21, arXiv 2104.04473),
//                      eq. 3; without: 72 B S L h^2 (1 + S/6h + V/12Lh). For other shapes than
//                      GPT's both are the same count made by parameter: 6 FLOPs a token for every
//                      parameter of a matrix (8 with recompute, except for the logits, which are
//                      not recomputed) and 12 L h S for attention (16 with recompute).
//                      A source that counts otherwise says so (mfu_formula), or its own figures
//                      do: of the forms that its words leave open that one is taken which agrees
//                      best with the time that it gives beside.
//   mfu_percent        the count without recompute, over the vendor's dense 16-bit peak, or the
//                      peak that the formula names.
//   hfu_percent        the count with recompute, over the same.
//   tokens, time       of a mean step: step time + rollback_rate * rollback time.
//   peak_memory_gb     Prediction::gpu_peak: tensors and the stack's slack, in 1e9 bytes. Of a
//                      framework whose logs print tensors alone, or 2^30 bytes as a GB
//                      (StackFacts::prints_allocated, prints_gib), that; and no less than the whole
//                      model where loading it is in the peak (loads_whole_model).
//   states_gib, activations_gib   those of the layers (sim/engine/layer_memory.h), in 2^30 bytes.
// Will not do: read files of cases (profiles/published.h), or fit constants
// (autotune/calibrate/calibrate.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "profiles/published.h"
#include "sim/engine/predict.h"
#include "sim/spec/machine.h"
#include "sim/spec/stack.h"

namespace ballast {

// A case and what it names.
struct CaseSetup {
  PublishedCase published;
  Machine machine;
  Stack stack;                             // with the facts that this run alone has
  std::optional<StackFacts> profile = {};  // those of its file, where they may be other ones
  // How the peaks of its source were printed, whichever stack it is predicted as
  // (StackFacts::prints_allocated, prints_gib, loads_whole_model).
  bool prints_allocated = false, prints_gib = false, loads_whole_model = false;
};
// Loads the machine and the stack that a case names, and settles what they decide of its plan.
// Throws Error where one is not shipped.
CaseSetup set_up(const PublishedCase& published);
// The same with a stack that is none of the shipped.
CaseSetup set_up(const PublishedCase& published, Stack stack);
// The same case as run by another framework: what the source says of the run stays.
CaseSetup as_run_by(CaseSetup setup, Stack stack);

// One way to run a case: every knob has a value.
struct Completion {
  Plan plan;
  AttentionKind attention{};
  bool operator==(const Completion&) const = default;
};

// Every legal completion, in groups of one kind of attention (in the order of preference of the
// stack) and of plans that differ in micro_batch alone, smallest first: where one of a group does
// not fit, no later one does. What was published is in all of them. Open knobs take these values:
//   micro_batch        powers of two up to 64 that divide a rank's sequences, and all of those
//   recompute          none, selective (where attention is eager), full
//   virtual_pipeline   divisors of a stage's layers up to 6, or else the next one
//   tensor_sequence    true where there are tensor-parallel ranks
//   zero_stage         what the stack allows, where several ranks hold the same weights
//   gpu_buckets        none, 1/16, 1/8, 1/4, 1/2 and all of the buckets
//   flow_share         0 or 1
//   optimizer state    on the GPU, or (where the stack may) in CPU memory and stepped by the GPU
// Throws Error, which is the first one's refusal, where no completion is legal.
std::vector<std::vector<Completion>> completions_of(const CaseSetup& setup);
// The same of a published case: what is refused is its run.
std::vector<std::vector<Completion>> completions_of_case(const CaseSetup& setup);

// How many buckets a rank has, all of which the GPU may step: of its part of matrices and experts,
// under ZeRO-3 of its share of every module; of a pipeline's stage an even part of the layers'.
// `zero_stage`: of the plan. 1 where the plan is not legal.
int64_t most_gpu_buckets(const CaseSetup& setup, int64_t zero_stage);
// Of so many, those that a completion may name: where weights flow not all, for then none would.
inline int64_t most_beside(double flow_share, int64_t all) {
  return flow_share > 0 ? all - 1 : all;
}

struct MetricPrediction {
  Metric metric{};
  double published = 0;
  std::optional<double> predicted;  // absent where nothing fits, or the graph does not know it

  // 100 (predicted / published - 1). Requires predicted and a metric other than kFits.
  double error_percent() const { return 100 * (*predicted / published - 1); }
  // Whether a predicted kFits is what was published.
  bool right() const { return *predicted == published; }
};

struct CasePrediction {
  bool fits = false;
  std::string reason;     // why the completion that comes nearest does not fit; else empty
  Completion completion;  // the fastest that fits, or the one that needs least GPU memory
  int64_t considered = 0;
  Duration step_time;            // with rollbacks; zero where nothing fits
  std::vector<PlacePeak> peaks;  // of that completion
  std::vector<MetricPrediction> metrics;
};

// The fastest legal completion that fits, with these constants in place of those of setup.stack.
// Where none fits and a time was published, that of the one which needs least, were there memory.
// Throws Error where no completion is legal or the graph refuses them all.
CasePrediction predict_case(const CaseSetup& setup, const StackConstants& constants);

// One completion whose graph is built: the constants of a stack do not shape it, so it serves many.
// Of a long step it is not: shorter ones are simulated in its place (sim/engine/repetition.h).
class BuiltCompletion {
 public:
  // `setup` must outlive this object. It throws Error where the graph refuses the plan, of a long
  // step predict() does.
  BuiltCompletion(const CaseSetup& setup, Completion completion);

  // kMemory: times are not asked for, and are there for a long step alone. kUnlimited: on a machine
  // whose memories hold anything, so there always are.
  enum class Ask : uint8_t { kMemory, kAll, kUnlimited };
  CasePrediction predict(const StackConstants& constants, Ask ask);
  // Bytes of GPU memory that the last prediction asked for.
  Bytes gpu_peak() const { return gpu_peak_; }

 private:
  Prediction predict_on(const Machine& machine, const Stack& stack, Ask ask);

  const CaseSetup& setup_;
  Completion completion_;
  std::optional<Graph> graph_;  // absent of a long step
  Bytes gpu_peak_;
};

// Model FLOPs of one step by the convention above, over all devices.
enum class CountRecompute : uint8_t { kNo, kYes };
Flops published_flops(const Model& model, const Plan& plan, CountRecompute recompute,
                      const FlopsConvention& convention = {});

// One of kTflopsPerDevice, kMfu and kHfu, where so many steps are made in a second.
double flops_metric(Metric metric, const CaseSetup& setup, const FlopsConvention& convention,
                    double steps_per_s);

// The convention by which a case counts (see above): the only one that its words allow, or that
// which agrees best with the time that it gives, or else the likeliest.
FlopsConvention settled_convention(const CaseSetup& setup);

// Dense 16-bit peak of one device in its data sheet, which published utilisations refer to (the
// machine's own rates are achieved ones). Throws Error for a machine whose file has none
// (gpu.nominal_matmul_tflops).
FlopRate nominal_peak(const Machine& machine);

}  // namespace ballast
