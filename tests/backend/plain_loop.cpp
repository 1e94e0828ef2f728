#include "tests/backend/plain_loop.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>

#include "backend/train/data.h"
#include "backend/train/random.h"
#include "sim/graph/build.h"
#include "tests/backend/decoder.h"

namespace ballast::tiny {

namespace {

using transformer::Array;

// Rounded to bf16, the nearest and of two the even one, and back.
float in_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t kept = bits >> 16;
  const uint32_t dropped = bits & 0xffffu;
  const bool up = dropped > 0x8000u || (dropped == 0x8000u && (kept & 1u) != 0);
  return std::bit_cast<float>((kept + (up ? 1 : 0)) << 16);
}

// A gradient that waits for its step, and the scale that its loss had.
struct Gradient {
  std::vector<double> values;
  double loss_scale = 1;
  int64_t step = 0;
};

class PlainLoop {
 public:
  PlainLoop(const Model& model, const Plan& plan, const TrainerOptions& options)
      : model_(model),
        plan_(plan),
        options_(options),
        graph_(build_to_run_placed(model, plan)),
        data_(TokenSource::open(options.data, {.vocab = model.vocab, .seed = options.seed})) {
    for (const Module& module : modules_of(model)) {
      std::vector<float> values(static_cast<size_t>(module.count));
      if (module.count > 0) initialise(module, model, options.seed, values);
      master_.insert(master_.end(), values.begin(), values.end());
      decays_.resize(master_.size(), false);
      flows_.resize(master_.size(), is_flowing(module));
      for (const Parameter& parameter : module.parameters) {
        for (int64_t i = 0; i < parameter.count(); ++i) {
          decays_[static_cast<size_t>(module.flat_offset + parameter.offset + i)] =
              parameter.is_matrix;
        }
      }
    }
    moment1_.assign(master_.size(), 0.0f);
    moment2_.assign(master_.size(), 0.0f);
  }

  std::vector<float> run(int64_t steps) {
    const bool delays = plan_.optimizer.sync == SyncMode::kDelay;
    Gradient waiting;
    for (int64_t step = 0; step < steps; ++step) {
      // Of a delayed step the verdict on the one before sets the scale of the loss.
      std::vector<float> weights = master_;
      if (delays && step > 0) apply(waiting);
      // What flows is fetched from the masters after their step, and is not late.
      for (size_t i = 0; delays && i < weights.size(); ++i) {
        if (flows_[i]) weights[i] = master_[i];
      }
      Gradient gradient = gradient_of(step, weights);
      if (!delays) apply(gradient);
      waiting = std::move(gradient);
    }
    if (delays) apply(waiting);
    return master_;
  }

 private:
  // The layers whose weights flow are spread over a stage, so every stage is asked.
  bool is_flowing(const Module& module) const {
    for (const Op& op : graph_.step.ops) {
      const bool fetches = op.phase == Phase::kFetch && op.kind != OpKind::kCollective;
      if (fetches && op.label.module == module.kind && op.label.layer == module.layer) return true;
    }
    return false;
  }

  Gradient gradient_of(int64_t step, const std::vector<float>& weights) {
    Gradient gradient;
    gradient.step = step;
    gradient.loss_scale = plan_.dtype == DType::kF16 ? scale_.value() : 1;
    std::vector<double> values(weights.begin(), weights.end());
    const Model twin = untied_where_stages_sum(values);
    const Array parameters = transformer::array_of(values, plan_.dtype, 1, std::ssize(values));
    const int64_t micro = *plan_.micro_batch;
    const int64_t pieces = plan_.global_batch / micro;
    const transformer::Shape shape{micro, plan_.sequence_length};
    const double factor =
        gradient.loss_scale / static_cast<double>(micro * plan_.sequence_length * pieces);
    const auto gradients_of = [&](int64_t piece, const Array* sum) {
      std::vector<int32_t> tokens(static_cast<size_t>(micro * (plan_.sequence_length + 1)));
      data_.batch({Split::kTraining, step, piece, micro, plan_.sequence_length}, tokens);
      return run_step(twin, shape, tokens, parameters,
                      {factor, sum, gradient_type(), plan_.loss_chunks})
          .gradients;
    };
    sum_over_ranks(gradient.values, pieces / plan_.data, gradients_of);
    if (gradient.values.size() > weights.size()) tie(gradient.values, weights.size());
    return gradient;
  }

  // A rank adds up its micro-batches, `of_rank` of them, before ranks are summed; where weights are
  // split over ranks, ranks are summed after every micro-batch and added to the sum so far.
  template <class GradientsOf>
  void sum_over_ranks(std::vector<double>& sums, int64_t of_rank, const GradientsOf& gradients_of) {
    if (plan_.zero_stage == 3 && plan_.data > 1) {
      for (int64_t micro_batch = 0; micro_batch < of_rank; ++micro_batch) {
        for (int64_t rank = 0; rank < plan_.data; ++rank) {
          const Array own = gradients_of(rank * of_rank + micro_batch, nullptr);
          add_of_rank(sums, transformer::values_of(own));
        }
        round(sums);
      }
      return;
    }
    for (int64_t rank = 0; rank < plan_.data; ++rank) {
      Array sum;
      for (int64_t i = 0; i < of_rank; ++i) {
        sum = gradients_of(rank * of_rank + i, i == 0 ? nullptr : &sum);
      }
      add_of_rank(sums, transformer::values_of(sum));
    }
    if (plan_.data > 1) round(sums);
  }

  // Ranks are summed in their order in fp32, and the sum is rounded once.
  static void add_of_rank(std::vector<double>& sums, std::vector<double> values) {
    if (sums.empty()) return sums.swap(values);
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i] = static_cast<float>(sums[i]) + static_cast<float>(values[i]);
    }
  }

  DType gradient_type() const {
    return plan_.gradients == GradientFormat::kF32 ? DType::kF32 : plan_.dtype;
  }

  void round(std::vector<double>& values) const {
    values = transformer::values_of(
        transformer::array_of(values, gradient_type(), 1, std::ssize(values)));
  }

  // In a pipeline the first stage has the gradient of a tied embedding, the last that of the head:
  // two parameters until they are summed. The head's follow all others.
  Model untied_where_stages_sum(std::vector<double>& values) const {
    Model twin = model_;
    if (plan_.pipeline == 1 || !model_.tied_embeddings) return twin;
    twin.tied_embeddings = false;
    const int64_t shared_values = model_.vocab * model_.hidden;
    CHECK(parameter_count(twin) == std::ssize(values) + shared_values);
    const std::vector<double> shared(values.begin(), values.begin() + shared_values);
    values.insert(values.end(), shared.begin(), shared.end());
    return twin;
  }

  // Summed in fp32 and rounded once.
  void tie(std::vector<double>& gradient, size_t of_model) const {
    const size_t shared = gradient.size() - of_model;
    std::vector<double> sums(shared);
    for (size_t i = 0; i < shared; ++i) {
      sums[i] = static_cast<float>(gradient[i]) + static_cast<float>(gradient[of_model + i]);
    }
    round(sums);
    gradient.resize(of_model);
    std::copy(sums.begin(), sums.end(), gradient.begin());
  }

  void apply(const Gradient& gradient) {
    double squares = 0;
    for (const double value : gradient.values) squares += value * value;
    const double norm = std::sqrt(squares) / gradient.loss_scale;
    if (!std::isfinite(norm)) {
      if (plan_.dtype == DType::kF16) scale_.step_overflowed();
      return;
    }
    if (plan_.dtype == DType::kF16) scale_.step_was_good();
    const double clip = options_.optimizer.clip_norm;
    const double factor = clip > 0 && norm > clip ? clip / norm : 1;
    step_all(gradient, static_cast<float>(factor / gradient.loss_scale));
  }

  void step_all(const Gradient& gradient, float gradient_scale) {
    const OptimizerOptions& o = options_.optimizer;
    const auto t = static_cast<double>(++applied_);
    const auto rate = static_cast<float>(o.learning_rate.at(gradient.step));
    const auto correction1 =
        static_cast<float>(1.0 / (1.0 - std::pow(static_cast<double>(o.beta1), t)));
    const auto correction2 =
        static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(static_cast<double>(o.beta2), t)));
    const bool narrow = plan_.optimizer.moments == DType::kBf16;
    for (size_t i = 0; i < master_.size(); ++i) {
      const float g = gradient_scale * static_cast<float>(gradient.values[i]);
      const float m = std::fma(o.beta1, moment1_[i], (1.0f - o.beta1) * g);
      const float v = std::fma(o.beta2, moment2_[i], ((1.0f - o.beta2) * g) * g);
      const float u = (correction1 * m) / std::fma(std::sqrt(v), correction2, o.epsilon);
      const float decay = decays_[i] ? o.weight_decay : 0.0f;
      master_[i] -= rate * std::fma(decay, master_[i], u);
      moment1_[i] = narrow ? in_bf16(m) : m;
      moment2_[i] = narrow ? in_bf16(v) : v;
    }
  }

  const Model& model_;
  const Plan& plan_;
  const TrainerOptions& options_;
  const Graph graph_;
  TokenSource data_;
  LossScale scale_;
  std::vector<float> master_, moment1_, moment2_;
  std::vector<bool> decays_;
  std::vector<bool> flows_;
  int64_t applied_ = 0;
};

}  // namespace

std::vector<float> plain_loop(const Model& model, const Plan& plan, const TrainerOptions& options,
                              int64_t steps) {
  return PlainLoop(model, plan, options).run(steps);
}

}  // namespace ballast::tiny
