#include "sim/graph/report/timeline.h"

#include <gtest/gtest.h>

#include "tests/engine/tiny_graph.h"

namespace ballast {
namespace {

using tests::TinyGraph;

// A timeline put together by hand; spans are given in the order of their beginnings.
Timeline timeline_of(std::vector<Span> spans, int32_t steps, int64_t step_time) {
  Timeline timeline;
  timeline.spans = std::move(spans);
  timeline.first_step = timeline.spans.front().step;
  timeline.steps = steps;
  timeline.step_time = {step_time};
  return timeline;
}

Span span(OpId op, int32_t step, int64_t begin, int64_t end) {
  return {op, step, Instant{begin}, Instant{end}};
}

// Three lanes, each operation released by the one before, and two steps of 100. Step s begins at
// 100 s: forward 0..40, copy 40..60, Adam 65..90 after a hand-over of 5, backward 90..100.
struct Offloaded : ::testing::Test {
  Offloaded() {
    forward = tiny.op(LaneKind::kCompute, 40);
    copy = tiny.op(LaneKind::kCopyOut, 20, {{forward, 0}});
    adam = tiny.op(LaneKind::kCpu, 25, {{copy, 0}});
    backward = tiny.op(LaneKind::kCompute, 10, {{adam, 0}});
    set(forward, OpKind::kGemm, Phase::kForward);
    set(copy, OpKind::kCopy, Phase::kOptimizer);
    set(adam, OpKind::kAdam, Phase::kOptimizer);
    set(backward, OpKind::kGemm, Phase::kBackwardInput);
    timeline =
        timeline_of({span(forward, 3, 0, 40), span(copy, 3, 40, 60), span(adam, 3, 65, 90),
                     span(backward, 3, 90, 100), span(forward, 4, 100, 140),
                     span(copy, 4, 140, 160), span(adam, 4, 165, 190), span(backward, 4, 190, 200)},
                    2, 100);
  }

  void set(OpId op, OpKind kind, Phase phase) {
    tiny.graph.step.ops[static_cast<size_t>(op)].kind = kind;
    tiny.graph.step.ops[static_cast<size_t>(op)].phase = phase;
  }

  TinyGraph tiny;
  OpId forward = -1, copy = -1, adam = -1, backward = -1;
  Timeline timeline;
};

// compute 40 + 10, copy-out 20, CPU 25 of 100; lanes without operations are left out.
TEST_F(Offloaded, lane_use_is_busy_time_per_step) {
  const std::vector<LaneUse> uses = lane_use(tiny.graph, timeline);
  ASSERT_EQ(uses.size(), 3u);
  EXPECT_EQ(uses[0].lane, lane_of(0, LaneKind::kCompute));
  EXPECT_EQ(uses[0].busy.ps, 50);
  EXPECT_DOUBLE_EQ(uses[0].share, 0.5);
  EXPECT_EQ(uses[1].lane, lane_of(0, LaneKind::kCopyOut));
  EXPECT_DOUBLE_EQ(uses[1].share, 0.2);
  EXPECT_DOUBLE_EQ(uses[2].share, 0.25);
}

TEST_F(Offloaded, time_by_kind_is_per_step_and_longest_first) {
  const std::vector<KindTime> kinds = time_by_kind(tiny.graph, timeline);
  ASSERT_EQ(kinds.size(), 4u);
  EXPECT_EQ(kinds[0].time.ps, 40);
  EXPECT_EQ(kinds[0].phase, Phase::kForward);
  EXPECT_EQ(kinds[0].operations, 1);
  EXPECT_EQ(kinds[1].kind, OpKind::kAdam);
  EXPECT_EQ(kinds[3].time.ps, 10);
}

// All four operations decide the step, and 5 of waiting before Adam: 40 + 20 + 25 + 10 + 5 = 100.
TEST_F(Offloaded, the_longest_path_covers_the_step) {
  const LongestPath path = longest_path(tiny.graph, timeline);
  ASSERT_EQ(path.chain.size(), 4u);
  EXPECT_EQ(path.chain[0].op, forward);
  EXPECT_EQ(path.chain[0].step, 4);
  EXPECT_EQ(path.chain[3].op, backward);
  EXPECT_EQ(path.waiting.ps, 5);
  Duration sum = path.waiting;
  for (const KindTime& kind : path.by_kind) sum += kind.time;
  EXPECT_EQ(sum.ps, 100);
  EXPECT_EQ(path.by_kind[0].phase, Phase::kForward);
}

// Ten columns of 10: compute FFFF.....B, copy-out in columns 4 and 5, Adam 65..90: half of column
// 6, all of 7 and 8.
TEST_F(Offloaded, the_text_timeline_shows_what_fills_each_column) {
  EXPECT_EQ(text_timeline(tiny.graph, timeline, 10),
            "compute     FFFF.....B\n"
            "copy-out    ....cc....\n"
            "cpu         ......AAA.\n"
            "0.000 ms a step; F forward, c copy, A Adam, B backward, . idle\n");
}

// The last step lasts from 20 to 40. Its forward ran ahead at 10..20, and the next step's will at
// 30..40: that is where the picture shows it.
TEST(TextTimelineTest, what_runs_ahead_is_shown_where_the_next_step_will_run_it) {
  TinyGraph tiny;
  const OpId forward = tiny.op(LaneKind::kCompute, 10);
  const OpId copy = tiny.op(LaneKind::kCopyOut, 20, {{forward, 0}});
  tiny.graph.step.ops[static_cast<size_t>(copy)].kind = OpKind::kCopy;
  const Timeline timeline = timeline_of({span(forward, 0, -10, 0), span(copy, 0, 0, 20),
                                         span(forward, 1, 10, 20), span(copy, 1, 20, 40)},
                                        2, 20);
  EXPECT_EQ(text_timeline(tiny.graph, timeline, 4),
            "compute     ..FF\n"
            "copy-out    cccc\n"
            "0.000 ms a step; F forward, c copy, . idle\n");
}

// Two lanes, and b waits for both a (ends at 30) and its own lane (free at 10): a decided.
//   copy-in: a 0..30; compute: x 0..10, b 30..50
TEST(LongestPathTest, the_latest_of_several_predecessors_decides) {
  TinyGraph tiny;
  const OpId x = tiny.op(LaneKind::kCompute, 10);
  const OpId a = tiny.op(LaneKind::kCopyIn, 30);
  const OpId b = tiny.op(LaneKind::kCompute, 20, {{a, 0}});
  const Timeline timeline =
      timeline_of({span(x, 0, 0, 10), span(a, 0, 0, 30), span(b, 0, 30, 50)}, 1, 50);
  const LongestPath path = longest_path(tiny.graph, timeline);
  ASSERT_EQ(path.chain.size(), 2u);
  EXPECT_EQ(path.chain[0].op, a);
  EXPECT_EQ(path.chain[1].op, b);
  EXPECT_EQ(path.waiting.ps, 0);
}

// The CPU's operation of step 0 ran from 10 to 40 and held compute of step 1 back (one step
// ahead): compute 0..10, CPU 10..40, compute 40..50, CPU 50..80. The last step is 40..80: compute
// 10 and CPU 30, all of it within the window; the step before is not counted.
TEST(LongestPathTest, the_path_ends_where_the_step_before_ended) {
  TinyGraph tiny;
  const OpId compute = tiny.op(LaneKind::kCompute, 10, {{1, 1}});
  const OpId cpu = tiny.op(LaneKind::kCpu, 30, {{compute, 0}});
  const Timeline timeline = timeline_of({span(compute, 0, 0, 10), span(cpu, 0, 10, 40),
                                         span(compute, 1, 40, 50), span(cpu, 1, 50, 80)},
                                        2, 40);
  const LongestPath path = longest_path(tiny.graph, timeline);
  ASSERT_EQ(path.chain.size(), 2u);
  EXPECT_EQ(path.chain[0].step, 1);
  EXPECT_EQ(path.waiting.ps, 0);
}

// Steps overlap: compute of step 1 ran 10..20 while the CPU was still at step 0 (10..40). The last
// step lasts from 40 to 70, and the CPU alone decided it: its operation of step 1, 40..70.
TEST(LongestPathTest, what_overlaps_the_step_before_is_cut_off) {
  TinyGraph tiny;
  const OpId compute = tiny.op(LaneKind::kCompute, 10);
  const OpId cpu = tiny.op(LaneKind::kCpu, 30, {{compute, 0}});
  const Timeline timeline = timeline_of({span(compute, 0, 0, 10), span(compute, 1, 10, 20),
                                         span(cpu, 0, 10, 40), span(cpu, 1, 40, 70)},
                                        2, 30);
  const LongestPath path = longest_path(tiny.graph, timeline);
  ASSERT_EQ(path.chain.size(), 1u);
  EXPECT_EQ(path.chain[0].op, cpu);
  EXPECT_EQ(path.waiting.ps, 0);
}

// Measured clocks may overlap by a little: b began at 28 although a, which released it, ended at
// 30. The 2 are booked once: 30..50 to b, 0..30 to a would overlap, so a gets 0..28 and b 28..50.
TEST(LongestPathTest, overlap_of_measured_spans_is_booked_once) {
  TinyGraph tiny;
  const OpId a = tiny.op(LaneKind::kCopyIn, 30);
  const OpId b = tiny.op(LaneKind::kCompute, 20, {{a, 0}});
  tiny.graph.step.ops[static_cast<size_t>(a)].kind = OpKind::kCopy;
  const Timeline timeline = timeline_of({span(a, 0, 0, 30), span(b, 0, 28, 50)}, 1, 50);
  const LongestPath path = longest_path(tiny.graph, timeline);
  ASSERT_EQ(path.by_kind.size(), 2u);
  EXPECT_EQ(path.by_kind[0].time.ps, 28);
  EXPECT_EQ(path.by_kind[0].kind, OpKind::kCopy);
  EXPECT_EQ(path.by_kind[1].time.ps, 22);
  EXPECT_EQ(path.waiting.ps, 0);
}

TEST(TimelineTest, an_empty_timeline_has_nothing_to_report) {
  const TinyGraph tiny;
  EXPECT_TRUE(lane_use(tiny.graph, {}).empty());
  EXPECT_TRUE(time_by_kind(tiny.graph, {}).empty());
  EXPECT_TRUE(longest_path(tiny.graph, {}).chain.empty());
  EXPECT_EQ(text_timeline(tiny.graph, {}, 10), "");
}

}  // namespace
}  // namespace ballast
