// The host that enqueues kernels ahead of the GPU, on programs whose steps can be written down.
#include "sim/engine/clock/host_queue.h"

#include <gtest/gtest.h>
#include <map>

#include "sim/engine/engine.h"
#include "sim/engine/kernels.h"
#include "tests/engine/costed.h"
#include "tests/engine/tiny_graph.h"
#include "tests/engine/tiny_machine.h"

namespace ballast {
namespace {

using tests::span_of;
using tests::TinyGraph;

constexpr SimulateOptions kOneStep{.max_steps = 1, .record_steps = 1};
constexpr int64_t kHost = 10;

Timeline run_step(const TinyGraph& tiny, const SimulateOptions& options = {}) {
  return simulate(tiny.graph.step, tiny.graph, tiny.costs, options);
}

// An operation of `kernels` kernels, each of which takes kHost.
OpId enqueued(TinyGraph& tiny, int64_t ps, int64_t kernels = 1, int device = 0,
              std::initializer_list<Edge> edges = {}) {
  const OpId op = tiny.op_on(device, LaneKind::kCompute, ps, edges);
  tiny.costs.ops.kinds().back().host = {kHost * kernels};
  tiny.costs.ops.kinds().back().host_first = {kHost};
  return op;
}

OpId decision(TinyGraph& tiny, OpId after) {
  const OpId op = tiny.op(LaneKind::kCheck, 0, {{after, 0}});
  tiny.costs.ops.kinds().back().host_waits = HostWait::kOfEveryDevice;
  return op;
}

// 50 kernels of 1 take as long as the host takes for them.
TEST(HostQueue, a_step_of_short_kernels_lasts_as_long_as_its_host) {
  TinyGraph tiny;
  for (int i = 0; i < 50; ++i) enqueued(tiny, 1);
  EXPECT_EQ(run_step(tiny).step_time.ps, 50 * kHost);
}

// Beside long ones a short kernel costs what it takes itself: 100 + 1 + 100.
TEST(HostQueue, a_host_that_is_ahead_costs_nothing) {
  TinyGraph tiny;
  for (const int64_t ps : {100, 1, 100}) enqueued(tiny, ps);
  EXPECT_EQ(run_step(tiny).step_time.ps, 201);
  const Timeline first = run_step(tiny, kOneStep);
  EXPECT_EQ(span_of(first, 0, 0).begin.ps, kHost) << "nothing runs before it was enqueued";
}

// It gets further ahead with every step, which changes nothing of the next one: two are run. What
// it holds up in the first does not come again.
TEST(HostQueue, a_host_that_gets_ahead_lets_steps_be_folded) {
  TinyGraph tiny;
  for (const int64_t ps : {100, 1, 100}) enqueued(tiny, ps);
  const Timeline folded = run_step(tiny, {.max_steps = 8});
  EXPECT_EQ(folded.run, 2);
  const Timeline whole = run_step(tiny, {.max_steps = 8, .fold = false});
  EXPECT_EQ(whole.run, 4);
  EXPECT_EQ(folded.step_time, whole.step_time);
  EXPECT_EQ(span_of(folded, 2, 3).end, span_of(whole, 2, 3).end);
}

// The first step waits 10 for its first kernel, and the host takes 80 of the 107 of each: what it
// held up then is no part of the step that is taken for all later ones.
TEST(HostQueue, what_a_host_holds_up_at_first_does_not_come_again) {
  TinyGraph tiny;
  enqueued(tiny, 100);
  for (int i = 0; i < 7; ++i) enqueued(tiny, 1);
  const Timeline folded = run_step(tiny, {.max_steps = 16});
  const Timeline whole = run_step(tiny, {.max_steps = 16, .fold = false});
  EXPECT_EQ(whole.step_time.ps, 107);
  EXPECT_EQ(folded.step_time, whole.step_time);
  EXPECT_EQ(folded.first_step, whole.first_step);
}

// The host is ahead by what the long kernel before gave it, and no more: of 20 short ones behind a
// kernel of 100 the first nine are enqueued while it runs. In the long run the host decides.
TEST(HostQueue, what_a_long_kernel_hides_is_its_own_length) {
  TinyGraph tiny;
  enqueued(tiny, 100);
  for (int i = 0; i < 20; ++i) enqueued(tiny, 1);
  const Timeline first = run_step(tiny, kOneStep);
  EXPECT_EQ(span_of(first, 9, 0).begin.ps, 110 + 8);
  EXPECT_EQ(span_of(first, 20, 0).begin.ps, 21 * kHost);
  EXPECT_EQ(run_step(tiny).step_time.ps, 21 * kHost);
}

// Four kernels are enqueued at 40, and the operation, of 5 in all, does not end before.
TEST(HostQueue, an_operation_of_many_kernels_ends_no_sooner_than_its_last_is_enqueued) {
  TinyGraph tiny;
  enqueued(tiny, 5, 4);
  const Timeline once = run_step(tiny, kOneStep);
  EXPECT_EQ(span_of(once, 0, 0).begin.ps, 35);
  EXPECT_EQ(span_of(once, 0, 0).end.ps, 40);
}

// Forward 100, the verdict on its norms, and a step of 100 that the host enqueues only then; the
// next forward is enqueued while that one runs.
TEST(HostQueue, the_gpu_runs_dry_where_the_host_waits_for_a_result) {
  TinyGraph tiny;
  const OpId forward = enqueued(tiny, 100);
  const OpId decide = decision(tiny, forward);
  const OpId step = enqueued(tiny, 100, 1, 0, {{decide, 0}});
  const Timeline timeline = run_step(tiny);
  EXPECT_EQ(timeline.step_time.ps, 100 + kHost + 100);
  const int32_t last = timeline.first_step;
  EXPECT_EQ((span_of(timeline, step, last).begin - span_of(timeline, forward, last).end).ps, kHost);
}

// A wait is one of all hosts: each enqueues for its own device, and both wait for the verdict.
TEST(HostQueue, every_device_has_a_host_and_all_wait_for_a_verdict) {
  TinyGraph tiny(2);
  const OpId first = enqueued(tiny, 100, 1, 0);
  for (int i = 0; i < 5; ++i) enqueued(tiny, 1, 1, 1);
  const OpId decide = decision(tiny, first);
  const OpId a = enqueued(tiny, 1, 1, 0, {{decide, 0}});
  const OpId b = enqueued(tiny, 1, 2, 1, {{decide, 0}});
  const Timeline once = run_step(tiny, kOneStep);
  EXPECT_EQ(span_of(once, 5, 0).begin.ps, 5 * kHost) << "beside the other device";
  EXPECT_EQ(span_of(once, a, 0).begin.ps, 110 + kHost);
  EXPECT_EQ(span_of(once, b, 0).end.ps, 110 + 2 * kHost);
}

// What only its own host reads keeps no other from going on: the first device's kernels behind its
// long one are enqueued when that is done, those of the second meanwhile.
TEST(HostQueue, a_host_that_waits_for_a_result_of_its_own_waits_alone) {
  TinyGraph tiny(2);
  const OpId routing = enqueued(tiny, 100, 1, 0);
  tiny.costs.ops.kinds().back().host_waits = HostWait::kOfItsDevice;
  const OpId own = enqueued(tiny, 1, 2, 0);
  const OpId other = enqueued(tiny, 1, 3, 1);
  const OpId decide = decision(tiny, other);
  const OpId after = enqueued(tiny, 1, 1, 0, {{decide, 0}});
  const OpId beside = enqueued(tiny, 1, 1, 1, {{decide, 0}});
  const Timeline once = run_step(tiny, kOneStep);
  EXPECT_EQ(span_of(once, routing, 0).end.ps, 110);
  EXPECT_EQ(span_of(once, own, 0).end.ps, 110 + 2 * kHost);
  EXPECT_EQ(span_of(once, other, 0).end.ps, 3 * kHost);
  // The first host comes to the verdict when it has enqueued those two, and both go on from there.
  EXPECT_EQ(span_of(once, beside, 0).begin.ps, 110 + 3 * kHost);
  EXPECT_EQ(span_of(once, after, 0).begin.ps, 110 + 3 * kHost);
  EXPECT_EQ(run_step(tiny).step_time.ps, 100 + 4 * kHost);
}

// Work of the CPU is not enqueued, and starts although the host has not come to it.
TEST(HostQueue, the_cpus_work_does_not_wait_for_the_host) {
  TinyGraph tiny;
  for (int i = 0; i < 5; ++i) enqueued(tiny, 1);
  const OpId cpu = tiny.op(LaneKind::kCpu, 7);
  EXPECT_EQ(span_of(run_step(tiny, kOneStep), cpu, 0).begin.ps, 0);
}

Op of(Work work, Phase phase = Phase::kForward) {
  Op op;
  op.phase = phase;
  op.work = std::move(work);
  return op;
}

// Values of 2 bytes, 10 rows of 100: a pass that reads and writes each is 4000 bytes.
TEST(kernels, are_counted_by_what_an_operation_moves) {
  const auto rows = [](int64_t values) {
    return kernels_of(of(RowWork{10, 100, DType::kBf16, Bytes{values * 2000}, Flops{1}}));
  };
  EXPECT_EQ(rows(2), 1);
  EXPECT_EQ(rows(18), 8) << "an RMSNorm of eager PyTorch";
  EXPECT_EQ(rows(36), 16) << "and its backward";
  EXPECT_EQ(kernels_of(of(GemmWork{1, 1, 1, DType::kBf16})), 1);
  GemmWork experts{1, 1, 1, DType::kBf16};
  experts.experts = 16;
  EXPECT_EQ(kernels_of(of(experts)), 1) << "one kernel goes over all";
  experts.by_expert = true;
  EXPECT_EQ(kernels_of(of(experts)), 16);
  experts.format = ProductFormat::kFp8;
  const std::map<Rounding, int64_t> expected = {
      {Rounding::kNone, 2}, {Rounding::kFirst, 2},   {Rounding::kTransposed, 2},
      {Rounding::kBoth, 2}, {Rounding::kCurrent, 5}, {Rounding::kJustInTime, 8}};
  for (const auto& [rounding, kernels] : expected) {
    experts.rounding = rounding;
    EXPECT_EQ(kernels_of(of(experts)), 16 * kernels) << to_string(rounding);
  }
  experts.by_expert = false;
  EXPECT_EQ(kernels_of(of(experts)), 5);
  AttentionWork attention{1, 128, 2, 2, 64, DType::kBf16, Bytes{1}, Flops{1}};
  EXPECT_EQ(kernels_of(of(attention)), 1);
  EXPECT_EQ(kernels_of(of(attention, Phase::kBackward)), 3);
  // Values of 16384 queries: 10 kernels read and write a little more than each of them.
  attention.passed = Bytes{23 * 2 * 128 * 2 * 64};
  EXPECT_EQ(kernels_of(of(attention)), 1 + 10);
  attention.passed = {};
  attention.kind = AttentionKind::kEager;
  attention.moved = Bytes{8 * 2 * 128 * 128 * 2};
  EXPECT_EQ(kernels_of(of(attention)), 2 + 3) << "scale, mask and softmax beside two products";
  BucketWork adam{320 * 65536 + 1, DType::kF32, DType::kBf16, Site::kGpu, Bytes{1}};
  EXPECT_EQ(kernels_of(of(adam)), 2);
  adam.site = Site::kCpu;
  EXPECT_EQ(kernels_of(of(adam)), 0);
  EXPECT_EQ(kernels_of(of(std::monostate{})), 0);
}

// 5 us for each kernel: an unfused norm of 18 passes is 8 of them, a copy one call. Graphs that
// were recorded cost the host nothing, nor does a stack that says so.
TEST(kernels, the_host_takes_its_time_for_every_kernel) {
  tests::Usage usage;
  usage.stack.constants.launch = Duration::from_us(5);
  const Machine machine = tests::tiny_machine();
  const Op norm = of(RowWork{10, 100, DType::kBf16, Bytes{18 * 2000}, Flops{1e3}});
  const Op copy = of(CopyWork{Bytes{1'000'000}, CopyDirection::kHostToDevice});
  const auto costed = [&](const Op& op) { return tests::cost_with(op, machine, usage); };
  EXPECT_EQ(costed(norm).cost.host, Duration::from_us(8 * 5));
  EXPECT_EQ(costed(copy).cost.host, Duration::from_us(5));
  EXPECT_EQ(costed(norm).cost.host_first, Duration::from_us(5));
  EXPECT_NEAR(costed(norm).us(), 8, 1e-9) << "launches of the GPU";
  usage.plan.cuda_graphs = true;
  EXPECT_EQ(costed(norm).cost.host, Duration{});
  usage = {};
  EXPECT_EQ(costed(norm).cost.host, Duration{});
}

// Grace takes 33.17 us for a call of PyTorch for which the reference takes 13.48.
TEST(kernels, a_slower_host_takes_longer_for_each) {
  tests::Usage usage;
  usage.stack.constants.launch = Duration::from_us(5);
  Machine machine = tests::tiny_machine();
  machine.cpu.dispatch.emplace().value = Duration::from_us(33.17);
  const Op copy = of(CopyWork{Bytes{1'000'000}, CopyDirection::kHostToDevice});
  EXPECT_NEAR(tests::cost_with(copy, machine, usage).cost.host.us(), 5 * 33.17 / 13.48, 1e-6);
}

// 40 us for each of 16 experts, whatever a launch takes and however fast the host calls PyTorch.
TEST(kernels, an_expert_that_is_multiplied_by_itself_takes_the_host_a_time_of_its_own) {
  tests::Usage usage;
  usage.stack.constants.launch = Duration::from_us(5);
  usage.stack.constants.expert_launch = Duration::from_us(40);
  Machine machine = tests::tiny_machine();
  machine.cpu.dispatch.emplace().value = Duration::from_us(33.17);
  GemmWork experts{64, 64, 64, DType::kBf16};
  experts.experts = 16;
  const auto cost = [&] { return tests::cost_with(of(experts), machine, usage).cost; };
  EXPECT_NEAR(cost().host.us(), 5 * 33.17 / 13.48, 1e-6) << "one kernel goes over all";
  experts.by_expert = true;
  EXPECT_EQ(cost().host, Duration::from_us(16 * 40));
  EXPECT_EQ(cost().host_first, Duration::from_us(40)) << "the first may run by then";
  usage.plan.cuda_graphs = true;
  EXPECT_EQ(cost().host, Duration{});
}

// A framework that drops no token reads in each layer's forward how many rows its experts get.
TEST(kernels, a_host_waits_for_the_rows_of_experts_where_its_framework_reads_them) {
  tests::Usage usage;
  const auto waits = [&](OpKind kind, Phase phase) {
    Op op = of(RowWork{10, 100, DType::kBf16, Bytes{4000}, Flops{1}}, phase);
    op.kind = kind;
    return tests::cost_with(op, tests::tiny_machine(), usage).cost.host_waits;
  };
  EXPECT_EQ(waits(OpKind::kPermute, Phase::kForward), HostWait::kNone);
  usage.stack.facts.reads_routing = true;
  EXPECT_EQ(waits(OpKind::kPermute, Phase::kForward), HostWait::kOfItsDevice);
  EXPECT_EQ(waits(OpKind::kPermute, Phase::kRecompute), HostWait::kOfItsDevice);
  EXPECT_EQ(waits(OpKind::kPermute, Phase::kBackward), HostWait::kNone);
  EXPECT_EQ(waits(OpKind::kCombine, Phase::kForward), HostWait::kNone);
}

}  // namespace
}  // namespace ballast
