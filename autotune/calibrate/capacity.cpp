#include "autotune/calibrate/capacity.h"

#include <algorithm>
#include <fmt/format.h>

#include "autotune/calibrate/published_cases.h"
#include "autotune/search/complete.h"
#include "sim/base/error.h"
#include "sim/engine/predict.h"
#include "sim/graph/build.h"

namespace ballast {
namespace {

// More layers than any model has ever had; ends the search on a machine without limits.
constexpr int64_t kMostLayers = 4096;

bool is_ballast(const Stack& stack) { return stack.name == Stack{}.name; }

CaseSetup setup_of(const Setting& setting) {
  CaseSetup setup;
  setup.of.id = setting.model.name;
  setup.of.model = setting.model;
  setup.of.plan = setting.plan;
  setup.of.measured = {{Metric::kStepTime, 1}};
  setup.machine = setting.machine;
  setup.stack = setting.stack;
  return setup;
}

// What a verdict lacks, summed over the memories.
Bytes excess_of(const Verdict& verdict, const Machine& machine) {
  Bytes excess;
  for (const Shortfall& one : shortfalls(verdict.peaks, machine)) excess += one.lacking();
  return excess;
}

Verdict verdict_of(const Setting& setting, const Way& way) {
  StackFacts facts = setting.stack.facts;
  facts.attention = {way.attention};
  const Prediction memory = predict_memory(build(setting.model, way.plan, facts), way.plan,
                                           setting.machine, setting.stack);
  return {memory.fits, way.plan, memory.reason, memory.peaks};
}

// Beyond recomputing everything: the layers' inputs leave, which needs least memory; and the
// output of attention with them, whose recompute is what hurts in long sequences.
std::vector<ActivationPlan> offloads() {
  ActivationPlan inputs = activations_of(Recompute::kFull);
  inputs.fate[static_cast<size_t>(ModuleKind::kFc2)] = ActivationFate::kOffload;
  ActivationPlan attention = inputs;
  attention.fate[static_cast<size_t>(ModuleKind::kCoreAttention)] = ActivationFate::kOffload;
  return {inputs, attention};
}

void append_ways(const CaseSetup& setup, std::vector<Way>& ways) {
  for (std::vector<Way>& group : ways_of(setup)) {
    ways.insert(ways.end(), group.begin(), group.end());
  }
}

// The same plans with memory reused at once, behind those that are there.
void append_at_once(const Setting& setting, std::vector<Way>& ways) {
  // Other frameworks have allocators, and no places that are planned.
  if (setting.plan.memory_reuse || !is_ballast(setting.stack)) return;
  const size_t apart = ways.size();
  for (size_t i = 0; i < apart; ++i) {
    ways.push_back(ways[i]);
    ways.back().plan.memory_reuse = MemoryReuse::kAtOnce;
  }
}

// The plans that most often need least memory: open knobs of activations at their least; last those
// that also reuse it at once.
std::vector<Way> lean_ways(const Setting& setting) {
  CaseSetup setup = setup_of(setting);
  Plan& plan = setup.of.plan;
  if (!plan.micro_batch) plan.micro_batch = 1;
  const auto& kinds = setting.stack.facts.attention;
  if (std::find(kinds.begin(), kinds.end(), AttentionKind::kFlash) != kinds.end()) {
    setup.of.attention = AttentionKind::kFlash;
  }
  std::vector<ActivationPlan> activations;
  if (plan.activations) {
    activations = {*plan.activations};
  } else {
    activations = {activations_of(Recompute::kFull), offloads().front()};
  }
  std::vector<Way> ways;
  for (const ActivationPlan& choice : activations) {
    plan.activations = choice;
    append_ways(setup, ways);
  }
  append_at_once(setting, ways);
  return ways;
}

// Every plan that choose() may come to.
std::vector<Way> all_ways(const Setting& setting) {
  CaseSetup setup = setup_of(setting);
  std::vector<Way> ways;
  append_ways(setup, ways);
  if (!setting.plan.activations) {
    for (const ActivationPlan& offload : offloads()) {
      setup.of.plan.activations = offload;
      append_ways(setup, ways);
    }
  }
  append_at_once(setting, ways);
  return ways;
}

std::string too_many_devices(const Setting& setting) {
  return fmt::format("the plan uses {} devices, and machine {} has {}; use fewer devices",
                     setting.plan.devices, setting.machine.name, setting.machine.devices);
}

// The setting for one model of a family.
Setting with_model(const Setting& setting, Model model) {
  Setting result = setting;
  result.model = std::move(model);
  return result;
}

// Collects what does not fit until something does: that, or else what misses by least.
class Nearest {
 public:
  explicit Nearest(const Setting& setting) : setting_(setting) {}

  // True where the way fits.
  bool offer(const Way& way) {
    try {
      Verdict verdict = verdict_of(setting_, way);
      const Bytes excess = excess_of(verdict, setting_.machine);
      if (verdict.fits || !verdict_ || excess < excess_) {
        excess_ = excess;
        verdict_ = std::move(verdict);
      }
      return verdict_->fits;
    } catch (const Error& error) {
      if (refusal_.empty()) refusal_ = error.what();
      return false;
    }
  }
  bool offer(const std::vector<Way>& ways) {
    return std::any_of(ways.begin(), ways.end(), [&](const Way& way) { return offer(way); });
  }
  // Throws Error where no way could be built.
  Verdict take() {
    if (verdict_) return *std::move(verdict_);
    throw Error("model " + setting_.model.name, "none of its plans can be built: " + refusal_,
                "name other degrees or knobs");
  }

 private:
  const Setting& setting_;
  std::optional<Verdict> verdict_;
  Bytes excess_;
  std::string refusal_;
};

// Asks the search for any plan that fits; true where there is one. What it refuses it refuses by a
// bound of memory or by the arena itself, so that nothing is left out.
bool offer_space(const Setting& setting, Nearest& nearest) {
  Plan plan = setting.plan;
  if (plan.pipeline > 1) {
    plan.weights.flow_share = plan.weights.flow_share.value_or(0);
    plan.optimizer.gpu_buckets = plan.optimizer.gpu_buckets.value_or(0);
  }
  OpenKnobs open;
  open.add(KnobId::kMemoryReuse);
  SearchOptions any;
  any.tolerance = 1;
  any.ranked = 1;
  const SearchResult found = search(setting.model, plan, space_of(setting.model, plan, open),
                                    setting.machine, nullptr, any);
  const AttentionKind attention = setting.stack.facts.attention.front();
  if (found.best) return nearest.offer(Way{found.best->plan, attention});
  // What the bounds say is missing is less than what is: as an example only the placed plan counts.
  for (const InfeasibleReason& reason : found.reasons) {
    nearest.offer(Way{reason.example, attention});
  }
  return false;
}

bool is_legal(const Plan& plan, const Model& model) {
  try {
    check(plan, model);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// One walk along a family: a model that fits on the left, one that does not on the right.
class FamilyWalk {
 public:
  FamilyWalk(const Setting& setting, const Family& family)
      : setting_(setting),
        family_(family),
        grain_(setting.plan.pipeline * setting.plan.virtual_pipeline) {
    for (Shape shape : family.shapes) {
      shape.layers = div_ceil(shape.layers, grain_) * grain_;
      if (is_legal(setting.plan, model(shape))) shapes_.push_back(shape);
    }
    if (shapes_.empty()) {
      // The reason is that of the shape which most degrees divide.
      check(setting.plan, model(family.shapes.back()));
    }
  }

  LargestModel run() {
    size_t rung = 0;
    while (rung < shapes_.size() && try_shape(shapes_[rung])) ++rung;
    if (rung > 0) grow(rung);
    return std::move(result_);
  }

 private:
  Model model(const Shape& shape) const {
    return model_of(family_, shape, setting_.plan.sequence_length);
  }

  // Records the verdict on one side or the other.
  bool try_shape(const Shape& shape) {
    Model candidate = model(shape);
    Verdict verdict = feasibility(with_model(setting_, candidate));
    ++result_.considered;
    const bool fits = verdict.fits;
    if (fits) {
      result_.model = std::move(candidate);
      result_.verdict = std::move(verdict);
    } else {
      result_.next = std::move(candidate);
      result_.next_verdict = std::move(verdict);
    }
    return fits;
  }

  // More layers of the last shape that fits, up to the parameters of the next.
  void grow(size_t rung) {
    Shape shape = shapes_[rung - 1];
    int64_t low = shape.layers / grain_;  // fits
    int64_t high = 0;                     // does not, or is the next shape's
    if (rung < shapes_.size()) {
      const int64_t limit = parameter_count(model(shapes_[rung]));
      high = low + 1;
      while (parameters(shape, high) < limit) ++high;
    } else {
      high = 2 * low;
      while (high * grain_ < kMostLayers && fits(shape, high)) {
        low = high;
        high *= 2;
      }
    }
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (fits(shape, middle) ? low : high) = middle;
    }
  }

  bool fits(Shape shape, int64_t grains) {
    shape.layers = grains * grain_;
    return try_shape(shape);
  }
  int64_t parameters(Shape shape, int64_t grains) const {
    shape.layers = grains * grain_;
    return parameter_count(model(shape));
  }

  const Setting& setting_;
  const Family& family_;
  const int64_t grain_;
  std::vector<Shape> shapes_;
  LargestModel result_;
};

Model with_positions(Model model, int64_t tokens) {
  if (model.position == PositionKind::kLearned && tokens > model.max_positions) {
    model.position = PositionKind::kRope;
  }
  model.max_positions = std::max(model.max_positions, tokens);
  return model;
}

}  // namespace

Verdict feasibility(const Setting& setting) {
  const std::vector<Way> lean = lean_ways(setting);
  if (setting.plan.devices > setting.machine.devices) {
    return {false, lean.front().plan, too_many_devices(setting), {}};
  }
  Nearest nearest(setting);
  if (nearest.offer(lean) || !has_auto(setting.plan)) return nearest.take();
  if (is_ballast(setting.stack) && offer_space(setting, nearest)) return nearest.take();
  if (!search_completes(setting.plan, setting.stack)) nearest.offer(all_ways(setting));
  return nearest.take();
}

Plan choose(const Setting& setting) {
  if (setting.plan.devices > setting.machine.devices) return feasibility(setting).plan;
  CaseSetup setup = setup_of(setting);
  CasePrediction best = predict_case(setup, setup.stack.constants);
  if (!best.fits && !setting.plan.activations) {
    for (const ActivationPlan& offload : offloads()) {
      setup.of.plan.activations = offload;
      CasePrediction one = predict_case(setup, setup.stack.constants);
      const bool better = one.fits && (!best.fits || one.step_time < best.step_time);
      if (better) best = std::move(one);
    }
  }
  return best.fits ? best.way.plan : feasibility(setting).plan;
}

Family gpt_family() {
  Family family;
  family.source = "arXiv 2005.14165, table 2.1, and arXiv 2104.04473, table 1";
  Model& like = family.like;
  like.architecture = "gpt2";
  like.vocab = 51200;
  like.layout = WeightLayout::kInOut;
  like.qkv_bias = like.attention_out_bias = like.mlp_bias = true;
  like.tied_embeddings = true;
  family.shapes = {{12, 768, 12},    {24, 1024, 16},  {24, 1536, 16},   {24, 2304, 24},
                   {30, 3072, 32},   {36, 4096, 32},  {40, 6144, 48},   {48, 8192, 64},
                   {60, 10240, 80},  {80, 12288, 96}, {96, 16384, 128}, {105, 20480, 128},
                   {128, 25600, 160}};
  return family;
}

Family family_of(const Model& model) {
  return {model, {{1, model.hidden, model.heads}}, "the layers of " + model.name};
}

Model model_of(const Family& family, const Shape& shape, int64_t positions) {
  Model model = family.like;
  if (shape.hidden != model.hidden) {
    model.hidden = shape.hidden;
    model.heads = model.kv_heads = shape.heads;
    model.head_size = div_exact(shape.hidden, shape.heads);
    model.ffn = 4 * shape.hidden;
  }
  model.layers = shape.layers;
  if (model.max_positions == 0) {
    model.max_positions = positions;
  } else {
    model = with_positions(std::move(model), positions);
  }
  model.name = family.like.name.empty()
                   ? fmt::format("gpt-{:.1f}b", static_cast<double>(parameter_count(model)) * 1e-9)
                   : fmt::format("{} with {} layers", family.like.name, model.layers);
  return model;
}

LargestModel largest_model(const Setting& setting, const Family& family) {
  CHECK(!family.shapes.empty());
  return FamilyWalk(setting, family).run();
}

LongestSequence longest_sequence(const Setting& setting) {
  const int64_t grain = kSequenceGrain * setting.plan.sequence * setting.plan.context;
  LongestSequence result;
  const auto fits = [&](int64_t grains) {
    Setting at = setting;
    at.plan.sequence_length = grains * grain;
    at.model = with_positions(setting.model, at.plan.sequence_length);
    Verdict verdict = feasibility(at);
    ++result.considered;
    const bool fitting = verdict.fits;
    (fitting ? result.tokens : result.next_tokens) = at.plan.sequence_length;
    (fitting ? result.verdict : result.next_verdict) = std::move(verdict);
    if (fitting) result.model = std::move(at.model);
    return fitting;
  };
  int64_t low = 0;   // fits
  int64_t high = 1;  // does not
  while (fits(high)) {
    low = high;
    high *= 2;
    if (high * grain > kMostTokens) {
      result.next_tokens = high * grain;
      result.next_verdict = result.verdict;
      return result;
    }
  }
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return result;
}

}  // namespace ballast
