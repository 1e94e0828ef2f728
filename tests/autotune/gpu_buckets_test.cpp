// How many buckets the GPU steps, held against every count.
#include "autotune/complete/gpu_buckets.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>

#include "autotune/complete/complete.h"
#include "autotune/complete/completion_lists.h"
#include "autotune/complete/layouts/open_layouts.h"
#include "profiles/load.h"
#include "sim/base/error.h"
#include "sim/engine/predict.h"
#include "sim/graph/build.h"
#include "tests/autotune/random_settings.h"

namespace ballast::tests {
namespace {

// A few layers of a model beside a CPU that takes longer than they do.
Setting offloading(const char* model, const char* machine, int64_t layers) {
  PlanRequest request;
  request.strategy = "superoffload";
  request.knobs[KnobId::kSequenceLength] = 2048;
  Setting setting = setting_of(model, layers, machine, request);
  setting.plan.global_batch = 2;
  setting.plan.optimizer.bucket_bytes = {int64_t{1} << 25};
  return setting;
}

struct Exhausted {
  std::optional<Duration> best, best_listed;
};

// Of every count from none to all, by the completions of a list that differ in nothing else.
Exhausted every_count(const Setting& setting) {
  Exhausted found;
  CompletionEstimates known;
  const auto offer = [](std::optional<Duration>& best, const std::optional<Duration>& time) {
    if (time && (!best || *time < *best)) best = time;
  };
  std::vector<Completion> kinds;
  int64_t most = 0;
  for (const std::vector<Completion>& group : completions_of(setup_of(setting))) {
    for (const Completion& completion : group) {
      most = std::max(most, *completion.plan.optimizer.gpu_buckets);
      offer(found.best_listed, known.step_time_if_fits(setting, completion));
      if (*completion.plan.optimizer.gpu_buckets == 0) kinds.push_back(completion);
    }
  }
  for (Completion completion : kinds) {
    for (int64_t count = 0; count <= most; ++count) {
      completion.plan.optimizer.gpu_buckets = count;
      offer(found.best, known.step_time_if_fits(setting, completion));
    }
  }
  return found;
}

void give_gpu_memory_for(Setting& setting, double share_of_state) {
  const double state = 18.0 * static_cast<double>(parameter_count(setting.model));
  setting.machine.gpu.memory.value =
      setting.machine.gpu.reserved.value + Bytes{std::llround(share_of_state * state)};
}

// A step is not smooth in the count, so that the best of all may be missed by a few percent (3.8 is
// the most here); never one of the list.
TEST(GpuBuckets, are_about_as_fast_as_the_best_of_all_counts) {
  int gained = 0;
  for (const char* machine : {"h100-sxm-80gb", "gh200-96gb-480gb"}) {
    for (const double share : {0.35, 0.5, 0.8}) {
      Setting setting = offloading("llama-3-8b", machine, 3);
      give_gpu_memory_for(setting, share);
      const Exhausted all = every_count(setting);
      if (!all.best) continue;
      const Completed chosen = complete(setting, nullptr);
      ASSERT_TRUE(chosen.prediction.fits) << machine << ' ' << share;
      const double best = all.best->seconds();
      EXPECT_LE(chosen.prediction.step_time.seconds(), 1.05 * best) << machine << ' ' << share;
      EXPECT_LE(chosen.prediction.step_time, *all.best_listed) << machine << ' ' << share;
      gained += *all.best_listed > chosen.prediction.step_time ? 1 : 0;
    }
  }
  EXPECT_GE(gained, 2);
}

TEST(GpuBuckets, that_are_named_stay) {
  Setting setting = offloading("llama-3-8b", "h100-sxm-80gb", 2);
  give_gpu_memory_for(setting, 0.6);
  setting.plan.optimizer.gpu_buckets = 3;
  EXPECT_EQ(complete(setting, nullptr).setting.plan.optimizer.gpu_buckets, 3);
  CompletionEstimates known;
  EXPECT_FALSE(faster_gpu_buckets(setting, {}, std::nullopt, known, {}));
}

// Of settings at random: lists and searches end with the buckets that a rank's graph has, else they
// ask about half of a model where ZeRO-3 or experts leave a rank an eighth of it.
TEST(GpuBuckets, are_at_most_those_of_a_ranks_graph) {
  Numbers numbers(20261125);
  int compared = 0, of_shards = 0, of_experts = 0;
  for (int i = 0; i < 40; ++i) {
    for (const OpenLayout& one : open_layouts_or_none(random_setting(numbers))) {
      const Setting& layout = one.setting;
      if (layout.plan.optimizer.placement != OptimizerPlacement::kCpu) continue;
      if (layout.plan.pipeline > 1) continue;
      const Completion completion = lean_completions(layout).front();
      const Graph graph = build_unplaced(layout.model, completion.plan, layout.stack.facts);
      EXPECT_EQ(most_gpu_buckets(setup_of(layout), layout.plan.zero_stage),
                std::ssize(graph.buckets))
          << name_of(layout);
      ++compared;
      of_shards += layout.plan.zero_stage == 3 && layout.plan.replicas() > 1 ? 1 : 0;
      of_experts += layout.plan.expert > 1 ? 1 : 0;
    }
  }
  EXPECT_GE(compared, 20);
  EXPECT_GE(of_shards, 5);
  EXPECT_GE(of_experts, 2);
}

// The GPU of a flowing plan may step any count but all, where nothing would be left to flow.
TEST(GpuBuckets, between_half_and_all_are_asked_about_where_weights_flow) {
  Setting setting = offloading("llama-3-8b", "h100-sxm-80gb", 3);
  give_gpu_memory_for(setting, 0.8);
  setting.plan.weights.flow_share = 1.0;
  const int64_t all = most_gpu_buckets(setup_of(setting), setting.plan.zero_stage);
  const Completed chosen = complete(setting, nullptr);
  ASSERT_TRUE(chosen.prediction.fits);
  EXPECT_GT(2 * *chosen.setting.plan.optimizer.gpu_buckets, all);
}

}  // namespace
}  // namespace ballast::tests
