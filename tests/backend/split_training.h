// Trainings of plans that split a model, its sequences or its experts over ranks, held against one
// rank's.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <gtest/gtest.h>
#include <string>

#include "tests/backend/disturbed_training.h"
#include "tests/backend/tiny_training.h"

namespace ballast::tiny {

inline constexpr double kLossTolerance = 1e-6;
inline constexpr double kParameterTolerance = 5e-5;

struct Degrees {
  int64_t tensor = 1, sequence = 1, context = 1, data = 1, expert = 1, pipeline = 1;
  bool tensor_sequence = false;
  int64_t zero_stage = 0;
  ContextBalance balance = ContextBalance::kZigzag;
};

inline std::string text_of(const Degrees& degrees) {
  std::string text;
  const auto add = [&](const char* name, int64_t degree) {
    if (degree > 1) text += std::string(name) + " " + std::to_string(degree) + " ";
  };
  add("tensor", degrees.tensor);
  add("sequence", degrees.sequence);
  add(degrees.balance == ContextBalance::kZigzag ? "zigzag" : "consecutive", degrees.context);
  add("data", degrees.data);
  add("expert", degrees.expert);
  add("pipeline", degrees.pipeline);
  if (degrees.tensor_sequence) text += "norms by token ";
  if (degrees.zero_stage > 0) text += "ZeRO " + std::to_string(degrees.zero_stage) + " ";
  return text;
}

inline Plan plan_of(const Degrees& degrees, SyncMode sync = SyncMode::kWait,
                    Homes homes = Homes::kGpu, DType dtype = DType::kF32) {
  Plan plan = waiting_plan({.sequences = 4, .micro_batch = 1, .tokens = 12}, 2 * kSegment * 4);
  plan.dtype = dtype;
  plan.tensor = degrees.tensor;
  plan.sequence = degrees.sequence;
  plan.context = degrees.context;
  plan.context_balance = degrees.balance;
  plan.data = degrees.data;
  plan.expert = degrees.expert;
  plan.pipeline = degrees.pipeline;
  plan.tensor_sequence = degrees.tensor_sequence;
  plan.zero_stage = degrees.zero_stage;
  plan.devices =
      degrees.tensor * degrees.sequence * degrees.context * degrees.data * degrees.pipeline;
  plan.optimizer.sync = sync;
  set_homes(plan, homes);
  return plan;
}

// How far two trainings are apart: losses of themselves, parameters of the largest.
struct Distance {
  double loss = 0;
  double parameter = 0;
};

inline Distance distance(const Outcome& one, const Outcome& other) {
  Distance furthest;
  EXPECT_EQ(one.records.size(), other.records.size());
  for (size_t i = 0; i < std::min(one.records.size(), other.records.size()); ++i) {
    EXPECT_EQ(one.records[i].skipped, other.records[i].skipped) << i;
    EXPECT_EQ(one.records[i].clipped, other.records[i].clipped) << i;
    furthest.loss =
        std::max(furthest.loss, std::abs(one.records[i].loss / other.records[i].loss - 1));
  }
  EXPECT_EQ(one.parameters.size(), other.parameters.size());
  double largest = 0;
  for (size_t i = 0; i < std::min(one.parameters.size(), other.parameters.size()); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(other.parameters[i])));
    furthest.parameter = std::max(
        furthest.parameter, std::abs(static_cast<double>(one.parameters[i] - other.parameters[i])));
  }
  furthest.parameter /= largest;
  return furthest;
}

inline void expect_near(const Outcome& one, const Outcome& other, const std::string& what,
                        double parameter_tolerance = kParameterTolerance) {
  const Distance apart = distance(one, other);
  EXPECT_LT(apart.loss, kLossTolerance) << what;
  EXPECT_LT(apart.parameter, parameter_tolerance) << what;
  std::printf("%-60s losses %.1e, parameters %.1e\n", what.c_str(), apart.loss, apart.parameter);
}

// A learning rate at which no step is so large that rounding grows: near the peak of
// options_for gpt2's loss jumps at one step, and two runs of other roundings are 4e-5 apart
// there.
inline TrainerOptions gentle(TrainerOptions options = options_for(kSteps)) {
  options.optimizer.learning_rate = {1e-3, 1e-4, 3, kSteps};
  return options;
}

}  // namespace ballast::tiny
