// The paced device: the executor and the virtual clock on one graph and one machine.
//
// Threads wake when the system lets them, so nothing here asserts that something is quick. What
// must hold on any machine are lower bounds (work cannot be done sooner), orders, and agreement
// within a wide margin in the best of several runs. bench/paced_bench has the exact figures.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <gtest/gtest.h>
#include <map>
#include <thread>

#include "backend/execute/executor.h"
#include "sim/base/median.h"
#include "sim/engine/predict.h"
#include "tests/backend/gh200_plans.h"
#include "tests/engine/tiny_graph.h"

namespace ballast {
namespace {

using tests::TinyGraph;

constexpr int64_t kMillisecond = 1'000'000'000;  // picoseconds

PacedMachine machine_of(const TinyGraph& tiny) {
  return {tiny.costs, {}, fair_rates(tiny.costs.capacities)};
}

RunOptions paced_steps(int32_t last) {
  RunOptions options;
  options.last_step = last;
  options.recorded_steps = 100;
  return options;
}

Duration length(const Span& span) { return span.end - span.begin; }

TEST(FairRates, demands_beyond_a_capacity_slow_all_who_make_them_and_nobody_else) {
  // Two flows ask for 8 and 12 of 10: each runs at 10 / 20. The third uses what nobody else does.
  const std::vector<Capacity> capacities = {{"shared", 10}, {"own", 10}};
  const std::vector<Demand> first = {{0, 8}}, second = {{0, 12}}, third = {{1, 10}};
  const std::vector<std::span<const Demand>> running = {first, second, third, {}};
  std::vector<double> rates(4);
  fair_rates(capacities)(running, rates);
  EXPECT_EQ(rates, (std::vector<double>{0.5, 0.5, 1, 1}));
}

TEST(Pacer, work_takes_its_time_from_a_begin_in_the_past_or_the_future) {
  Pacer pacer(1, fair_rates({}));
  const Instant past = {0};
  EXPECT_EQ(pacer.run(0, {past, {3 * kMillisecond}, {}}).ps, 3 * kMillisecond);
  EXPECT_GE(pacer.now().ps, 3 * kMillisecond);
  const Instant future = pacer.now() + Duration{5 * kMillisecond};
  EXPECT_EQ(pacer.run(0, {future, {2 * kMillisecond}, {}}).ps, future.ps + 2 * kMillisecond);
  EXPECT_GE(pacer.now().ps, future.ps + 2 * kMillisecond);
}

TEST(Pacer, two_flows_share_a_capacity_and_the_longer_one_speeds_up_when_the_other_ends) {
  // Both from 0: 10 ms and 30 ms of work at half speed each. The first is due at 20 ms; by then the
  // second has done 10 ms and goes on at full speed: due at 40 ms. Whichever thread comes first,
  // hindsight gives the same due times, as long as the other comes before it would have ended
  // alone.
  const std::vector<Capacity> capacities = {{"memory", 1}};
  const std::vector<Demand> demands = {{0, 1}};
  bool agreed = false;
  for (int attempt = 0; attempt < 20 && !agreed; ++attempt) {
    Pacer pacer(2, fair_rates(capacities));
    Instant first, second;
    {
      const std::jthread other([&] { first = pacer.run(0, {{0}, {10 * kMillisecond}, demands}); });
      second = pacer.run(1, {{0}, {30 * kMillisecond}, demands});
    }
    agreed = std::abs(first.ps - 20 * kMillisecond) < 1000 &&
             std::abs(second.ps - 40 * kMillisecond) < 1000;
    if (agreed) EXPECT_GE(pacer.now().ps, 40 * kMillisecond);  // nothing ends before it is due
  }
  EXPECT_TRUE(agreed);
}

TEST(PacedDevice, operations_last_their_time_and_handover_delays_those_that_waited) {
  // Per step: 2 ms on the GPU, hand-over 1 ms, 3 ms on the CPU; the next step waits for it, again
  // with a hand-over. Slowed by 2: (2 + 1 + 3 + 1) * 2 = 14 ms a step; the first has 12.
  TinyGraph tiny;
  tiny.op(LaneKind::kCompute, 2 * kMillisecond, {{1, 1}});
  tiny.op(LaneKind::kCpu, 3 * kMillisecond, {{0, 0}});
  for (OpCost& cost : tiny.costs.ops.kinds()) cost.handover = {kMillisecond};
  PacedDevice device(tiny.graph, machine_of(tiny), {.slow_down = 2, .forgiven = {}});
  const RunResult result = Executor(tiny.graph, device).run(paced_steps(4));
  for (const Span& span : result.timeline.spans) {
    // Its own time, and the hand-over before it where it waited, which all but the first did.
    const int64_t own = span.op == 0 ? 4 : 6;
    const int64_t handover = span.op == 0 && span.step == 0 ? 0 : 2;
    EXPECT_GE(length(span).ps, (own + handover) * kMillisecond);
  }
  EXPECT_GE(result.timeline.spans.back().end.ps, (12 + 4 * 14) * kMillisecond);
  EXPECT_EQ(device.lateness().operations, 10);
}

TEST(PacedDevice, lanes_without_edges_between_them_overlap) {
  // Two lanes of 10 ms each: 10 steps take 100 ms, and 200 ms one after the other.
  TinyGraph tiny;
  tiny.op(LaneKind::kCompute, 10 * kMillisecond);
  tiny.op(LaneKind::kCopyIn, 10 * kMillisecond);
  bool overlapped = false;
  for (int attempt = 0; attempt < 5 && !overlapped; ++attempt) {
    PacedDevice device(tiny.graph, machine_of(tiny), {});
    const RunResult result = Executor(tiny.graph, device).run(paced_steps(9));
    EXPECT_GE(result.timeline.spans.back().end.ps, 98 * kMillisecond);  // 2 ms may be forgiven
    overlapped = result.timeline.spans.back().end.ps < 170 * kMillisecond;
  }
  EXPECT_TRUE(overlapped);
}

TEST(PacedDevice, one_lane_at_a_time_takes_the_sum_of_all_operations) {
  // What an executor without concurrency would be given: nothing is forgiven that is not lateness.
  TinyGraph tiny;
  tiny.op(LaneKind::kCompute, 6 * kMillisecond);
  tiny.op(LaneKind::kCopyIn, 5 * kMillisecond);
  tiny.op(LaneKind::kCpu, 4 * kMillisecond);
  PacedDevice device(tiny.graph, machine_of(tiny), {});
  const RunResult result = Executor(tiny.graph, device).run_sequentially(paced_steps(4));
  EXPECT_GE(result.timeline.spans.back().end.ps,
            5 * (6 + 5 + 4) * kMillisecond - Duration::from_us(2000).ps);
  EXPECT_GE(device.lateness().charged_operations, 15 - 1);  // all, but the first may do
}

// --- Ranks ------------------------------------------------------------------------------------

// Each rank computes for 2 ms and then exchanges for 1 ms; the one that is three times as slow
// holds up the other, which would be done in half the time. Rank by rank, 5 steps.
TEST(PacedRanks, a_collective_begins_when_the_last_rank_of_its_group_has_come) {
  const auto graph_of = [](int64_t compute_ms) {
    TinyGraph tiny;
    tiny.op(LaneKind::kCompute, compute_ms * kMillisecond, {{1, 1}});
    const OpId exchange = tiny.op(LaneKind::kDataNetwork, kMillisecond, {{0, 0}});
    tiny.graph.step.ops[static_cast<size_t>(exchange)].work =
        CollectiveWork{CollectiveKind::kAllReduce, {1}, 2, 1};
    return tiny;
  };
  TinyGraph quick = graph_of(2), slow = graph_of(6);
  PacedRanks ranks;
  std::vector<Timeline> timelines(2);
  {
    std::vector<std::jthread> crew;
    for (int rank = 0; rank < 2; ++rank) {
      crew.emplace_back([&, rank] {
        TinyGraph& tiny = rank == 0 ? quick : slow;
        PacedDevice device(tiny.graph, machine_of(tiny), {.ranks = &ranks, .rank = rank});
        timelines[static_cast<size_t>(rank)] =
            Executor(tiny.graph, device).run(paced_steps(4)).timeline;
      });
    }
  }
  for (const Timeline& timeline : timelines) {
    // 2 ms may be forgiven of the first operation.
    EXPECT_GE(timeline.spans.back().end.ps, (5 * (6 + 1) - 2) * kMillisecond);
  }
}

// Ranks 0 and 2 are a group, as are 1 and 3: neither waits for the other.
TEST(PacedRanks, groups_meet_by_their_stride) {
  PacedRanks ranks;
  const PacedCollective what{false, 0, 0, 2, 2};
  Instant first, second;
  {
    const std::jthread other([&] { first = ranks.meet(what, 0, {5}); });
    second = ranks.meet(what, 2, {9});
  }
  EXPECT_EQ(first.ps, 9);
  EXPECT_EQ(second.ps, 9);
  {
    const std::jthread other([&] { first = ranks.meet(what, 3, {3}); });
    second = ranks.meet(what, 1, {2});
  }
  EXPECT_EQ(first.ps, 3);
  EXPECT_EQ(second.ps, 3);
}

// --- A GH200-shaped run -----------------------------------------------------------------------

constexpr double kMeanOperationMs = 2.5;             // real time
const Duration kForgiven = PacedOptions{}.forgiven;  // by which the first operation may begin early

double slow_down_for(const CostTable& costs) {
  Duration sum;
  for (size_t i = 0; i < costs.ops.size(); ++i) sum += costs.ops[i].alone;
  return kMeanOperationMs * static_cast<double>(costs.ops.size()) / sum.ms();
}

Duration median_after(size_t warm_up_steps, std::vector<Duration> times) {
  times.erase(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(warm_up_steps));
  return median(std::move(times));
}

// Every operation in every step once, lanes in program order, edges respected, and no lane done
// sooner than the sum of its operations alone. Requires that all steps were recorded.
void expect_sound(const gh200::Prepared& prepared, const Timeline& timeline, double slow_down) {
  const Program& program = prepared.graph.step;
  ASSERT_EQ(timeline.spans.size(), program.ops.size() * static_cast<size_t>(timeline.steps));
  std::map<std::pair<OpId, int32_t>, Span> spans;
  std::map<LaneId, Span> latest;
  for (const Span& span : timeline.spans) {  // by begin
    const LaneId lane = program.ops[static_cast<size_t>(span.op)].lane;
    if (latest.contains(lane)) {
      const Span& before = latest[lane];
      EXPECT_LT(std::pair(before.step, before.op), std::pair(span.step, span.op));
      EXPECT_LE(before.end, span.begin);
    }
    latest[lane] = span;
    EXPECT_TRUE(spans.emplace(std::pair(span.op, span.step), span).second);
  }
  std::map<LaneId, Duration> alone;
  for (const auto& [name, span] : spans) {
    const auto op = static_cast<size_t>(span.op);
    alone[program.ops[op].lane] += prepared.machine.step.ops[op].alone * slow_down;
    for (auto e = program.edge_begin[op]; e < program.edge_begin[op + 1]; ++e) {
      const Edge edge = program.edges[static_cast<size_t>(e)];
      const auto other = spans.find({edge.op, span.step - edge.steps_ahead});
      if (other == spans.end()) continue;
      EXPECT_LE(other->second.end, span.begin);
    }
  }
  for (const auto& [lane, last] : latest) EXPECT_GE(last.end.ps, alone[lane].ps - kForgiven.ps);
}

class Gh200Shaped : public ::testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Plans, Gh200Shaped, ::testing::Range<size_t>(0, 6), [](const auto& about) {
  std::string name = gh200::plans()[about.param].name;
  std::replace_if(name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
});

TEST_P(Gh200Shaped, executor_and_virtual_clock_agree) {
  const gh200::NamedPlan named = gh200::plans()[GetParam()];
  const gh200::Prepared prepared =
      gh200::prepare(gh200::model(2), named.plan, load_machine("gh200-96gb-480gb"));
  EXPECT_GT(prepared.graph.step.ops.size(), 100U);
  const double slow_down = slow_down_for(prepared.machine.step);
  const double predicted = prepared.predicted.step_time.seconds();
  double best = 1;
  for (int attempt = 0; attempt < 3 && best > 0.15; ++attempt) {
    PacedDevice device(prepared.graph, prepared.machine, {.slow_down = slow_down});
    RunOptions options = paced_steps(3);
    const RunResult result = Executor(prepared.graph, device).run(options);
    expect_sound(prepared, result.timeline, slow_down);
    const double measured = median_after(1, result.step_times).seconds() / slow_down;
    best = std::min(best, std::abs(measured / predicted - 1));
  }
  RecordProperty("error_percent", std::to_string(100 * best));
  EXPECT_LE(best, 0.15);
}

// Four superchips, each a graph, an executor and capacities of its own; collectives by the
// machine's tables.
TEST(PacedRanks, four_gh200_with_zero_3_and_offload_agree_with_the_virtual_clock) {
  const gh200::Prepared prepared = gh200::prepare_ranks(gh200::model(2));
  double best = 1;
  for (int attempt = 0; attempt < 3 && best > 0.15; ++attempt) {
    const double slow_down = 2 * slow_down_for(prepared.machine.step);
    const gh200::RanksRun run = gh200::run_ranks(prepared, 4, slow_down, 4, kForgiven);
    for (const Timeline& timeline : run.timelines) {
      expect_sound(prepared, timeline, slow_down);
      EXPECT_EQ(timeline.steps, 4);
    }
    const double measured = median_after(1, run.step_times).seconds() / slow_down;
    best = std::min(best, std::abs(measured / prepared.predicted.step_time.seconds() - 1));
  }
  RecordProperty("error_percent", std::to_string(100 * best));
  EXPECT_LE(best, 0.15);
}

TEST(PacedDevice, rolled_back_step_runs_the_repair_in_its_own_time) {
  // The verdict on step 1, asked during step 2, is bad: that step takes at least as much longer as
  // the longest lane of the repair is busy.
  const gh200::Prepared prepared =
      gh200::prepare(gh200::model(1), gh200::superoffload(), load_machine("gh200-96gb-480gb"));
  const double slow_down = slow_down_for(prepared.machine.step) / 2;
  PacedDevice device(prepared.graph, prepared.machine,
                     {.slow_down = slow_down, .verdict = [](int32_t step) { return step != 2; }});
  const RunResult result = Executor(prepared.graph, device).run(paced_steps(4));
  EXPECT_EQ(result.rollbacks, 1);
  EXPECT_TRUE(device.commit(2));  // judged once
  std::map<LaneId, Duration> busy;
  const Program& repair = prepared.graph.repair;
  for (size_t i = 0; i < repair.ops.size(); ++i) {
    busy[repair.ops[i].lane] += prepared.machine.repair.ops[i].alone * slow_down;
  }
  Duration longest;
  for (const auto& [lane, time] : busy) longest = std::max(longest, time);
  EXPECT_GT(longest.ps, 0);
  EXPECT_GT(result.step_times[2], longest);
}

TEST(PacedDevice, at_full_speed_gives_the_times_of_the_machine) {
  Timeline slow;
  slow.spans = {{0, 0, {100}, {250}}};
  slow.step_time = {500};
  const Timeline fast = at_full_speed(slow, 10);
  EXPECT_EQ(fast.spans[0].begin.ps, 10);
  EXPECT_EQ(fast.spans[0].end.ps, 25);
  EXPECT_EQ(fast.step_time.ps, 50);
}

}  // namespace
}  // namespace ballast
