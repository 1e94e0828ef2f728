#include "sim/engine/engine.h"

#include <gtest/gtest.h>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "sim/engine/clock/next_event.h"
#include "tests/engine/tiny_graph.h"

namespace ballast {
namespace {

using tests::span_of;
using tests::TinyGraph;

constexpr SimulateOptions kOnce{.max_steps = 1, .record_steps = 1};

Timeline run(const TinyGraph& tiny, const SimulateOptions& options = {}) {
  return simulate(tiny.graph.step, tiny.graph, tiny.costs, options);
}

void expect_span(const Timeline& timeline, OpId op, int64_t begin, int64_t end) {
  const Span span = span_of(timeline, op, timeline.first_step);
  EXPECT_EQ(span.begin.ps, begin) << "operation " << op;
  EXPECT_EQ(span.end.ps, end) << "operation " << op;
}

// One lane: 10 + 20 + 30 = 60 a step, step after step.
TEST(Engine, one_lane_runs_its_operations_one_after_another) {
  TinyGraph tiny;
  tiny.op(LaneKind::kCompute, 10);
  tiny.op(LaneKind::kCompute, 20);
  tiny.op(LaneKind::kCompute, 30);
  const Timeline timeline = run(tiny);
  EXPECT_EQ(timeline.step_time.ps, 60);
  EXPECT_TRUE(timeline.settled);
  EXPECT_EQ(timeline.steps, 2);
  EXPECT_EQ(timeline.spans.size(), 6u);
  const int64_t start = 60 * timeline.first_step;
  expect_span(timeline, 1, start + 10, start + 30);
}

// compute: a 10; copy-out: b 5 waits for a, so it runs 10..15; compute: c 2 waits for b, 15..17.
TEST(Engine, an_edge_holds_an_operation_of_another_lane_back) {
  TinyGraph tiny;
  const OpId a = tiny.op(LaneKind::kCompute, 10);
  const OpId b = tiny.op(LaneKind::kCopyOut, 5, {{a, 0}});
  const OpId c = tiny.op(LaneKind::kCompute, 2, {{b, 0}});
  const Timeline timeline = run(tiny, kOnce);
  expect_span(timeline, a, 0, 10);
  expect_span(timeline, b, 10, 15);
  expect_span(timeline, c, 15, 17);
  EXPECT_EQ(timeline.step_time.ps, 17);
}

// compute 10 a step; the CPU needs 30 for what compute made, and compute of the next step waits
// for it: period 40. With one more step of slack compute runs ahead and only the CPU limits: 30.
TEST(Engine, steps_ahead_decides_how_far_lanes_overlap) {
  for (const auto& [ahead, period] : {std::pair{1, 40}, std::pair{2, 30}}) {
    TinyGraph tiny;
    const OpId compute = tiny.op(LaneKind::kCompute, 10, {{1, ahead}});
    const OpId cpu = tiny.op(LaneKind::kCpu, 30, {{compute, 0}});
    ASSERT_EQ(cpu, 1);
    const Timeline timeline = run(tiny);
    EXPECT_TRUE(timeline.settled);
    EXPECT_EQ(timeline.step_time.ps, period) << "steps ahead " << ahead;
  }
}

// Two collectives of 100. Of one communicator they queue; of two that use other wires they overlap;
// and of two that share wires, each of which would fill them alone, both take twice as long.
TEST(Engine, communicators_overlap_and_share_wires) {
  TinyGraph one;
  one.op(LaneKind::kDataNetwork, 100);
  one.op(LaneKind::kDataNetwork, 100);
  EXPECT_EQ(run(one, kOnce).step_time.ps, 200);

  TinyGraph two;
  const CapacityId node = two.capacity(10);
  const CapacityId network = two.capacity(10);
  const OpId products = two.op(LaneKind::kTensorNetwork, 100, {}, {{node, 10}});
  const OpId gradients = two.op(LaneKind::kDataNetwork, 100, {}, {{network, 10}});
  const Timeline apart = run(two, kOnce);
  expect_span(apart, products, 0, 100);
  expect_span(apart, gradients, 0, 100);

  TinyGraph shared;
  const CapacityId wires = shared.capacity(10);
  shared.op(LaneKind::kTensorNetwork, 100, {}, {{wires, 10}});
  shared.op(LaneKind::kDataNetwork, 100, {}, {{wires, 10}});
  EXPECT_EQ(run(shared, kOnce).step_time.ps, 200);
}

// Edges into steps before the first count as done: the very first run starts at 0.
TEST(Engine, steps_before_the_first_count_as_done) {
  TinyGraph tiny;
  tiny.op(LaneKind::kCompute, 10, {{1, 1}});
  tiny.op(LaneKind::kCpu, 30, {{0, 2}});
  const Timeline timeline = run(tiny, kOnce);
  expect_span(timeline, 0, 0, 10);
  expect_span(timeline, 1, 0, 30);
}

// b waited from 0 to 10 for a: it starts 3 after its release, and the 3 are not in its span.
// c never waited (its lane was busy until 13 and b's end came earlier than that): no hand-over.
TEST(Engine, an_operation_that_waited_starts_a_handover_later) {
  TinyGraph tiny;
  const OpId a = tiny.op(LaneKind::kCompute, 10);
  const OpId b = tiny.op(LaneKind::kCopyOut, 2, {{a, 0}});
  const OpId long_one = tiny.op(LaneKind::kCompute, 90);
  const OpId c = tiny.op(LaneKind::kCompute, 5, {{b, 0}});
  for (OpCost& cost : tiny.costs.ops.kinds()) cost.handover = {3};
  const Timeline timeline = run(tiny, kOnce);
  expect_span(timeline, b, 13, 15);
  expect_span(timeline, long_one, 10, 100);
  expect_span(timeline, c, 100, 105);
}

// Two operations of 100 and 50, each asking for the whole link, at rate 1/2 each: the short one is
// done at 100, having had 50 of work; the long one has 50 left and ends at 150.
TEST(Engine, two_flows_share_a_link_and_the_rest_runs_at_full_speed) {
  TinyGraph tiny;
  const CapacityId link = tiny.capacity(10);
  const OpId longer = tiny.op(LaneKind::kCopyIn, 100, {}, {{link, 10}});
  const OpId shorter = tiny.op(LaneKind::kCopyOut, 50, {}, {{link, 10}});
  const Timeline timeline = run(tiny, kOnce);
  expect_span(timeline, shorter, 0, 100);
  expect_span(timeline, longer, 0, 150);
}

// DRAM of 10. Adam wants 9 for 1000; a copy that wants 3 for 100 comes at 500. Both together are
// 12 over 10: rate 10/12 = 5/6, so the copy takes 120 (500..620), during which Adam does 100 of
// its work; Adam ends at 1000 + 20.
TEST(Engine, a_copy_slows_the_adam_that_shares_its_memory_and_is_slowed_by_it) {
  TinyGraph tiny;
  const CapacityId dram = tiny.capacity(10);
  const OpId adam = tiny.op(LaneKind::kCpu, 1000, {}, {{dram, 9}});
  const OpId timer = tiny.op(LaneKind::kCompute, 500);
  const OpId copy = tiny.op(LaneKind::kCopyIn, 100, {{timer, 0}}, {{dram, 3}});
  const Timeline timeline = run(tiny, kOnce);
  expect_span(timeline, copy, 500, 620);
  expect_span(timeline, adam, 0, 1020);
}

// Work is conserved however often rates change: one long operation beside 3000 short ones, two
// thirds of the time at rates of thirds. All ask for the whole link, so the link is busy without a
// gap and the last of them ends at the sum of all work, to the picosecond or so per operation.
TEST(Engine, remaining_work_does_not_drift_under_changing_rates) {
  TinyGraph tiny;
  const CapacityId link = tiny.capacity(1);
  constexpr int64_t kShort = 1'000'003;
  constexpr int kCount = 1500;
  const int64_t long_work = 10'000'000'000;
  const OpId longest = tiny.op(LaneKind::kCpu, long_work, {}, {{link, 1}});
  for (int i = 0; i < kCount; ++i) {
    tiny.op(LaneKind::kCopyIn, kShort, {}, {{link, 1}});
    tiny.op(LaneKind::kCopyOut, 2 * kShort, {}, {{link, 1}});
  }
  const Timeline timeline = run(tiny, kOnce);
  const int64_t all_work = long_work + int64_t{3} * kCount * kShort;
  EXPECT_NEAR(static_cast<double>(span_of(timeline, longest, 0).end.ps),
              static_cast<double>(all_work), 2.0 * kCount);
}

// Two flows at rate 1/2 all along need no rounding: 2 * 1000 operations of 7 over one link take
// exactly 14000.
TEST(Engine, equal_flows_on_one_link_take_exactly_their_sum) {
  TinyGraph tiny;
  const CapacityId link = tiny.capacity(1);
  for (int i = 0; i < 1000; ++i) {
    tiny.op(LaneKind::kCopyIn, 7, {}, {{link, 1}});
    tiny.op(LaneKind::kCopyOut, 7, {}, {{link, 1}});
  }
  EXPECT_EQ(run(tiny, kOnce).step_time.ps, 14000);
}

// Devices have capacities of their own; what happens on one does not slow the other.
TEST(Engine, devices_do_not_slow_one_another) {
  TinyGraph tiny(2);
  const CapacityId first = tiny.capacity(1);
  const CapacityId second = tiny.capacity(1);
  const OpId a = tiny.op_on(0, LaneKind::kCopyIn, 10, {}, {{first, 1}});
  const OpId b = tiny.op_on(0, LaneKind::kCopyOut, 10, {}, {{first, 1}});
  const OpId c = tiny.op_on(1, LaneKind::kCopyIn, 10, {}, {{second, 1}});
  const Timeline timeline = run(tiny, kOnce);
  expect_span(timeline, a, 0, 20);
  expect_span(timeline, b, 0, 20);
  expect_span(timeline, c, 0, 10);
}

// Operations without a duration pass at once, in a chain across lanes, and so does a whole step.
TEST(Engine, operations_without_duration_pass_at_once) {
  TinyGraph tiny;
  const OpId a = tiny.op(LaneKind::kCompute, 10);
  const OpId b = tiny.op(LaneKind::kCheck, 0, {{a, 0}});
  const OpId c = tiny.op(LaneKind::kCpu, 0, {{b, 0}});
  const OpId d = tiny.op(LaneKind::kCompute, 5, {{c, 0}});
  const Timeline timeline = run(tiny, kOnce);
  expect_span(timeline, c, 10, 10);
  expect_span(timeline, d, 10, 15);

  TinyGraph nothing;
  nothing.op(LaneKind::kCompute, 0);
  EXPECT_EQ(run(nothing).step_time.ps, 0);
}

// compute 10, CPU 30 after it, three steps of slack: steps end at 40, 70, 100, 130. The first
// period is 40, the next three are 30.
TEST(Engine, a_slow_start_does_not_count) {
  TinyGraph tiny;
  const OpId compute = tiny.op(LaneKind::kCompute, 10, {{1, 3}});
  tiny.op(LaneKind::kCpu, 30, {{compute, 0}});
  const Timeline timeline = run(tiny);
  EXPECT_TRUE(timeline.settled);
  EXPECT_EQ(timeline.step_time.ps, 30);
  EXPECT_EQ(timeline.first_step, 2);
}

// Two steps are too few to see three equal periods: the mean of the last half, and the flag is
// down.
TEST(Engine, a_run_cut_short_gives_the_mean_and_says_so) {
  TinyGraph tiny;
  tiny.op(LaneKind::kCompute, 10);
  const Timeline timeline = run(tiny, {.max_steps = 2, .record_steps = 2});
  EXPECT_FALSE(timeline.settled);
  EXPECT_EQ(timeline.step_time.ps, 10);
}

TEST(Engine, a_sequence_without_operations_takes_no_time) {
  const Timeline timeline = run(TinyGraph{});
  EXPECT_EQ(timeline.step_time.ps, 0);
  EXPECT_TRUE(timeline.spans.empty());
}

TEST(EngineDeathTest, a_sequence_that_waits_for_itself_is_a_bug) {
  TinyGraph tiny;
  tiny.op(LaneKind::kCompute, 10, {{1, 0}});
  tiny.op(LaneKind::kCpu, 10, {{0, 0}});
  EXPECT_DEATH(run(tiny), "has_value");
}

// A pseudo-random graph of five lanes over three capacities, always the same.
TinyGraph random_graph(int ops) {
  TinyGraph tiny;
  for (const double amount : {100.0, 60.0, 40.0}) tiny.capacity(amount);
  uint32_t state = 12345;
  const auto next = [&](uint32_t below) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % below;
  };
  for (int i = 0; i < ops; ++i) {
    const auto lane = static_cast<LaneKind>(next(5));
    const Demand demand{static_cast<CapacityId>(next(3)), 10.0 + next(60)};
    const int back = 1 + static_cast<int>(next(20));
    const Edge edge = i >= back ? Edge{i - back, 0} : Edge{ops - 1 - i, 1};
    tiny.op(lane, 1000 + next(5000), {edge}, {demand});
  }
  for (OpCost& cost : tiny.costs.ops.kinds()) cost.handover = {100};
  return tiny;
}

// Same input, same bytes out.
TEST(Engine, the_same_input_gives_the_same_timeline) {
  const TinyGraph tiny = random_graph(3000);
  const Timeline first = run(tiny);
  const Timeline second = run(tiny);
  ASSERT_EQ(first.spans.size(), second.spans.size());
  EXPECT_EQ(first.step_time, second.step_time);
  for (size_t i = 0; i < first.spans.size(); ++i) {
    ASSERT_EQ(first.spans[i].op, second.spans[i].op);
    ASSERT_EQ(first.spans[i].step, second.spans[i].step);
    ASSERT_EQ(first.spans[i].begin, second.spans[i].begin);
    ASSERT_EQ(first.spans[i].end, second.spans[i].end);
  }
}

// Rules that hold for any graph: spans are ordered, a lane does one thing at a time, no operation
// starts before what it waits for has ended, and none is faster than alone.
TEST(Engine, every_rule_holds_in_a_random_graph) {
  const TinyGraph tiny = random_graph(3000);
  const Timeline timeline = run(tiny);
  const Program& step = tiny.graph.step;
  ASSERT_EQ(timeline.spans.size(), step.ops.size() * 2);
  std::vector<std::vector<Span>> of_step(2, std::vector<Span>(step.ops.size()));
  std::vector<Instant> lane_end(static_cast<size_t>(tiny.graph.lanes));
  std::tuple<Instant, LaneId> before{};
  for (const Span& span : timeline.spans) {
    const auto op = static_cast<size_t>(span.op);
    const LaneId lane = step.ops[op].lane;
    EXPECT_LE(before, std::tuple(span.begin, lane));
    before = {span.begin, lane};
    EXPECT_LE(lane_end[static_cast<size_t>(lane)], span.begin);
    lane_end[static_cast<size_t>(lane)] = span.end;
    EXPECT_GE(span.end - span.begin, tiny.costs.ops[op].alone);
    of_step[static_cast<size_t>(span.step - timeline.first_step)][op] = span;
  }
  for (size_t s = 0; s < 2; ++s) {
    for (size_t op = 0; op < step.ops.size(); ++op) {
      for (int32_t e = step.edge_begin[op]; e < step.edge_begin[op + 1]; ++e) {
        const Edge& edge = step.edges[static_cast<size_t>(e)];
        if (edge.steps_ahead > static_cast<int32_t>(s)) continue;
        const size_t index = s - static_cast<size_t>(edge.steps_ahead);
        EXPECT_LE(of_step[index][static_cast<size_t>(edge.op)].end, of_step[s][op].begin);
      }
    }
  }
}

// Times 5, 3, 3: slot 2 was given its 3 before slot 1 was, so it comes first.
TEST(NextEventTest, equal_times_come_in_the_order_of_insertion) {
  NextEvent events(3);
  EXPECT_FALSE(events.first().has_value());
  events.set(0, Instant{5}, 0);
  events.set(2, Instant{3}, 1);
  events.set(1, Instant{3}, 2);
  EXPECT_EQ(events.first(), 2);
  events.clear(2);
  EXPECT_EQ(events.first(), 1);
  events.set(1, Instant{9}, 3);
  EXPECT_EQ(events.first(), 0);
}

// Against a search through all of them.
TEST(NextEventTest, the_earliest_of_many_that_come_go_and_move) {
  constexpr int32_t kSlots = 23;
  NextEvent events(kSlots);
  std::vector<std::optional<std::pair<int64_t, int64_t>>> plain(kSlots);
  std::mt19937 random(1);
  for (int64_t order = 0; order < 20000; ++order) {
    const auto slot = static_cast<int32_t>(random() % kSlots);
    if (random() % 3 == 0) {
      const int32_t cleared = random() % 2 == 0 ? events.first().value_or(slot) : slot;
      events.clear(cleared);
      plain[static_cast<size_t>(cleared)].reset();
    } else {
      const auto time = static_cast<int64_t>(random() % 50);
      events.set(slot, Instant{time}, order);
      plain[static_cast<size_t>(slot)] = {time, order};
      EXPECT_EQ(events.time_of(slot).ps, time);
    }
    // Whoever takes the first event often gives the next one before it asks again.
    if (random() % 2 == 0) continue;
    std::optional<int32_t> first;
    for (int32_t s = 0; s < kSlots; ++s) {
      const auto& one = plain[static_cast<size_t>(s)];
      if (one && (!first || *one < *plain[static_cast<size_t>(*first)])) first = s;
    }
    ASSERT_EQ(events.first(), first) << order;
  }
}

}  // namespace
}  // namespace ballast
