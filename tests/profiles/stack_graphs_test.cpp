// Every framework that is shipped makes a graph of whatever may be planned, and so does any that a
// stack's file may tell of: a fact that one pass knows of reaches plans and facts that nobody
// thought of when it was written.
#include <gtest/gtest.h>
#include <random>

#include "profiles/load.h"
#include "sim/base/error.h"
#include "sim/graph/build.h"
#include "tests/tiny.h"

namespace ballast {
namespace {

constexpr int kPlans = 400;

class RandomPlans {
 public:
  Plan next() {
    Plan plan = tiny::waiting_plan({}, 1);
    plan.tensor = one_of({1, 2});
    plan.pipeline = one_of({1, 1, 2});
    plan.data = one_of({1, 2, 4});
    plan.devices = plan.tensor * plan.pipeline * plan.data;
    plan.zero_stage = one_of({0, 1, 2, 3});
    plan.micro_batch = 1;
    plan.global_batch = plan.data * one_of({1, 2, 3});
    plan.dtype = one_of({DType::kBf16, DType::kF16, DType::kF32});
    plan.gradients = one_of({GradientFormat::kAsWeights, GradientFormat::kF32});
    plan.weights.flow_share = one_of({0.0, 0.5, 1.0});
    OptimizerPlan& optimizer = plan.optimizer;
    optimizer.placement = one_of({OptimizerPlacement::kCpu, OptimizerPlacement::kCpu,
                                  OptimizerPlacement::kGpu, OptimizerPlacement::kNvme});
    optimizer.sync = one_of({SyncMode::kWait, SyncMode::kDelay, SyncMode::kSpeculate});
    optimizer.cast = one_of({CastPlacement::kCpu, CastPlacement::kGpu});
    optimizer.undo = one_of({UndoKind::kSnapshot, UndoKind::kExact});
    optimizer.gpu_buckets = one_of({0, 2});
    return plan;
  }

  template <class Value>
  Value one_of(std::initializer_list<Value> values) {
    return values.begin()[random_() % values.size()];
  }

 private:
  std::mt19937 random_{20261129};
};

// The facts of a shipped framework, some of its flags turned. The attention kernels stay.
StackFacts turned(const StackFacts& facts, RandomPlans& plans) {
  StackFacts all = facts;
  all.where_offloaded = {};
  for (bool StackFacts::* flag : {&StackFacts::widens_gradients,
                                  &StackFacts::returns_weights_whole,
                                  &StackFacts::sends_wide_gradients,
                                  &StackFacts::stage3_returns_gradients,
                                  &StackFacts::casts_through_pageable,
                                  &StackFacts::stage3_copies_by_tensor,
                                  &StackFacts::accumulates_on_cpu,
                                  &StackFacts::separate_unscale,
                                  &StackFacts::copies_gradients_to_buckets,
                                  &StackFacts::buckets_at_stage_0_alone,
                                  &StackFacts::pure_16_bit,
                                  &StackFacts::adds_gradients_apart,
                                  &StackFacts::sums_whole_gradients,
                                  &StackFacts::reduces_whole,
                                  &StackFacts::copies_gathered_by_tensor,
                                  &StackFacts::broadcasts_shares,
                                  &StackFacts::keeps_gradient_buffer,
                                  &StackFacts::holds_sent_gradients,
                                  &StackFacts::undoes_by_arithmetic,
                                  &StackFacts::scatters_by_bucket}) {
    if (plans.one_of({false, false, true})) all.*flag = !(all.*flag);
  }
  all.stage3_sending =
      plans.one_of({Stage3Sending::kAhead, Stage3Sending::kWaited, Stage3Sending::kCastByHost});
  all.speculative_sending = plans.one_of(
      {SpeculativeSending::kAsWaiting, SpeculativeSending::kWaited, SpeculativeSending::kTwice});
  all.sent_overflow_bytes = plans.one_of({0, 36});
  all.step_copy_bytes = plans.one_of({0, 8});
  all.gradients = plans.one_of({GradientPrecision::kAsWeights, GradientPrecision::kF32});
  all.reduction = plans.one_of({GradientPrecision::kAsWeights, GradientPrecision::kF32});
  all.gradient_overlap = plans.one_of({Overlap::kFull, Overlap::kNone});
  all.weight_overlap = plans.one_of({Overlap::kFull, Overlap::kPartial, Overlap::kNone});
  return all;
}

// How many of so many random plans make a graph, which is verified there; the others may not be
// planned. `facts_of_plan`: of each, its own.
template <class Facts>
int built(int tries, RandomPlans& plans, const Facts& facts_of_plan) {
  const Model models[] = {tiny::llama({}), tiny::gpt2({})};
  int found = 0;
  for (int i = 0; i < tries; ++i) {
    const Plan plan = plans.next();
    const StackFacts facts = facts_of_plan();
    try {
      const Model& model = models[i % 2];
      check(plan, model);
      EXPECT_FALSE(build(model, plan, facts).step.ops.empty());
      ++found;
    } catch (const Error&) {
    }
  }
  return found;
}

TEST(stack_graphs, any_facts_make_a_graph_of_what_may_be_planned) {
  const Stack stack = load_stack("deepspeed-2025");
  RandomPlans plans;
  EXPECT_GT(built(20 * kPlans, plans, [&] { return turned(stack.facts, plans); }), 5 * kPlans);
}

TEST(stack_graphs, every_framework_makes_a_graph_of_what_may_be_planned) {
  for (const Shipped& shipped : shipped_stacks()) {
    SCOPED_TRACE(shipped.name);
    const Stack stack = load_stack(shipped.name);
    RandomPlans plans;
    EXPECT_GT(built(kPlans, plans, [&] { return stack.facts; }), kPlans / 4);
  }
}

}  // namespace
}  // namespace ballast
