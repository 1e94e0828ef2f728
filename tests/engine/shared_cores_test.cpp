// The stages of a pipeline that one machine runs in one process: one set of capacities for all. The
// ranks that it runs: each has its part of them.
#include <gtest/gtest.h>

#include "tests/engine/costed.h"
#include "tests/engine/tiny_machine.h"

namespace ballast {
namespace {

using tests::tiny_machine;

Op gemm_of_stage(int stage) {
  Op op;
  op.kind = OpKind::kGemm;
  op.phase = Phase::kForward;
  op.lane = lane_of(stage, LaneKind::kCompute);
  op.work = GemmWork{100, 100, 100, DType::kBf16, false};
  return op;
}

Graph two_stages() {
  Graph graph;
  graph.lanes = 2 * kLaneKinds;
  return graph;
}

CostTable table_of(const Program& program, const Machine& machine) {
  return CostModel(machine, Plan{}, Stack{}, nullptr).table(program, two_stages());
}

TEST(SharedCores, stages_that_this_machine_runs_have_one_set_of_capacities) {
  Machine machine = tiny_machine();
  Program both;
  both.ops = {gemm_of_stage(0), gemm_of_stage(1)};
  const CostTable apart = table_of(both, machine);
  EXPECT_NE(apart.ops[0].demands[0].capacity, apart.ops[1].demands[0].capacity);
  machine.gpu.is_host_thread = true;
  const CostTable shared = table_of(both, machine);
  EXPECT_EQ(2 * shared.capacities.size(), apart.capacities.size());
  EXPECT_EQ(shared.ops[0].demands[0].capacity, shared.ops[1].demands[0].capacity);
}

// It needs neither a node's wires nor a network, and takes what a copy between places takes.
TEST(SharedCores, a_message_between_them_is_a_copy) {
  Machine machine = tiny_machine();
  machine.gpu.is_host_thread = true;
  Op copy;
  copy.kind = OpKind::kCopy;
  copy.lane = lane_of(0, LaneKind::kCopyIn);
  copy.work = CopyWork{Bytes{1000}, CopyDirection::kHostToDevice};
  Op message;
  message.kind = OpKind::kCollective;
  message.lane = lane_of(0, LaneKind::kPipelineNetwork);
  message.work = CollectiveWork{CollectiveKind::kSendReceive, Bytes{1000}, 2, 1};
  Program both;
  both.ops = {copy, message};
  const CostTable table = table_of(both, machine);
  EXPECT_EQ(table.ops[0].alone, table.ops[1].alone);
  EXPECT_GT(table.ops[1].alone.ps, 0);
}

// What ranks exchange was timed once, without a phase, and holds in every phase of a step; messages
// between stages are none of it.
TEST(SharedCores, what_was_timed_of_ranks_holds_in_every_phase_and_not_between_stages) {
  Machine machine = tiny_machine();
  machine.gpu.is_host_thread = true;
  Op timed;
  timed.kind = OpKind::kCollective;
  timed.phase = Phase::kOptimizer;
  timed.lane = lane_of(0, LaneKind::kDataNetwork);
  timed.work = CollectiveWork{CollectiveKind::kSendReceive, Bytes{4096}, 2, 1};
  const Duration median = Duration::from_seconds(1);
  const Measurements measurements = {{cost_key(timed), measurement_of(timed, {median, {}})}};
  Program program;
  for (const Phase phase : {Phase::kForward, Phase::kBackward, Phase::kFetch, Phase::kOptimizer}) {
    for (const int64_t bytes : {4096, 8192}) {  // the second is interpolated
      Op op = timed;
      op.phase = phase;
      op.lane = lane_of(0, LaneKind::kSequenceNetwork);
      op.work = CollectiveWork{CollectiveKind::kSendReceive, Bytes{bytes}, 2, 1};
      program.ops.push_back(op);
    }
  }
  Op between_stages = timed;
  between_stages.lane = lane_of(0, LaneKind::kPipelineNetwork);
  program.ops.push_back(between_stages);
  const CostTable table =
      CostModel(machine, Plan{}, Stack{}, &measurements).table(program, two_stages());
  for (size_t i = 0; i + 1 < program.ops.size(); i += 2) {
    EXPECT_EQ(table.ops[i].alone, median);
    EXPECT_NEAR(table.ops[i + 1].alone.seconds(), 2, 1e-9);
  }
  EXPECT_LT(table.ops[program.ops.size() - 1].alone, median);
}

// Four cores: one rank's step by four threads runs at full speed, of two ranks each has two.
TEST(SharedCores, ranks_that_this_machine_runs_take_cores_from_each_other) {
  Machine machine = tiny_machine();
  const auto cores_of = [&](int64_t ranks) {
    Plan plan;
    plan.data = plan.devices = ranks;
    const Graph graph = two_stages();
    const CostTable table = CostModel(machine, plan, Stack{}, nullptr).table(Program{}, graph);
    for (const Capacity& capacity : table.capacities) {
      if (capacity.name.starts_with("cores")) return capacity.amount;
    }
    return 0.0;
  };
  EXPECT_EQ(cores_of(2), cores_of(1));  // elsewhere each has a machine's
  machine.gpu.is_host_thread = true;
  EXPECT_EQ(cores_of(2), cores_of(1) / 2);
}

// So do those that split products, sequences or a ring; the stages of a pipeline share what there
// is among them.
TEST(SharedCores, ranks_of_every_degree_have_a_part_of_this_machine) {
  Machine machine = tiny_machine();
  machine.gpu.is_host_thread = true;
  const auto cores_of = [&](const Plan& plan) {
    const CostTable table =
        CostModel(machine, plan, Stack{}, nullptr).table(Program{}, two_stages());
    for (const Capacity& capacity : table.capacities) {
      if (capacity.name.starts_with("cores")) return capacity.amount;
    }
    return 0.0;
  };
  const double all = cores_of(Plan{});
  for (int64_t Plan::* degree : {&Plan::tensor, &Plan::sequence, &Plan::context}) {
    Plan plan;
    plan.data = 2;
    plan.*degree = 2;
    EXPECT_EQ(cores_of(plan), all / 4);
  }
  Plan staged;
  staged.pipeline = 2;
  EXPECT_EQ(cores_of(staged), all);
}

}  // namespace
}  // namespace ballast
