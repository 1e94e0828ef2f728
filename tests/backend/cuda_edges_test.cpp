// Which waits of streams an earlier wait implies, by hand.
#include "backend/cuda/cuda_edges.h"

#include <gtest/gtest.h>

namespace ballast {
namespace {

constexpr LaneId kCompute = static_cast<LaneId>(LaneKind::kCompute);
constexpr LaneId kCopyOut = static_cast<LaneId>(LaneKind::kCopyOut);
constexpr LaneId kCheck = static_cast<LaneId>(LaneKind::kCheck);

// A program of operations with the edges of each.
struct Written {
  Program program;
  Written() { program.edge_begin.push_back(0); }
  OpId op(LaneId lane, const std::vector<Edge>& edges = {}, OpKind kind = OpKind::kCopy) {
    Op op;
    op.lane = lane;
    op.kind = kind;
    program.ops.push_back(op);
    program.edges.insert(program.edges.end(), edges.begin(), edges.end());
    program.edge_begin.push_back(static_cast<int32_t>(program.edges.size()));
    return static_cast<OpId>(program.ops.size()) - 1;
  }
};

TEST(CudaEdges, what_a_stream_has_waited_for_it_need_not_wait_for_again) {
  Written w;
  const OpId first = w.op(kCompute);
  const OpId second = w.op(kCompute);
  const OpId waits = w.op(kCopyOut, {{second, 0}});
  const OpId implied = w.op(kCopyOut, {{first, 0}});
  const OpId third = w.op(kCompute);
  const OpId later = w.op(kCopyOut, {{third, 0}});
  const NeededEdges edges(w.program, kLaneKinds, true);
  EXPECT_TRUE(edges.must_wait(waits, second));
  EXPECT_FALSE(edges.must_wait(implied, first));
  EXPECT_TRUE(edges.must_wait(later, third));
  EXPECT_FALSE(edges.is_followed(first));
  EXPECT_TRUE(edges.is_followed(second));
}

// The first copy has waited for the step before, so the second need not. In a program that runs
// once nothing came before.
TEST(CudaEdges, the_step_before_counts_where_steps_follow_each_other) {
  Written w;
  const OpId copy = w.op(kCopyOut, {{2, 1}});
  const OpId again = w.op(kCopyOut, {{2, 1}});
  const OpId compute = w.op(kCompute);
  const NeededEdges edges(w.program, kLaneKinds, true);
  EXPECT_TRUE(edges.must_wait(copy, compute));
  EXPECT_FALSE(edges.must_wait(again, compute));
  Written once;
  const OpId one = once.op(kCompute);
  const OpId other = once.op(kCopyOut, {{one, 0}});
  EXPECT_TRUE(NeededEdges(once.program, kLaneKinds, false).must_wait(other, one));
}

// The stream has waited, the host that judges has not. What the host has seen done is done for the
// stream, too, as it hands over later.
TEST(CudaEdges, the_hosts_work_counts_what_the_host_has_waited_for) {
  Written w;
  const OpId copy = w.op(kCopyOut);
  const OpId stream = w.op(kCompute, {{copy, 0}});
  const OpId commit = w.op(kCompute, {{copy, 0}}, OpKind::kCommit);
  const OpId sums = w.op(kCheck, {{copy, 0}});
  const OpId more = w.op(kCheck, {{copy, 0}});
  const NeededEdges edges(w.program, kLaneKinds, true);
  EXPECT_TRUE(edges.must_wait(stream, copy));
  EXPECT_TRUE(edges.must_wait(commit, copy));
  EXPECT_TRUE(edges.must_wait(sums, copy));
  EXPECT_FALSE(edges.must_wait(more, copy));
  Written judged;
  const OpId norms = judged.op(kCopyOut);
  judged.op(kCompute, {{norms, 0}}, OpKind::kCommit);
  const OpId after = judged.op(kCompute, {{norms, 0}});
  EXPECT_FALSE(NeededEdges(judged.program, kLaneKinds, true).must_wait(after, norms));
}

// An accepted step's records are asked for without an edge.
TEST(CudaEdges, what_has_no_edge_is_waited_for_where_somebody_asks) {
  Written w;
  const OpId one = w.op(kCompute);
  const OpId other = w.op(kCompute);
  EXPECT_TRUE(NeededEdges(w.program, kLaneKinds, true).must_wait(other, one));
}

}  // namespace
}  // namespace ballast
