// Trainings whose gradients are disturbed at chosen steps, and what must be the same of two of
// them.
#pragma once

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <string>

#include "tests/backend/tiny_training.h"

namespace ballast::tiny {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr int64_t kSteps = 9;  // past the first poisoned one
#else
inline constexpr int64_t kSteps = 20;
#endif

inline constexpr SyncMode kSyncs[] = {SyncMode::kWait, SyncMode::kDelay, SyncMode::kSpeculate};

// Where optimizer state and activations are.
enum class Homes : uint8_t { kGpu, kOptimizerAway, kAllAway };
inline constexpr Homes kHomes[] = {Homes::kGpu, Homes::kOptimizerAway, Homes::kAllAway};

inline void set_homes(Plan& plan, Homes homes) {
  plan.optimizer.gpu_buckets = 1;
  if (homes == Homes::kGpu) plan.optimizer.placement = OptimizerPlacement::kGpu;
  if (homes == Homes::kAllAway) {
    plan.optimizer.gpu_buckets = 0;
    plan.optimizer.cast = CastPlacement::kCpu;
    plan.optimizer.undo = UndoKind::kExact;
    plan.activations = all_activations(ActivationFate::kOffload);
    plan.activations->fate[static_cast<size_t>(ModuleKind::kNorm2)] = ActivationFate::kRecompute;
  }
}

// Clipping (a gradient 1e4 times too large) and poison (NaN, infinity) at chosen steps.
inline double disturbed(int32_t step) {
  if (step == 3 || step == 4 || step == 17) return 1e4;
  if (step == 7) return std::numeric_limits<double>::quiet_NaN();
  if (step == 12) return std::numeric_limits<double>::infinity();
  return 1;
}

inline TrainerOptions disturbed_options() {
  TrainerOptions options = options_for(kSteps);
  options.optimizer.clip_norm = 50;  // only the disturbed steps clip
  options.gradient_factor = disturbed;
  return options;
}

// Parameters, losses, verdicts and norms of accepted steps, bit for bit.
inline void expect_same(const Outcome& outcome, const Outcome& reference, const std::string& what) {
  EXPECT_TRUE(same_bits(outcome.parameters, reference.parameters)) << what;
  ASSERT_EQ(outcome.records.size(), reference.records.size()) << what;
  for (size_t i = 0; i < outcome.records.size(); ++i) {
    const StepRecord& one = outcome.records[i];
    const StepRecord& other = reference.records[i];
    EXPECT_EQ(one.step, other.step) << what;
    EXPECT_TRUE(one.loss == other.loss || (std::isnan(one.loss) && std::isnan(other.loss)))
        << what << ", loss of step " << one.step;
    EXPECT_EQ(one.skipped, other.skipped) << what << ", step " << one.step;
    EXPECT_EQ(one.clipped, other.clipped) << what << ", step " << one.step;
    if (!one.skipped) {
      EXPECT_EQ(one.gradient_norm, other.gradient_norm) << what << ", step " << one.step;
    }
  }
}

// Of ranks that share data: each accumulates micro_batches / ranks sequences of 12 tokens.
inline Plan plan_of(int64_t ranks, int64_t micro_batches, int64_t zero_stage, SyncMode sync,
                    Homes homes, DType dtype) {
  Plan plan =
      waiting_plan({.sequences = micro_batches, .micro_batch = 1, .tokens = 12}, 2 * kSegment * 4);
  plan.dtype = dtype;
  plan.data = plan.devices = ranks;
  plan.zero_stage = zero_stage;
  plan.optimizer.sync = sync;
  set_homes(plan, homes);
  return plan;
}

inline std::string text_of(const Plan& plan) {
  return std::to_string(plan.data) + " ranks, " + std::to_string(plan.accumulation()) +
         " micro-batches each, ZeRO " + std::to_string(plan.zero_stage) + ", " +
         std::string(to_string(plan.optimizer.sync)) + ", " +
         std::string(to_string(plan.optimizer.placement)) + ", " +
         std::string(to_string(plan.optimizer.undo)) + ", " + std::string(to_string(plan.dtype));
}

// The greatest relative difference of a loss, where a product adds to the sum of earlier
// micro-batches in another order than ranks add their sums; verdicts and the first loss are equal.
inline double furthest_apart(const Outcome& ranks, const Outcome& alone) {
  double furthest = 0;
  EXPECT_EQ(ranks.records.size(), alone.records.size());
  EXPECT_EQ(ranks.records.front().loss, alone.records.front().loss);
  for (size_t i = 0; i < alone.records.size(); ++i) {
    EXPECT_EQ(ranks.records[i].skipped, alone.records[i].skipped) << i;
    EXPECT_EQ(ranks.records[i].clipped, alone.records[i].clipped) << i;
    const double loss = alone.records[i].loss;
    furthest = std::max(furthest, std::abs(ranks.records[i].loss / loss - 1));
  }
  EXPECT_LT(furthest, 1e-5);
  return furthest;
}

}  // namespace ballast::tiny
