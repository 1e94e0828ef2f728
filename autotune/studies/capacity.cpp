#include "autotune/studies/capacity.h"

#include <algorithm>
#include <fmt/format.h>
#include <numeric>

#include "sim/base/error.h"

namespace ballast {
namespace {

// The setting for one model of a family.
Setting with_model(const Setting& setting, Model model) {
  Setting result = setting;
  result.model = std::move(model);
  return result;
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

int64_t sequence_grain(const Plan& plan) {
  const bool whole = plan.subsequences == 1;
  return whole ? kSequenceGrain : std::lcm(kSequenceGrain, plan.subsequences * kAttentionTile);
}

LongestSequence longest_sequence(const Setting& setting) {
  const Plan& asked = setting.plan;
  // Where degrees are chosen, lengths that the devices of a node can share: a longer one that fits
  // would else lie behind one that fewer can share.
  const int64_t shared_by =
      setting.has_open_layout() ? std::min(asked.devices, setting.machine.devices_per_node) : 1;
  const int64_t grain = sequence_grain(asked) * std::lcm(asked.sequence * asked.context, shared_by);
  LongestSequence result;
  const auto fits = [&](int64_t grains) {
    const int64_t tokens = grains * grain;
    Setting at = with_plans(setting, [&](Plan& plan) { plan.sequence_length = tokens; });
    at.model = with_positions(setting.model, tokens);
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
