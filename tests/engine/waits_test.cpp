#include "sim/graph/report/waits.h"

#include <array>
#include <gtest/gtest.h>

#include "sim/engine/predict.h"
#include "tests/engine/tiny_machine.h"

namespace ballast {
namespace {

using tests::tiny_machine;
using tests::tiny_model;

std::vector<Prediction> predictions() {
  std::vector<Prediction> all;
  for (const SyncMode sync : {SyncMode::kWait, SyncMode::kDelay, SyncMode::kSpeculate}) {
    for (const MemoryReuse reuse : {MemoryReuse::kApart, MemoryReuse::kAtOnce}) {
      Plan plan = tests::tiny_plan(OptimizerPlacement::kCpu);
      plan.optimizer.sync = sync;
      plan.memory_reuse = reuse;
      plan.weights.flow_share = 1;
      all.push_back(predict(tiny_model(), plan, tiny_machine(), nullptr));
    }
  }
  return all;
}

// Every edge of every plan has a cause, and all kinds of them occur.
TEST(Waits, every_edge_has_a_cause) {
  std::array<int, 4> found{};
  for (const Prediction& one : predictions()) {
    const Program& step = one.graph.step;
    for (size_t i = 0; i < step.ops.size(); ++i) {
      for (int32_t e = step.edge_begin[i]; e < step.edge_begin[i + 1]; ++e) {
        const Edge& edge = step.edges[static_cast<size_t>(e)];
        const EdgeCause cause = cause_of(one.graph, static_cast<OpId>(i), edge);
        ++found[static_cast<size_t>(cause.cause)];
        EXPECT_EQ(cause.tensor >= 0, cause.cause != WaitCause::kFence);
        EXPECT_EQ(cause.other >= 0, cause.cause == WaitCause::kMemory);
      }
    }
  }
  EXPECT_EQ(found[static_cast<size_t>(WaitCause::kLane)], 0);
  for (const auto cause : {WaitCause::kTensor, WaitCause::kMemory, WaitCause::kFence}) {
    EXPECT_GT(found[static_cast<size_t>(cause)], 0) << to_string(cause);
  }
}

// In the first recorded step too, or nothing is said: what it awaits of the step before is not
// there.
TEST(Waits, what_began_later_than_all_that_was_recorded_names_none_of_it) {
  int64_t named = 0, left_out = 0;
  for (const Prediction& one : predictions()) {
    const Waits waits(one.graph, one.timeline);
    for (const Span& span : one.timeline.spans) {
      const std::vector<Release> recorded = waits.releases_of(span);
      const std::optional<Release> last = waits.last_release_of(span);
      if (!last) {
        EXPECT_EQ(span.step, one.timeline.first_step);
        if (!recorded.empty()) ++left_out;
        continue;
      }
      ++named;
      const Duration since = span.begin - last->span->end;
      const Duration handover = one.costs.ops[static_cast<size_t>(span.op)].handover;
      EXPECT_TRUE(since.ps == 0 || since == handover) << describe(one.graph.op(span.op));
    }
  }
  EXPECT_GT(named, 100);
  EXPECT_GT(left_out, 0);
}

// An operation begins when the last of what it waits for has ended, or a hand-over later; and what
// waits for it begins no sooner than it ends.
TEST(Waits, last_release_is_when_an_operation_begins) {
  int64_t checked = 0, late = 0;
  for (const Prediction& one : predictions()) {
    const Waits waits(one.graph, one.timeline);
    const int32_t last = one.timeline.first_step + one.timeline.steps - 1;
    for (const Span& span : one.timeline.spans) {
      if (span.step != last) continue;
      const std::vector<Release> releases = waits.releases_of(span);
      ASSERT_FALSE(releases.empty());
      EXPECT_EQ(waits.last_release_of(span)->span, releases.front().span);
      EXPECT_EQ(waits.last_release_of(span)->cause.cause, releases.front().cause.cause);
      const Duration since = span.begin - releases.front().span->end;
      const Duration handover = one.costs.ops[static_cast<size_t>(span.op)].handover;
      EXPECT_TRUE(since.ps == 0 || since == handover)
          << describe(one.graph.op(span.op)) << " " << since.us() << " us";
      if (since.ps > 0) ++late;
      for (const Release& each : releases) EXPECT_GE(releases.front().span->end, each.span->end);
      if (const auto slack = waits.slack_of(span)) {
        EXPECT_GE(slack->first.ps, 0);
      }
      ++checked;
    }
  }
  EXPECT_GT(checked, 100);
  EXPECT_GT(late, 0);
}

// By hand: the CPU's Adam of a bucket reads the gradient that its copy brought.
TEST(Waits, adam_on_the_cpu_waits_for_the_gradient_of_its_bucket) {
  const Prediction one = predictions().front();
  const Waits waits(one.graph, one.timeline);
  int64_t found = 0;
  for (const Span& span : one.timeline.spans) {
    const Op& op = one.graph.op(span.op);
    if (op.kind != OpKind::kAdam) continue;
    for (const Release& release : waits.releases_of(span)) {
      if (release.cause.cause != WaitCause::kTensor) continue;
      EXPECT_EQ(one.graph.tensor(release.cause.tensor).place, Place::kDram);
      ++found;
    }
  }
  EXPECT_GT(found, 0);
}

}  // namespace
}  // namespace ballast
