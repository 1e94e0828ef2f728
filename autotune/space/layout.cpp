#include "autotune/space/layout.h"

#include <algorithm>
#include <fmt/format.h>
#include <numeric>
#include <span>

#include "sim/spec/keys_values.h"
#include "sim/spec/ranks/ring.h"

namespace ballast {
namespace {

// Divisors of `number` that `legal` admits, ascending; or the fixed value alone, if it is one.
template <class Legal>
std::vector<int64_t> degrees(int64_t number, int64_t fixed, bool free, const Legal& legal) {
  std::vector<int64_t> result;
  for (int64_t degree = 1; degree <= number; ++degree) {
    if (number % degree != 0 || (!free && degree != fixed)) continue;
    if (legal(degree)) result.push_back(degree);
  }
  return result;
}

// Fills one knob after the other, each from what those before it leave.
class Enumeration {
 public:
  Enumeration(const Model& model, const Plan& base, const KnobSet& open, const KnobSet& named)
      : model_(model), base_(base), open_(open), named_(named), plan_(base) {}

  std::vector<Plan> run() {
    for (const int64_t p : degrees(base_.devices, base_.pipeline, open_.has(KnobId::kPipeline),
                                   [&](int64_t d) { return fits_pipeline(d); })) {
      plan_.pipeline = p;
      for (const int64_t v : chunks_of(p)) {
        plan_.virtual_pipeline = v;
        for (const PipelineSchedule schedule : schedules_of(p, v)) {
          plan_.pipeline_schedule = schedule;
          with_tensor(base_.devices / p);
        }
      }
    }
    std::stable_sort(found_.begin(), found_.end(), [](const Plan& a, const Plan& b) {
      return ranks_that_talk(a) < ranks_that_talk(b);
    });
    return std::move(found_);
  }

 private:
  static int64_t ranks_that_talk(const Plan& plan) {
    return plan.tensor * plan.pipeline * plan.sequence * plan.context;
  }

  bool fits_pipeline(int64_t p) const {
    if (p > knob_of(KnobId::kPipeline).most) return false;
    const bool named = !open_.has(KnobId::kPipeline);
    if (p > model_.layers && !(named && ends_count_as_layers(p, model_.layers))) return false;
    return p == 1 || base_.optimizer.placement != OptimizerPlacement::kNvme;
  }

  std::vector<int64_t> chunks_of(int64_t p) const {
    const bool free = open_.has(KnobId::kVirtualPipeline);
    if (p == 1)
      return free || base_.virtual_pipeline == 1 ? std::vector<int64_t>{1} : std::vector<int64_t>{};
    std::vector<int64_t> chunks;
    const std::span<const int64_t> asked =
        free ? knob_of(KnobId::kVirtualPipeline).tried : std::span(&base_.virtual_pipeline, 1);
    for (const int64_t v : asked) {
      // Chunks of fewer layers at the ends, or of none, are made where they are asked for.
      const bool asked_for = !free && ends_count_as_layers(p * v, model_.layers);
      if (v == 1 || model_.layers % (p * v) == 0 || asked_for) chunks.push_back(v);
    }
    return chunks;
  }

  std::vector<PipelineSchedule> schedules_of(int64_t p, int64_t v) const {
    if (p == 1 || !open_.has(KnobId::kPipelineSchedule)) return {base_.pipeline_schedule};
    std::vector<PipelineSchedule> schedules;
    for (const int64_t schedule : knob_of(KnobId::kPipelineSchedule).tried) {
      const auto one = static_cast<PipelineSchedule>(schedule);
      // With several chunks eager 1F1B is interleaved.
      if (v == 1 || one != PipelineSchedule::kEager1F1B) schedules.push_back(one);
    }
    return schedules;
  }

  void with_tensor(int64_t left) {
    for (const int64_t t : degrees(left, base_.tensor, open_.has(KnobId::kTensor),
                                   [&](int64_t d) { return fits_tensor(d); })) {
      plan_.tensor = t;
      with_sequence(left / t);
    }
  }

  bool fits_tensor(int64_t t) const {
    if (model_.heads % t != 0 || model_.ffn % t != 0) return false;
    return model_.experts == 0 || model_.expert_ffn % t == 0;
  }

  void with_sequence(int64_t left) {
    const int64_t tensor = plan_.tensor;
    for (const int64_t s :
         degrees(left, base_.sequence, open_.has(KnobId::kSequence), [&](int64_t d) {
           return model_.heads % (d * tensor) == 0 && base_.sequence_length % d == 0;
         })) {
      plan_.sequence = s;
      for (const int64_t c :
           degrees(left / s, base_.context, open_.has(KnobId::kContext), [&](int64_t d) {
             return base_.sequence_length % (s * d) == 0 && fits_ring(d, 1);
           })) {
        plan_.context = c;
        with_data(left / s / c);
      }
    }
  }

  // Whether the pieces that a ring cuts each part into divide it, and its ranks may help where
  // that was asked for.
  bool fits_ring(int64_t context, int64_t parts) const {
    if (base_.context_balance == ContextBalance::kHelpers) {
      Plan ring = base_;
      ring.context = context;
      if (open_.has(KnobId::kSubsequences)) ring.subsequences = parts;
      if (refusal_of_ring(ring, model_)) return false;
    }
    const int64_t pieces = ring_piece_count(base_.context_balance, context);
    return base_.sequence_length % (pieces * parts) == 0;
  }

  void with_data(int64_t data) {
    if (base_.global_batch % data != 0) return;
    plan_.data = data;
    if (plan_.virtual_pipeline > 1 && base_.global_batch / data % plan_.pipeline != 0) return;
    for (const int64_t e : degrees(data, base_.expert, open_.has(KnobId::kExpert), [&](int64_t d) {
           return d == 1 || (model_.experts > 0 && model_.experts % d == 0);
         })) {
      plan_.expert = e;
      for (const bool split : norm_splits()) {
        plan_.tensor_sequence = split;
        with_state();
      }
    }
  }

  std::vector<bool> norm_splits() const {
    if (!open_.has(KnobId::kTensorSequence)) return {base_.tensor_sequence};
    return plan_.tensor > 1 ? std::vector<bool>{false, true} : std::vector<bool>{false};
  }

  void with_state() {
    std::vector<OptimizerPlacement> places = {base_.optimizer.placement};
    if (open_.has(KnobId::kPlacement) && base_.optimizer.placement != OptimizerPlacement::kNvme) {
      places.clear();
      for (const int64_t place : knob_of(KnobId::kPlacement).tried) {
        places.push_back(static_cast<OptimizerPlacement>(place));
      }
    }
    for (const int64_t parts : parts_of()) {
      plan_.subsequences = parts;
      for (const bool multiplex : sharing_of_ends()) {
        plan_.multiplex = multiplex;
        for (const OptimizerPlacement place : places) {
          for (const int64_t stage : stages(place)) add(place, stage);
        }
      }
    }
  }

  // Only of one micro-batch, and where the plan says that keys and values stay.
  std::vector<bool> sharing_of_ends() const {
    const bool open = open_.has(KnobId::kMultiplex);
    if (!open && !base_.multiplex) return {false};
    Plan shared = plan_;
    shared.micro_batch = base_.global_batch / plan_.data;
    const bool is_one = !base_.micro_batch || shared.micro_batch == base_.micro_batch;
    const bool possible = is_one && base_.activations && keys_values_stay(*base_.activations) &&
                          !refusal_of_multiplex(shared, model_);
    if (!open) return possible ? std::vector<bool>{true} : std::vector<bool>{};
    return possible ? std::vector<bool>{false, true} : std::vector<bool>{false};
  }

  // Whole sequences, and parts of which a device has as many tokens as SPPO's solver tries.
  std::vector<int64_t> parts_of() const {
    if (!open_.has(KnobId::kSubsequences)) return {base_.subsequences};
    std::vector<int64_t> parts = {1};
    if (model_.experts > 0 || model_.is_latent() || base_.ffn_tiles > 1) return parts;
    const int64_t ranks = plan_.sequence * plan_.context;
    const int64_t tokens = base_.sequence_length / ranks;
    const int64_t most = std::min(tokens / kLeastPartTokens, knob_of(KnobId::kSubsequences).most);
    for (int64_t n = 2; n <= most; n *= 2) {
      const bool divides = base_.sequence_length % (n * ranks) == 0 && fits_ring(plan_.context, n);
      if (tokens / n <= kMostPartTokens && divides) parts.push_back(n);
    }
    return parts;
  }

  std::vector<int64_t> stages(OptimizerPlacement place) const {
    const bool alone = plan_.replicas() == 1;
    const int64_t least = place == OptimizerPlacement::kGpu || alone ? 0 : 1;
    const int64_t most = alone ? 0 : plan_.pipeline > 1 ? 1 : knob_of(KnobId::kZeroStage).most;
    std::vector<int64_t> result;
    for (int64_t stage = least; stage <= most; ++stage) result.push_back(stage);
    if (open_.has(KnobId::kZeroStage)) return result;
    // A stage that was asked for means itself where it can be told from others.
    const int64_t fixed = std::clamp(base_.zero_stage, least, std::max(least, most));
    return {alone ? base_.zero_stage : fixed};
  }

  void add(OptimizerPlacement place, int64_t stage) {
    Plan plan = plan_;
    plan.zero_stage = plan.pipeline > 1 ? std::min<int64_t>(stage, 2) : stage;
    plan.optimizer.placement = place;
    if (plan.multiplex) plan.micro_batch = plan.global_batch / plan.data;
    if (plan.pipeline > 1) {
      if (!named_.has(KnobId::kSync)) plan.optimizer.sync = SyncMode::kWait;
      if (!named_.has(KnobId::kStreamShare)) plan.optimizer.stream_share = 0;
      if (!named_.has(KnobId::kGpuBuckets)) plan.optimizer.gpu_buckets = 0;
      if (!named_.has(KnobId::kFlowShare)) plan.weights.flow_share = 0;
    }
    found_.push_back(std::move(plan));
  }

  const Model& model_;
  const Plan& base_;
  const KnobSet& open_;
  const KnobSet& named_;
  Plan plan_;
  std::vector<Plan> found_;
};

}  // namespace

std::vector<Plan> layouts_of(const Model& model, const Plan& base, const KnobSet& open,
                             const KnobSet& named) {
  if ((open & knobs_of(KnobSearch::kLayout)).empty()) return {base};
  return Enumeration(model, base, open, named).run();
}

std::string layout_name(const Plan& plan) {
  std::vector<std::string> parts;
  const auto add = [&](const char* name, int64_t degree) {
    if (degree > 1) parts.push_back(fmt::format("{} {}", name, degree));
  };
  add("tensor", plan.tensor);
  add("pipeline", plan.pipeline);
  add("virtual", plan.virtual_pipeline);
  if (plan.pipeline > 1 && plan.pipeline_schedule != PipelineSchedule::k1F1B) {
    parts.emplace_back(to_string(plan.pipeline_schedule));
  }
  add("parts", plan.subsequences);
  if (plan.multiplex) parts.emplace_back("multiplexed");
  add("sequence", plan.sequence);
  add("context", plan.context);
  add("expert", plan.expert);
  add("data", plan.data);
  if (plan.replicas() > 1) parts.push_back(fmt::format("ZeRO-{}", plan.zero_stage));
  return parts.empty() ? "one device" : fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace ballast
