#include "backend/host/experts/routing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "backend/host/transformer_rows.h"
#include "backend/host/transformer_views.h"
#include "sim/base/error.h"

namespace ballast::transformer {
namespace {

constexpr double kLeastSum = 1e-20;  // transformers, DeepseekV3TopkRouter
constexpr int64_t kBestOfGroup = 2;  // whose sum is a group's score

void check_scores(const Model& model, ConstView scores, ConstView choice) {
  CHECK(scores.columns == model.experts && choice.columns == model.experts_per_token);
  CHECK(scores.rows == choice.rows && choice.dtype == DType::kI32);
}

const int32_t* ids(const ConstView& choice) { return static_cast<const int32_t*>(choice.data); }

// Writes the indices of the `count` largest values, the largest first.
template <class Real>
void largest(std::span<const Real> values, int64_t count, int32_t* to) {
  for (int64_t j = 0; j < count; ++j) {
    int32_t best = -1;
    for (int32_t i = 0; i < std::ssize(values); ++i) {
      if (std::find(to, to + j, i) != to + j) continue;
      if (best < 0 || values[static_cast<size_t>(i)] > values[static_cast<size_t>(best)]) best = i;
    }
    to[j] = best;
  }
}

template <class Real>
Real sigmoid(Real x) {
  return static_cast<Real>(1.0 / (1.0 + std::exp(-static_cast<double>(x))));
}

// What experts are chosen by: below every score where a group is not among the best.
template <class Real>
void corrected(const Model& model, const Real* correction, Real* row) {
  for (int64_t e = 0; e < model.experts; ++e) {
    row[e] = sigmoid(row[e]) + (correction == nullptr ? Real(0) : correction[e]);
  }
  if (model.chosen_groups == model.expert_groups) return;
  const int64_t size = model.experts / model.expert_groups;
  Real* sums = scratch<Real>(Slot::kRowWeights, model.expert_groups);
  int32_t best[kBestOfGroup];
  for (int64_t group = 0; group < model.expert_groups; ++group) {
    const std::span<const Real> values(row + group * size, static_cast<size_t>(size));
    const int64_t count = std::min(size, kBestOfGroup);
    largest(values, count, best);
    sums[group] = 0;
    for (int64_t j = 0; j < count; ++j) sums[group] += values[static_cast<size_t>(best[j])];
  }
  auto* chosen = static_cast<int32_t*>(scratch_bytes(Slot::kRowStarts, model.chosen_groups * 4));
  largest(std::span<const Real>(sums, static_cast<size_t>(model.expert_groups)),
          model.chosen_groups, chosen);
  for (int64_t group = 0; group < model.expert_groups; ++group) {
    const bool is_chosen =
        std::find(chosen, chosen + model.chosen_groups, group) != chosen + model.chosen_groups;
    if (is_chosen) continue;
    std::fill_n(row + group * size, size, -std::numeric_limits<Real>::infinity());
  }
}

template <class Real>
void choose(const Model& model, ConstView scores, ConstView params, View choice) {
  const int64_t count = model.experts;
  const bool by_sigmoid = model.router == RouterKind::kSigmoid;
  const Real* correction = nullptr;
  if (by_sigmoid && model.router_bias) {
    correction = load<Real>(params, model.hidden * count, count, Slot::kParameters);
  }
  for_ranges(scores.rows, by_rows(count), [&](int64_t begin, int64_t end) {
    Real* row = scratch<Real>(Slot::kScoreRow, count);
    for (int64_t t = begin; t < end; ++t) {
      copy_in(scores, t * count, count, row);
      if (by_sigmoid) corrected(model, correction, row);
      largest(std::span<const Real>(row, static_cast<size_t>(count)), choice.columns,
              static_cast<int32_t*>(choice.data) + t * choice.columns);
    }
  });
}

// Shares of the chosen in what the weights are made of, before routed_scale: their softmax, their
// probabilities among all, or their sigmoids.
template <class Real>
void shares_of(const Model& model, const Real* scores, const int32_t* chosen, Real* shares) {
  const int64_t k = model.experts_per_token;
  if (model.router == RouterKind::kSigmoid) {
    for (int64_t j = 0; j < k; ++j) shares[j] = sigmoid(scores[chosen[j]]);
    return;
  }
  // Among the chosen alone, or among all, the first of which has the largest score.
  double sum = 0;
  const Real maximum = scores[chosen[0]];
  if (model.normalised_choice) {
    for (int64_t j = 0; j < k; ++j)
      sum += std::exp(static_cast<double>(scores[chosen[j]] - maximum));
  } else {
    for (int64_t e = 0; e < model.experts; ++e) {
      sum += std::exp(static_cast<double>(scores[e] - maximum));
    }
  }
  for (int64_t j = 0; j < k; ++j) {
    const double share = std::exp(static_cast<double>(scores[chosen[j]] - maximum)) / sum;
    shares[j] = static_cast<Real>(share);
  }
}

// What the sigmoids are divided by.
template <class Real>
double divisor(const Model& model, const Real* shares) {
  if (model.router != RouterKind::kSigmoid || !model.normalised_choice) return 1;
  double sum = kLeastSum;
  for (int64_t j = 0; j < model.experts_per_token; ++j) sum += static_cast<double>(shares[j]);
  return sum;
}

// Probabilities over all experts, in place of scores.
template <class Real>
void softmax(Real* row, int64_t count) {
  const SoftmaxSums<Real> sums = row_loops<Real>().softmax(row, count);
  row_loops<Real>().scale(static_cast<Real>(1.0 / sums.sum), row, count);
}

// dscores of one token from the gradients of its weights, in place.
template <class Real>
void row_backward(const Model& model, const Real* scores, const int32_t* chosen, Real* shares,
                  Real* dweights, Real* dscores) {
  const int64_t k = model.experts_per_token;
  shares_of(model, scores, chosen, shares);
  const double by = divisor(model, shares);
  double mean = 0;  // of the gradients, by the weights before routed_scale
  for (int64_t j = 0; j < k; ++j) {
    dweights[j] = dscores[chosen[j]] * static_cast<Real>(model.routed_scale);
    mean += static_cast<double>(dweights[j]) * static_cast<double>(shares[j]) / by;
  }
  std::fill_n(dscores, model.experts, Real(0));
  const auto centre = static_cast<Real>(mean);
  if (model.router == RouterKind::kSigmoid) {
    for (int64_t j = 0; j < k; ++j) {
      const Real dshare =
          (dweights[j] - (model.normalised_choice ? centre : Real(0))) / static_cast<Real>(by);
      dscores[chosen[j]] = dshare * shares[j] * (1 - shares[j]);
    }
    return;
  }
  if (!model.normalised_choice) {
    std::copy_n(scores, model.experts, dscores);
    softmax(dscores, model.experts);
    row_loops<Real>().scale(-centre, dscores, model.experts);
    for (int64_t j = 0; j < k; ++j) dscores[chosen[j]] += shares[j] * dweights[j];
    return;
  }
  for (int64_t j = 0; j < k; ++j) dscores[chosen[j]] = shares[j] * (dweights[j] - centre);
}

// Adds the gradient of the loss that balances experts.
template <class Real>
void add_balance_gradient(const double* by_probability, int64_t count, Real* row, Real* dscores) {
  softmax(row, count);
  double mean = 0;
  for (int64_t e = 0; e < count; ++e) mean += static_cast<double>(row[e]) * by_probability[e];
  for (int64_t e = 0; e < count; ++e) {
    dscores[e] += row[e] * static_cast<Real>(by_probability[e] - mean);
  }
}

template <class Real>
void backward(const Model& model, ConstView scores, ConstView choice, const double* balance,
              View dscores) {
  const int64_t count = model.experts;
  const int64_t k = model.experts_per_token;
  for_ranges(scores.rows, by_rows(count), [&](int64_t begin, int64_t end) {
    Real* row = scratch<Real>(Slot::kScoreRow, count + 2 * k);
    for (int64_t t = begin; t < end; ++t) {
      copy_in(scores, t * count, count, row);
      Real* to = target<Real>(dscores, t * count, count, Slot::kOutput);
      if (dscores.dtype != kStored<Real>) copy_in(ConstView(dscores), t * count, count, to);
      row_backward(model, row, ids(choice) + t * k, row + count, row + count + k, to);
      if (balance != nullptr) add_balance_gradient(balance + count, count, row, to);
      finish(to, dscores, t * count, count);
    }
  });
}

}  // namespace

void choose_experts(const Model& model, ConstView scores, ConstView params, View choice) {
  check_scores(model, scores, choice);
  if (scores.dtype == DType::kF64) return choose<double>(model, scores, params, choice);
  choose<float>(model, scores, params, choice);
}

ExpertRows expert_rows(const Model& model, ConstView choice) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(int64_t));
  ExpertRows rows;
  rows.experts = model.experts;
  rows.per_token = choice.columns;
  rows.tokens = choice.rows;
  rows.choice = ids(choice);
  auto* first =
      static_cast<int64_t*>(scratch_bytes(Slot::kRowStarts, (2 * rows.experts + 1) * kSize));
  auto* of_token = static_cast<int64_t*>(scratch_bytes(Slot::kRowsOfTokens, rows.count() * kSize));
  int64_t* next = first + rows.experts + 1;
  std::fill_n(first, rows.experts + 1, int64_t{0});
  for (int64_t i = 0; i < rows.count(); ++i) ++first[rows.choice[i] + 1];
  for (int64_t e = 0; e < rows.experts; ++e) {
    first[e + 1] += first[e];
    next[e] = first[e];
  }
  for (int64_t i = 0; i < rows.count(); ++i) of_token[i] = next[rows.choice[i]]++;
  rows.first = first;
  rows.of_token = of_token;
  return rows;
}

template <class Real>
const Real* choice_weights(const Model& model, ConstView scores, ConstView choice) {
  check_scores(model, scores, choice);
  const int64_t count = model.experts;
  const int64_t k = model.experts_per_token;
  Real* weights = scratch<Real>(Slot::kRowWeights, scores.rows * k);
  for_ranges(scores.rows, by_rows(count), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const Real* row = load<Real>(scores, t * count, count, Slot::kScoreRow);
      Real* to = weights + t * k;
      shares_of(model, row, ids(choice) + t * k, to);
      const double factor = model.routed_scale / divisor(model, to);
      row_loops<Real>().scale(static_cast<Real>(factor), to, k);
    }
  });
  return weights;
}
template const float* choice_weights<float>(const Model&, ConstView, ConstView);
template const double* choice_weights<double>(const Model&, ConstView, ConstView);

namespace {

template <class Real>
void add_probabilities(ConstView scores, double* to) {
  const int64_t count = scores.columns;
  Real* row = scratch<Real>(Slot::kScoreRow, count);
  for (int64_t t = 0; t < scores.rows; ++t) {
    copy_in(scores, t * count, count, row);
    softmax(row, count);
    for (int64_t e = 0; e < count; ++e) to[e] += static_cast<double>(row[e]);
  }
}

}  // namespace

void add_balance(const Model& model, ConstView scores, ConstView choice, bool first,
                 double* balance) {
  check_scores(model, scores, choice);
  if (first) std::fill_n(balance, 2 * model.experts, 0.0);
  for (int64_t i = 0; i < elements(choice); ++i) balance[ids(choice)[i]] += 1;
  double* probabilities = balance + model.experts;
  if (scores.dtype == DType::kF64) return add_probabilities<double>(scores, probabilities);
  add_probabilities<float>(scores, probabilities);
}

double balance_loss(const Model& model, int64_t rows, double gradient_factor, double* balance) {
  const auto count = static_cast<double>(rows);
  const double factor = model.balance_loss * static_cast<double>(model.experts) / (count * count);
  double loss = 0;
  for (int64_t e = 0; e < model.experts; ++e) {
    double& probability = balance[model.experts + e];
    loss += factor * balance[e] * probability;
    probability = factor * balance[e] * gradient_factor;
  }
  return loss;
}

void scores_backward(const Model& model, ConstView scores, ConstView choice, const double* balance,
                     View dscores) {
  check_scores(model, scores, choice);
  CHECK(dscores.rows == scores.rows && dscores.columns == scores.columns);
  if (scores.dtype == DType::kF64) {
    return backward<double>(model, scores, choice, balance, dscores);
  }
  backward<float>(model, scores, choice, balance, dscores);
}

}  // namespace ballast::transformer
