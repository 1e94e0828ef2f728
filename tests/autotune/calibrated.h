// Published cases of synthetic frameworks: what would be measured if given constants were true.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "autotune/calibrate/calibrate.h"
#include "tests/autotune/published.h"

namespace ballast::calibrated {

// Indices of constant_name().
inline constexpr int kGemm = 0, kNode = 3, kNetwork = 4, kExpertLaunch = 6, kSlack = 7;

inline void ignore(double, const std::string&) {}

// A case large enough that products decide its time: 1024 wide, 16 sequences of 512 tokens at once.
inline CaseSetup large_setup(const std::string& id, const std::string& stack) {
  CaseSetup setup = small_setup(id);
  setup.published.stack = setup.stack.name = stack;
  setup.published.model.hidden = 1024;
  setup.published.model.heads = setup.published.model.kv_heads = 8;
  setup.published.model.head_size = 128;
  setup.published.model.ffn = 4096;
  setup.published.model.max_positions = 512;
  setup.published.plan.sequence_length = 512;
  setup.published.plan.global_batch = 16;
  setup.published.plan.micro_batch = 16;
  return setup;
}

// Publishes what would be measured if these constants were true, in a source of its own.
inline SourcedCase publish(CaseSetup setup, const std::vector<Metric>& metrics,
                           const StackConstants& truth) {
  for (const Metric metric : metrics) setup.published.measured.push_back({metric, 1});
  const CasePrediction prediction = predict_case(setup, truth);
  for (size_t i = 0; i < metrics.size(); ++i) {
    setup.published.measured[i].value = prediction.metrics[i].predicted.value();
  }
  const std::string source = "source of " + setup.published.id;
  return {std::move(setup), source, "synthetic"};
}

// Four shapes: wide, long (attention counts), many small (launches count), and accumulating.
inline std::vector<SourcedCase> four_cases(const std::string& stack, const StackConstants& truth) {
  CaseSetup wide = large_setup(stack + "-wide", stack);
  wide.published.model.hidden = 2048;
  wide.published.model.ffn = 8192;
  wide.published.model.head_size = 256;
  CaseSetup longer = large_setup(stack + "-long", stack);
  longer.published.model.max_positions = longer.published.plan.sequence_length = 8192;
  longer.published.plan.global_batch = 2;
  longer.published.plan.micro_batch = 2;
  CaseSetup small = large_setup(stack + "-small", stack);
  small.published.model.hidden = 256;
  small.published.model.head_size = 32;
  small.published.model.ffn = 1024;
  small.published.model.max_positions = small.published.plan.sequence_length = 64;
  small.published.plan.micro_batch = 1;
  CaseSetup plain = large_setup(stack + "-plain", stack);
  std::vector<SourcedCase> cases;
  for (CaseSetup* one : {&wide, &longer, &small, &plain}) {
    cases.push_back(publish(std::move(*one), {Metric::kStepTime, Metric::kPeakMemory}, truth));
  }
  return cases;
}

}  // namespace ballast::calibrated
