// Every knob of a plan, taken away from its default on the host device: the training has the bits
// of the reference, or it changes by intent and agrees with a plain loop (plain_loop.h), or the
// knob is refused in one line that names what is missing. Nothing is skipped.
#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "profiles/load.h"
#include "tests/backend/plain_loop.h"
#include "tests/backend/tiny_training.h"
#include "tests/backend/tried_knobs.h"

namespace ballast {
namespace {

using tiny::plan_of_strategy;
using tiny::speculating_plan;
using tiny::Tried;
using tiny::tried_knobs;
using tiny::waiting_plan;
using tiny::with_knob;

// Instrumented code takes ten times as long, and strays show at once.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int64_t kSteps = 4;
#else
constexpr int64_t kSteps = 20;
#endif

// Keys of a plan file, those of its groups dotted.
void collect(const nlohmann::json& group, const std::string& before, std::set<std::string>& keys) {
  for (const auto& item : group.items()) {
    const std::string path = before + item.key();
    if (item.value().is_object()) {
      collect(item.value(), path + ".", keys);
    } else if (path != "schema") {
      keys.insert(path);
    }
  }
}

TEST(knobs, every_key_of_a_plan_file_is_tried) {
  std::set<std::string> keys;
  collect(nlohmann::json::parse(plan_json(waiting_plan())), "", keys);
  std::set<std::string> tried;
  for (const Tried& knob : tried_knobs()) tried.insert(knob.path);
  EXPECT_EQ(tried, keys);
}

enum class Outcome : uint8_t { kSameBits, kPlainLoop, kRefused, kWrong };

class Trials {
 public:
  Outcome of(const Plan& base, const Tried& knob, const std::string& value) {
    Plan plan = base;
    try {
      plan = with_knob(base, knob, value);
      Trainer trainer(model_, plan, options_);
      trainer.train(kSteps, nullptr);
      return judged(plan, trainer.parameters());
    } catch (const Error& error) {
      return refused(knob, error.what());
    }
  }

 private:
  Outcome judged(const Plan& plan, const std::vector<float>& parameters) {
    if (tiny::same_bits(parameters, reference())) return Outcome::kSameBits;
    if (tiny::same_bits(parameters, tiny::plain_loop(model_, plan, options_, kSteps))) {
      return Outcome::kPlainLoop;
    }
    return Outcome::kWrong;
  }

  // In one line, that says which knob: by its last word, or that of the one it contradicts.
  static Outcome refused(const Tried& knob, const std::string& message) {
    const std::string own = knob.path.substr(knob.path.find('.') + 1);
    const bool one_line = message.find('\n') == std::string::npos;
    bool says_why = false;
    for (const std::string& word : {own, std::string("devices"), std::string("optimizer.sync")}) {
      says_why = says_why || message.find(word) != std::string::npos;
    }
    EXPECT_TRUE(one_line && says_why) << knob.path << ": " << message;
    return one_line && says_why ? Outcome::kRefused : Outcome::kWrong;
  }

  const std::vector<float>& reference() {
    if (reference_.empty()) {
      reference_ = tiny::train(model_, tiny::wait_plan(), options_, kSteps, true).parameters;
    }
    return reference_;
  }

  Model model_ = tiny::gpt2_model();
  TrainerOptions options_ = tiny::options_for(kSteps);
  std::vector<float> reference_;
};

TEST(knobs, the_plain_loop_has_the_bits_of_the_reference) {
  const TrainerOptions options = tiny::options_for(kSteps);
  for (const Model& model : {tiny::gpt2_model(), tiny::llama_model()}) {
    const Plan plan = tiny::wait_plan();
    const tiny::Outcome reference = tiny::train(model, plan, options, kSteps, true);
    EXPECT_TRUE(
        tiny::same_bits(reference.parameters, tiny::plain_loop(model, plan, options, kSteps)))
        << model.name;
  }
}

// What a plan may change of the arithmetic.
bool changes_arithmetic(const std::string& path) {
  const std::set<std::string> knobs = {"global_batch", "micro_batch",    "sequence_length",
                                       "dtype",        "optimizer.sync", "optimizer.moments"};
  return knobs.contains(path);
}

TEST(knobs, each_away_from_its_default_trains_the_same_or_agrees_or_is_refused) {
  Trials trials;
  std::map<Outcome, int> counts;
  for (const Plan& base : {waiting_plan(), speculating_plan()}) {
    for (const Tried& knob : tried_knobs()) {
      for (const std::string& value : knob.values) {
        const Outcome outcome = trials.of(base, knob, value);
        ++counts[outcome];
        const std::string what =
            knob.path + "=" + value + " under " + std::string(to_string(base.optimizer.sync));
        EXPECT_NE(outcome, Outcome::kWrong) << what;
        if (outcome == Outcome::kPlainLoop) {
          EXPECT_TRUE(changes_arithmetic(knob.path)) << what;
        }
      }
    }
  }
  std::printf(
      "knobs away from their defaults: %d train with the bits of the reference, %d agree "
      "with the plain loop, %d are refused in one line, %d are wrong\n",
      counts[Outcome::kSameBits], counts[Outcome::kPlainLoop], counts[Outcome::kRefused],
      counts[Outcome::kWrong]);
  EXPECT_GT(counts[Outcome::kSameBits], 0);
  EXPECT_GT(counts[Outcome::kPlainLoop], 0);
  EXPECT_GT(counts[Outcome::kRefused], 0);
}

TEST(strategies, each_that_is_shipped_trains_on_one_device_whatever_its_buckets) {
  const Model model = tiny::gpt2_model();
  const TrainerOptions options = tiny::options_for(kSteps);
  const tiny::Outcome reference = tiny::train(model, tiny::wait_plan(), options, kSteps, true);
  const std::vector<Shipped> strategies = shipped_strategies();
  ASSERT_GE(strategies.size(), 15u);
  for (const Shipped& strategy : strategies) {
    for (const int64_t bucket_bytes : {int64_t{1}, 2 * kSegment * 4, int64_t{1} << 30}) {
      const Plan plan = plan_of_strategy(strategy.name, bucket_bytes);
      const tiny::Outcome outcome = tiny::train(model, plan, options, kSteps, false);
      const bool delays = plan.optimizer.sync == SyncMode::kDelay;
      EXPECT_TRUE(tiny::same_bits(
          outcome.parameters,
          delays ? tiny::plain_loop(model, plan, options, kSteps) : reference.parameters))
          << strategy.name << ", buckets of " << bucket_bytes << " bytes";
    }
  }
}

}  // namespace
}  // namespace ballast
