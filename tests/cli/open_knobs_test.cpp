// What flags and --set leave a search to choose: that it keeps what is named, and refuses what it
// cannot keep.
#include "cli/flags/open_knobs.h"

#include <fmt/format.h>
#include <set>
#include <sstream>

#include "tests/cli/tune_bench.h"
#include "tests/spec/knob_values.h"

namespace ballast {
namespace {

// The value at a dotted path of a plan.
Json value_at(Json at, const std::string& key) {
  std::istringstream words(key);
  for (std::string word; std::getline(words, word, '.');) at = Json(at.at(word));
  return at;
}

struct GivenKnob {
  const char* key;
  const char* value;
};

// Each is another value than the one that the search of everything chooses here, or than the
// default, so that a search which does not keep it is seen.
TEST_F(Tune, knob_that_a_set_names_keeps_its_value_in_every_plan) {
  const GivenKnob settings[] = {{"micro_batch", "2"},
                                {"activations.fc1", "\"offload\""},
                                {"optimizer.bucket_bytes", "3145728"},
                                {"optimizer.gpu_buckets", "1"},
                                {"optimizer.cast", "\"cpu\""},
                                {"optimizer.cast", "\"gpu\""},
                                {"optimizer.sync", "\"wait\""},
                                {"optimizer.sync", "\"speculate\""},
                                {"optimizer.sync", "\"delay\""},
                                {"optimizer.undo", "\"snapshot\""},
                                {"optimizer.undo", "\"exact\""},
                                {"optimizer.placement", "\"cpu\""},
                                {"optimizer.placement", "\"gpu\""},
                                {"weights.flow_share", "0.5"},
                                {"tensor", "2"},
                                {"pipeline", "2"},
                                {"sequence", "2"},
                                {"context", "2"},
                                {"data", "2"},
                                {"tensor_sequence", "true"},
                                {"zero_stage", "1"},
                                {"memory_reuse", "\"apart\""},
                                {"memory_reuse", "\"at-once\""},
                                {"zero_stage", "3"}};
  for (const auto& [key, value] : settings) {
    const std::string set = std::string(key) + "=" + value;
    const Json json = tuned("--devices 4 --global-batch 8 --again --set 'plan." + set + "'");
    ASSERT_FALSE(json["ranked"].empty()) << set;
    for (const Json& one : json["ranked"]) {
      EXPECT_EQ(value_at(one["plan"], key), Json::parse(value)) << set;
    }
  }
}

// As a plan file says a value of a knob; of fates what the file names one by one.
std::string words_of(const Knob& knob, const KnobValue& value) {
  if (std::holds_alternative<std::string>(value)) return '"' + std::get<std::string>(value) + '"';
  const std::string text = text_of(knob, value);
  return knob.type == KnobType::kChoice ? '"' + text + '"' : text;
}

// Whatever is named, of every knob: the plan that is predicted has it, though the strategy leaves
// its layout open, or one line refuses it.
TEST_F(Tune, prediction_of_an_open_layout_keeps_every_knob_that_is_named) {
  int kept = 0, refused = 0;
  std::set<std::string> kept_of_a_pipeline;
  for (const Knob& knob : knobs()) {
    // Names and sizes of the question are flags of their own; groups are named by their members.
    const bool is_question = knob.group == KnobGroup::kNames || knob.type == KnobType::kGroup ||
                             knob.type == KnobType::kFates || knob.id == KnobId::kDevices;
    if (is_question) continue;
    for (const KnobValue& value : knob_tests::other_values(knob)) {
      const std::string words = words_of(knob, value);
      for (const char* degrees : {"", "--pipeline 2 "}) {
        if (*degrees != '\0' && knob.id == KnobId::kPipeline) continue;
        const Outcome outcome =
            bench.run(fmt::format("predict --model tiny.json --machine hgx-h200-quad --devices 4 "
                                  "--global-batch 8 --sequence-length 64 --strategy megatron {}"
                                  "--set 'plan.{}={}' --json",
                                  degrees, knob.path, words));
        if (outcome.code == 2) {
          EXPECT_EQ(outcome.lines(), 1) << outcome.output;
          ++refused;
          continue;
        }
        ASSERT_TRUE(outcome.code == 0 || outcome.code == 1) << outcome.output;
        const Json plan = Json::parse(outcome.output)["plan"];
        EXPECT_EQ(value_at(plan, std::string(knob.path)), Json::parse(words))
            << degrees << knob.path;
        ++kept;
        if (*degrees != '\0') kept_of_a_pipeline.emplace(knob.path);
      }
    }
  }
  EXPECT_GT(kept, 60);
  EXPECT_GT(refused, 10);
  EXPECT_TRUE(kept_of_a_pipeline.contains("optimizer.sync"));
  EXPECT_TRUE(kept_of_a_pipeline.contains("optimizer.gpu_buckets"));
}

TEST_F(Tune, what_cannot_be_kept_is_refused) {
  refuses("--devices 4 --set plan.data=3", {"4 devices", "data"});
  refuses("--devices 4 --pipeline 2 --set plan.optimizer.sync=speculate", {"pipeline", "sync"});
  refuses("--devices 4 --set plan.pipeline=2 --set plan.zero_stage=3", {"zero_stage"});
  refuses("--devices 1 --micro-batch 3", {"micro_batch", "3"});
}

// The plan to start from speculates, and of pipelines the search tries only what waits; that is for
// it to change.
TEST_F(Tune, flag_of_a_degree_leaves_knobs_that_go_with_it_to_the_search) {
  const Json json = tuned("--devices 4 --pipeline 2");
  for (const Json& one : json["ranked"]) EXPECT_EQ(one["plan"]["pipeline"], 2);
}

// A strategy keeps what it sets, whatever degrees are searched; what it opens may be chosen.
TEST(OpenKnobsOfFlags, of_a_strategy_is_what_it_opens_and_how_much_at_once) {
  PlanFlags flags;
  flags.strategies = {"zero-offload"};
  const OpenKnobsOfFlags named(flags, {});
  EXPECT_TRUE(named.knobs().has(KnobId::kMicroBatch) && named.knobs().has(KnobId::kActivations));
  EXPECT_FALSE(named.knobs().has(KnobId::kSync) || named.knobs().has(KnobId::kGpuBuckets) ||
               named.knobs().has(KnobId::kFlowShare));
  EXPECT_TRUE(named.knobs().has(KnobId::kTensor));
  EXPECT_FALSE(named.knobs().has(KnobId::kPlacement) || named.knobs().has(KnobId::kZeroStage));
  EXPECT_FALSE(OpenKnobsOfFlags(flags, {.degrees_of_named = false}).knobs().has(KnobId::kTensor));
  // Degrees that the strategy leaves to its users stay open all the same.
  flags.strategies = {"sppo"};
  const KnobSet layout = OpenKnobsOfFlags(flags, {.degrees_of_named = false}).knobs();
  EXPECT_TRUE(layout.has(KnobId::kSequence) && layout.has(KnobId::kPipeline) &&
              layout.has(KnobId::kSubsequences) && layout.has(KnobId::kZeroStage));
  EXPECT_FALSE(layout.has(KnobId::kTensor) || layout.has(KnobId::kContext));
  flags.strategies = {"megatron"};
  EXPECT_TRUE(OpenKnobsOfFlags(flags, {}).knobs().has(KnobId::kZeroStage));
  flags.set = {"plan.zero_stage=1"};
  EXPECT_FALSE(OpenKnobsOfFlags(flags, {}).knobs().has(KnobId::kZeroStage));
}

TEST(OpenKnobsOfFlags, of_a_plan_is_all_of_it_where_it_is_a_start) {
  PlanFlags flags;
  flags.plan_file = "plan.json";
  EXPECT_FALSE(OpenKnobsOfFlags(flags, {}).knobs().has(KnobId::kSync));
  EXPECT_TRUE(OpenKnobsOfFlags(flags, {.file_is_start = true}).knobs().has(KnobId::kSync));
  EXPECT_FALSE(OpenKnobsOfFlags(flags, {.file_is_start = true}).knobs().delay);
  EXPECT_TRUE(OpenKnobsOfFlags(flags, {.file_is_start = true, .delay = true}).knobs().delay);
}

// A key names what lies below it, and the whole that it is a part of.
TEST(OpenKnobsOfFlags, keeps_a_knob_that_is_named_in_whole_or_in_part) {
  const auto knobs = [](const std::string& set) {
    PlanFlags flags;
    flags.set = {set};
    return OpenKnobsOfFlags(flags, {}).knobs();
  };
  EXPECT_FALSE(knobs("plan.weights=stationary").has(KnobId::kFlowShare));
  EXPECT_FALSE(knobs("plan.activations.fc1=offload").has(KnobId::kActivations));
  EXPECT_TRUE(knobs("plan.weights.look_ahead=2").has(KnobId::kFlowShare));
  EXPECT_TRUE(knobs("machine.gpu.memory_gb=2").has(KnobId::kActivations));
  EXPECT_TRUE(knobs("plan.optimizer.cast=cpu").has(KnobId::kSync));
}

}  // namespace
}  // namespace ballast
