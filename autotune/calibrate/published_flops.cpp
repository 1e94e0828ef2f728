// How sources count FLOPs and utilisation (conventions in published_cases.h).
#include <algorithm>
#include <cmath>

#include "autotune/calibrate/published_cases.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

// FLOPs of the products of all layers for one token, forward: two a parameter of a matrix, of
// experts those that the token is sent to.
double layer_products(const Model& model) {
  const auto hidden = static_cast<double>(model.hidden);
  const double attention =
      hidden * static_cast<double>(model.qkv_width() + model.attention_width());
  double sum = 0;
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    const auto columns = static_cast<double>(model.fc1_width(layer) + model.ffn_width(layer));
    sum += 2 * (attention + hidden * columns);
  }
  return sum;
}

double peak_of(const Machine& machine, const FlopsConvention& convention) {
  return convention.peak_tflops > 0 ? convention.peak_tflops * 1e12
                                    : nominal_peak(machine).flops_per_s;
}

// Tokens per second of all devices, by whichever figure of time a source gives; 0: none.
double published_tokens_per_s(const PublishedCase& published) {
  const auto tokens = static_cast<double>(published.plan.tokens_per_step());
  for (const Measured& one : published.measured) {
    if (one.metric == Metric::kStepTime) return tokens / one.value;
    if (one.metric == Metric::kTokensPerS) return one.value;
    if (one.metric == Metric::kTokensPerDevice) {
      return one.value * static_cast<double>(published.plan.devices);
    }
  }
  return 0;
}

bool counts_flops(Metric metric) {
  return metric == Metric::kTflopsPerDevice || metric == Metric::kMfu || metric == Metric::kHfu;
}

}  // namespace

Flops published_flops(const Model& model, const Plan& plan, CountRecompute recompute,
                      const FlopsConvention& convention) {
  // A backward is two forwards, and recompute one more; the logits are not recomputed.
  const double passes = recompute == CountRecompute::kYes ? 4 : 3;
  const auto layers = static_cast<double>(model.layers);
  const auto width = static_cast<double>(model.attention_width());
  const double counted = convention.attention ? (convention.half_attention ? 0.5 : 1) : 0;
  const double scores = counted * 4 * width * static_cast<double>(plan.sequence_length);
  const double logits =
      convention.logits ? 2 * static_cast<double>(model.hidden) * static_cast<double>(model.vocab)
                        : 0;
  const double per_token = passes * (layer_products(model) + layers * scores) + 3 * logits;
  return {per_token * static_cast<double>(plan.tokens_per_step())};
}

FlopRate nominal_peak(const Machine& machine) {
  if (machine.gpu.nominal_matmul) return machine.gpu.nominal_matmul->value;
  throw Error("machine " + machine.name, "its GPU '" + machine.gpu.name + "' has no known peak",
              "publish a rate instead of a utilisation");
}

double flops_metric(Metric metric, const CaseSetup& setup, const FlopsConvention& convention,
                    double steps_per_s) {
  CHECK(counts_flops(metric));
  const PublishedCase& published = setup.published;
  const bool all = metric == Metric::kHfu ||
                   (metric == Metric::kTflopsPerDevice && published.tflops_count_recompute);
  const Flops flops = published_flops(published.model, published.plan,
                                      all ? CountRecompute::kYes : CountRecompute::kNo, convention);
  const double rate = flops.count * steps_per_s / static_cast<double>(published.plan.devices);
  if (metric == Metric::kTflopsPerDevice) return rate * 1e-12;
  return 100 * rate / peak_of(setup.machine, convention);
}

FlopsConvention settled_convention(const CaseSetup& setup) {
  const PublishedCase& published = setup.published;
  const std::vector<FlopsConvention> list = conventions_of(published.mfu_formula);
  const double steps_per_s =
      published_tokens_per_s(published) / static_cast<double>(published.plan.tokens_per_step());
  const auto found = std::find_if(published.measured.begin(), published.measured.end(),
                                  [](const Measured& one) { return counts_flops(one.metric); });
  if (list.size() == 1 || steps_per_s == 0 || found == published.measured.end())
    return list.front();
  const auto distance = [&](const FlopsConvention& convention) {
    return std::abs(
        std::log(flops_metric(found->metric, setup, convention, steps_per_s) / found->value));
  };
  return *std::min_element(list.begin(), list.end(),
                           [&](const FlopsConvention& a, const FlopsConvention& b) {
                             return distance(a) < distance(b);
                           });
}

}  // namespace ballast
