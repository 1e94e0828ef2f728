// Every knob of a plan, taken away from its default on the host device: the training has the bits
// of the reference, or it changes by intent and agrees with a plain loop (plain_loop.h), or the
// knob is refused in one line that names what is missing. Nothing is skipped.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <map>
#include <string>
#include <vector>

#include "profiles/load.h"
#include "tests/backend/changed_plans.h"
#include "tests/backend/plain_loop.h"
#include "tests/backend/tiny_training.h"

namespace ballast {
namespace {

using tiny::for_every_change;
using tiny::pipelined_plan;
using tiny::plan_of_strategy;
using tiny::speculating_plan;
using tiny::waiting_plan;

// Instrumented code takes ten times as long, and strays show at once.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int64_t kKnobSteps = 4;
#else
constexpr int64_t kKnobSteps = 20;
#endif
// Of each newer family, over which every knob is tried again.
constexpr int64_t kFewSteps = 4;

enum class Outcome : uint8_t { kSameBits, kPlainLoop, kNear, kRefused, kWrong };

class Trials {
 public:
  Trials(Model model, int64_t steps)
      : model_(std::move(model)), steps_(steps), options_(tiny::options_for(steps)) {}

  Outcome of(const Plan& plan, const std::string& what) {
    try {
      Trainer trainer(model_, plan, options_);
      trainer.train(steps_, nullptr);
      return judged(plan, trainer.parameters());
    } catch (const Error& error) {
      const Outcome outcome = refused(error.what());
      EXPECT_EQ(outcome, Outcome::kRefused) << what << ": " << error.what();
      return outcome;
    }
  }

 private:
  Outcome judged(const Plan& plan, const std::vector<float>& parameters) {
    if (tiny::same_bits(parameters, reference())) return Outcome::kSameBits;
    const bool of_stages = plan.pipeline > 1;
    if (of_stages && tiny::same_bits(parameters, reference_of_stages())) return Outcome::kPlainLoop;
    if (tiny::same_bits(parameters, tiny::plain_loop(model_, plan, options_, steps_))) {
      return Outcome::kPlainLoop;
    }
    const bool splits = plan.tensor * plan.sequence * plan.context * plan.expert > 1;
    const bool of_pipelines = plan.data > 1 && plan.pipeline > 1;
    return (splits || of_pipelines) && is_near(plan) ? Outcome::kNear : Outcome::kWrong;
  }

  // Ranks that split products or sequences, or share experts, sum in another order
  // (split_ranks_test.cpp and expert_ranks_test.cpp have the tolerances of a gentler training): in
  // fp32 parameters stay near those of one rank.
  bool is_near(Plan plan) {
    plan.dtype = DType::kF32;
    const std::vector<float> parameters =
        tiny::train(model_, plan, options_, steps_, false).parameters;
    plan.data = plan.tensor = plan.sequence = plan.context = plan.pipeline = plan.devices = 1;
    plan.expert = 1;
    const std::vector<float> alone = tiny::plain_loop(model_, plan, options_, steps_);
    double largest = 0;
    double furthest = 0;
    for (size_t i = 0; i < alone.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(alone[i])));
      furthest = std::max(furthest, std::abs(static_cast<double>(parameters[i] - alone[i])));
    }
    return furthest < 1e-3 * largest;
  }

  // In one line that begins with a knob of the table: "plan, devices: ...", of a plan that
  // contradicts itself or its model; "plan.devices: ...", of what the device does not have. Or with
  // the data, of which a plan may ask for more than there is.
  Outcome refused(const std::string& message) const {
    const std::string where = message.substr(0, message.find(':'));
    const std::string plan = "plan";
    const bool is_plan = where.starts_with(plan + ", ") || where.starts_with(plan + ".");
    const size_t begin = where.find_first_not_of("., ", plan.size());
    const bool names_a_knob =
        is_plan && begin != std::string::npos && find_knob(where.substr(begin)) != nullptr;
    const bool one_line = message.find('\n') == std::string::npos;
    const bool names_the_data = where == options_.data.substr(0, options_.data.find(':'));
    return one_line && (names_a_knob || names_the_data) ? Outcome::kRefused : Outcome::kWrong;
  }

  const std::vector<float>& reference() {
    if (reference_.empty()) {
      reference_ = tiny::train(model_, tiny::wait_plan(), options_, steps_, true).parameters;
    }
    return reference_;
  }

  // The plain loop that sums a tied embedding's gradient stage by stage.
  const std::vector<float>& reference_of_stages() {
    if (reference_of_stages_.empty()) {
      Plan plan = tiny::wait_plan();
      plan.pipeline = plan.devices = 2;
      reference_of_stages_ = tiny::plain_loop(model_, plan, options_, steps_);
    }
    return reference_of_stages_;
  }

  Model model_;
  int64_t steps_;
  TrainerOptions options_;
  std::vector<float> reference_, reference_of_stages_;
};

TEST(knobs, the_plain_loop_has_the_bits_of_the_reference) {
  const TrainerOptions options = tiny::options_for(kKnobSteps);
  std::vector<Model> models = tiny::newer_models();
  models.push_back(tiny::gpt2_model());
  models.push_back(tiny::llama_model());
  for (const Model& model : models) {
    for (const DType dtype : {DType::kBf16, DType::kF32}) {
      const Plan plan = tiny::wait_plan(dtype);
      const tiny::Outcome reference = tiny::train(model, plan, options, kKnobSteps, true);
      EXPECT_TRUE(
          tiny::same_bits(reference.parameters, tiny::plain_loop(model, plan, options, kKnobSteps)))
          << model.name << " in " << to_string(dtype);
    }
  }
}

// Every knob at every value that is tried, under three plans.
void try_every_knob(Trials trials, const std::string& model) {
  const KnobSet changes_arithmetic = {
      KnobId::kGlobalBatch, KnobId::kMicroBatch, KnobId::kSequenceLength, KnobId::kDtype,
      KnobId::kSync,        KnobId::kMoments,    KnobId::kData,           KnobId::kDevices,
      KnobId::kGradients,   KnobId::kLossChunks};
  std::map<Outcome, int> counts;
  std::map<KnobId, int> tried;
  for (const Plan& base : {waiting_plan(), speculating_plan(), pipelined_plan()}) {
    for_every_change(base, [&](const Knob& knob, const Plan& plan, const std::string& change) {
      const std::string what = model + ", " + change + " under " +
                               std::string(to_string(base.optimizer.sync)) + ", " +
                               std::to_string(base.pipeline) + " stages";
      const Outcome outcome = trials.of(plan, what);
      ++counts[outcome];
      ++tried[knob.id];
      EXPECT_NE(outcome, Outcome::kWrong) << what;
      // The plain loop sums a tied embedding's gradients as two stages do.
      if (outcome == Outcome::kPlainLoop && plan.pipeline == 1) {
        EXPECT_TRUE(changes_arithmetic.has(knob.id)) << what;
      }
    });
  }
  std::printf(
      "%s, %zu knobs away from their defaults, 0 skipped: %d plans train with the bits of the "
      "reference, %d agree with the plain loop, %d are near it, %d are refused in one line, %d are "
      "wrong\n",
      model.c_str(), tried.size(), counts[Outcome::kSameBits], counts[Outcome::kPlainLoop],
      counts[Outcome::kNear], counts[Outcome::kRefused], counts[Outcome::kWrong]);
  EXPECT_EQ(tried.size(), knobs().size());
  EXPECT_GT(counts[Outcome::kSameBits], 0);
  EXPECT_GT(counts[Outcome::kPlainLoop], 0);
  EXPECT_GT(counts[Outcome::kRefused], 0);
}

TEST(knobs, each_away_from_its_default_trains_the_same_or_agrees_or_is_refused) {
  const Model model = tiny::gpt2_model();
  try_every_knob(Trials(model, kKnobSteps), model.name);
}

TEST(knobs, each_does_so_for_norms_of_heads_and_for_experts) {
  for (const Model& model : tiny::newer_models()) {
    try_every_knob(Trials(model, kFewSteps), model.name);
  }
}

TEST(strategies, each_that_is_shipped_trains_on_one_device_whatever_its_buckets) {
  const Model model = tiny::gpt2_model();
  const TrainerOptions options = tiny::options_for(kKnobSteps);
  const tiny::Outcome reference = tiny::train(model, tiny::wait_plan(), options, kKnobSteps, true);
  const std::vector<Shipped> strategies = shipped_strategies();
  ASSERT_GE(strategies.size(), 15u);
  for (const Shipped& strategy : strategies) {
    for (const int64_t bucket_bytes : {int64_t{1}, 2 * kSegment * 4, int64_t{1} << 30}) {
      const Plan plan = plan_of_strategy(strategy.name, bucket_bytes);
      const tiny::Outcome outcome = tiny::train(model, plan, options, kKnobSteps, false);
      const bool delays = plan.optimizer.sync == SyncMode::kDelay;
      EXPECT_TRUE(tiny::same_bits(
          outcome.parameters,
          delays ? tiny::plain_loop(model, plan, options, kKnobSteps) : reference.parameters))
          << strategy.name << ", buckets of " << bucket_bytes << " bytes";
    }
  }
}

}  // namespace
}  // namespace ballast
