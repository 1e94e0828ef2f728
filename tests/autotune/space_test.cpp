#include "autotune/space/space.h"

#include <gtest/gtest.h>
#include <set>

#include "autotune/complete/complete.h"
#include "sim/graph/core/edit.h"
#include "tests/autotune/support.h"

namespace ballast::tests {
namespace {

TEST(Space, micro_batches_are_the_divisors_of_a_ranks_sequences) {
  Plan plan = auto_plan(24);
  plan.devices = plan.data = 2;  // 12 sequences on each
  const Space space = space_of(small_model(), plan, OpenKnobs{});
  EXPECT_EQ(space.micro_batch, (std::vector<int64_t>{1, 2, 3, 4, 6, 12}));
}

TEST(Space, knobs_with_a_value_keep_it_unless_they_are_freed) {
  const Space fixed = space_of(small_model(), fixed_plan(), OpenKnobs{});
  const std::vector<Choice> only = choices_of(fixed, fixed_plan());
  ASSERT_EQ(only.size(), 1U);
  EXPECT_EQ(plan_of(fixed, fixed_plan(), only.front()), fixed_plan());

  OpenKnobs cast;
  cast.add(KnobId::kCast);
  EXPECT_EQ(choices_of(space_of(small_model(), fixed_plan(), cast), fixed_plan()).size(), 2U);
}

TEST(Space, every_choice_is_a_legal_plan_without_auto_knobs) {
  const Plan base = auto_plan();
  const Space space = space_of(small_model(), base, OpenKnobs::all());
  for (const Choice& choice : choices_of(space, base)) {
    const Plan plan = plan_of(space, base, choice);
    ASSERT_NO_THROW(check(plan, small_model()));
    ASSERT_FALSE(has_auto(plan));
  }
}

TEST(Space, no_two_choices_are_the_same_plan) {
  const Plan base = auto_plan();
  const Space space = space_of(small_model(), base, OpenKnobs::all());
  const std::vector<Choice> choices = choices_of(space, base);
  const std::set<Choice> distinct(choices.begin(), choices.end());
  EXPECT_EQ(distinct.size(), choices.size());
  EXPECT_TRUE(std::is_sorted(choices.begin(), choices.end()));
}

TEST(Space, nothing_is_cast_elsewhere_or_flows_where_every_bucket_steps_on_the_gpu) {
  const Plan base = auto_plan();
  const Space space = space_of(small_model(), base, OpenKnobs::all());
  std::set<std::pair<int16_t, int16_t>> seen;  // cast and flow share of all on the GPU
  for (const Choice& choice : choices_of(space, base)) {
    const BucketChoice& bucket = space.buckets[static_cast<size_t>(choice.bucket)];
    const auto k = static_cast<size_t>(choice.gpu_buckets);
    if (bucket.gpu_buckets[k] == bucket.count) seen.emplace(choice.cast, choice.flow_share);
  }
  EXPECT_EQ(seen, (std::set<std::pair<int16_t, int16_t>>{{0, 0}}));
}

TEST(Space, flow_shares_that_move_the_same_modules_are_one_value) {
  const Plan base = auto_plan();
  const Space space = space_of(small_model(), base, OpenKnobs::all());
  const std::vector<Module> modules = modules_of(small_model());
  for (const BucketChoice& bucket : space.buckets) {
    for (size_t k = 0; k < bucket.gpu_buckets.size(); ++k) {
      Plan plan = base;
      plan.optimizer.bucket_bytes = bucket.bytes;
      plan.optimizer.gpu_buckets = bucket.gpu_buckets[k];
      Graph graph;
      graph.modules = modules;
      graph.buckets = buckets_of(modules, plan.optimizer);
      std::set<std::vector<bool>> moved;
      for (const int16_t share : bucket.flow_shares[k]) {
        plan.weights.flow_share = space.flow_share[static_cast<size_t>(share)];
        EXPECT_TRUE(moved.insert(flowing_modules(graph, plan)).second);
      }
    }
  }
}

TEST(Space, layer_inputs_are_never_recomputed) {
  const Space space = space_of(small_model(), auto_plan(), OpenKnobs{});
  for (const ActivationChoice& choice : space.activations) {
    EXPECT_NE(choice.plan.fate[static_cast<size_t>(ModuleKind::kFc2)], ActivationFate::kRecompute);
  }
}

TEST(Space, a_model_of_one_layer_has_nothing_to_offload) {
  Model model = small_model();
  model.layers = 1;
  for (const ActivationChoice& choice : space_of(model, auto_plan(), OpenKnobs{}).activations) {
    Plan plan;
    plan.activations = choice.plan;
    EXPECT_FALSE(has_fate(plan, ActivationFate::kOffload)) << choice.name;
  }
}

// Segments of 64 Ki values into 256 Ki: each of four layers (197 thousand) fills a bucket, and the
// first segment of the embedding a fifth. Into 512 Ki: two. Into 1024 Ki: all 862 thousand in one.
TEST(Space, bucket_sizes_each_cut_the_model_into_another_number_of_buckets) {
  OpenKnobs open;
  open.add(KnobId::kBucketBytes);
  const Space space = space_of(small_model(), auto_plan(), open);
  ASSERT_EQ(space.buckets.size(), 3U);
  EXPECT_EQ(space.buckets[0].bytes.count, 1 << 20);
  EXPECT_EQ(space.buckets[0].count, 5);
  EXPECT_EQ(space.buckets[1].count, 2);
  EXPECT_EQ(space.buckets[2].bytes.count, 4 << 20);
  EXPECT_EQ(space.buckets[2].count, 1);
}

TEST(Space, delay_is_tried_only_where_it_is_allowed) {
  const auto has_delay = [](const Space& space) {
    for (const SyncChoice& choice : space.sync) {
      if (choice.mode == SyncMode::kDelay) return true;
    }
    return false;
  };
  OpenKnobs open = OpenKnobs::all();
  EXPECT_FALSE(has_delay(space_of(small_model(), auto_plan(), open)));
  open.delay = true;
  EXPECT_TRUE(has_delay(space_of(small_model(), auto_plan(), open)));
}

TEST(Space, what_to_undo_matters_only_where_something_speculates) {
  const Space space = space_of(small_model(), auto_plan(), OpenKnobs::all());
  ASSERT_EQ(space.sync.size(), 3U);  // wait, speculate with either undo
  EXPECT_EQ(space.sync[0].mode, SyncMode::kWait);
  EXPECT_NE(space.sync[1].undo, space.sync[2].undo);
}

TEST(MovingParts, a_resident_step_has_none_and_each_mechanism_adds_one) {
  Plan plan = fixed_plan();
  EXPECT_EQ(moving_parts(plan), 0);
  plan.micro_batch = 2;  // two micro-batches
  EXPECT_EQ(moving_parts(plan), 1);
  plan.weights.flow_share = 0.5;
  plan.optimizer.gpu_buckets = 1;
  plan.optimizer.sync = SyncMode::kSpeculate;
  EXPECT_EQ(moving_parts(plan), 4);
  plan.activations->fate[static_cast<size_t>(ModuleKind::kQkv)] = ActivationFate::kOffload;
  plan.activations->fate[static_cast<size_t>(ModuleKind::kNorm1)] = ActivationFate::kRecompute;
  plan.activations->offload_share = 0.5;
  EXPECT_EQ(moving_parts(plan), 7);
}

}  // namespace
}  // namespace ballast::tests
