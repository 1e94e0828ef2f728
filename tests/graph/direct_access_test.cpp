// Kernels that read and write CPU memory themselves, against the copies that they stand for.
#include <algorithm>
#include <gtest/gtest.h>
#include <set>

#include "sim/graph/report/memory.h"
#include "tests/graph/tiny_plans.h"

namespace ballast {
namespace {

Plan direct(Plan plan) {
  plan.optimizer.transfers = StateTransfers::kDirect;
  return plan;
}

Plan speculating_and_flowing() {
  Plan plan = tiny::plan();
  plan.optimizer.sync = SyncMode::kSpeculate;
  plan.weights.flow_share = 0.5;
  return plan;
}

Graph graph_of(const Plan& plan) { return build(tiny::model(), plan); }

template <class Visit>
void for_every_op(const Graph& graph, const Visit& visit) {
  for (const Program* program : {&graph.step, &graph.repair}) {
    for (const Op& op : program->ops) visit(op);
  }
}

// Bytes that cross the link, by direction.
struct Crossing {
  int64_t in = 0, out = 0;
  bool operator==(const Crossing&) const = default;
};
Crossing crossing(const Graph& graph) {
  Crossing all;
  for_every_op(graph, [&](const Op& op) {
    if (const auto* copy = std::get_if<CopyWork>(&op.work)) {
      (copy->direction == CopyDirection::kHostToDevice ? all.in : all.out) += copy->bytes.count;
    }
    if (const auto* kernel = std::get_if<BucketWork>(&op.work)) {
      all.in += kernel->from_host.count;
      all.out += kernel->to_host.count;
    }
  });
  return all;
}

// With casts on either side, weights that stay and flow, one rank and shares of two.
std::vector<Plan> plans() {
  std::vector<Plan> all;
  for (const SyncMode sync : {SyncMode::kWait, SyncMode::kDelay, SyncMode::kSpeculate}) {
    for (const CastPlacement cast : {CastPlacement::kGpu, CastPlacement::kCpu}) {
      for (const double flow : {0.0, 0.5, 1.0}) {
        for (const int zero_stage : {0, 1, 2, 3}) {
          Plan plan = tiny::plan();
          plan.optimizer.sync = sync;
          plan.optimizer.cast = cast;
          plan.weights.flow_share = flow;
          plan.zero_stage = zero_stage;
          plan.devices = plan.data = zero_stage == 0 ? 1 : 2;
          plan.global_batch *= plan.data;
          all.push_back(plan);
        }
      }
    }
  }
  return all;
}

TEST(direct_access, moves_the_same_bytes_across_the_link_and_copies_none_of_state) {
  for (const Plan& plan : plans()) {
    const Graph by_copies = graph_of(plan);
    const Graph by_kernels = graph_of(direct(plan));
    EXPECT_EQ(crossing(by_kernels), crossing(by_copies));
    for_every_op(by_kernels, [&](const Op& op) {
      EXPECT_FALSE(moves_parameters(by_kernels, op)) << describe(op);
    });
    EXPECT_LE(by_kernels.step.ops.size(), by_copies.step.ops.size());
  }
}

// The tiny model has 15 buckets of one module each. With copies the GPU packs, copies, sums and
// copies the sums, and what returns is copied and unpacked; without, it packs and sums and copies
// sums, and unpacks.
TEST(direct_access, one_kernel_takes_the_place_of_kernel_and_copy) {
  const Graph copies = graph_of(tiny::plan());
  const Graph kernels = graph_of(direct(tiny::plan()));
  EXPECT_EQ(tiny::count(copies, OpKind::kCopy, Phase::kOptimizer), 3 * 15);
  EXPECT_EQ(tiny::count(kernels, OpKind::kCopy, Phase::kOptimizer), 15);
  for (const OpKind kind : {OpKind::kPack, OpKind::kUnpack, OpKind::kSumOfSquares}) {
    EXPECT_EQ(tiny::count(kernels, kind), 15) << to_string(kind);
    EXPECT_EQ(tiny::count(copies, kind), 15) << to_string(kind);
  }
}

TEST(direct_access, needs_no_staging_on_the_gpu) {
  for (const Plan& plan : {tiny::plan(), speculating_and_flowing()}) {
    const Graph graph = graph_of(direct(plan));
    std::set<TensorId> used;
    for_every_op(graph, [&](const Op& op) {
      for (const Access& access : op.accesses) used.insert(access.tensor);
    });
    for (const TensorId id : used) {
      EXPECT_NE(graph.tensor(id).category, Category::kStaging) << describe(graph.tensor(id));
    }
    EXPECT_LT(graph.arenas.size[static_cast<size_t>(Place::kHbm)],
              graph_of(plan).arenas.size[static_cast<size_t>(Place::kHbm)]);
    EXPECT_EQ(graph.arenas.size[static_cast<size_t>(Place::kDram)],
              graph_of(plan).arenas.size[static_cast<size_t>(Place::kDram)]);
  }
}

// The shares of ranks are gathered and scattered on the GPU, so that staging stays.
TEST(direct_access, ranks_that_share_state_move_their_shares_by_kernels) {
  Plan plan = tiny::plan();
  plan.zero_stage = 2;
  plan.devices = plan.data = 2;
  plan.global_batch *= 2;
  const Graph graph = graph_of(direct(plan));
  EXPECT_EQ(tiny::count(graph, OpKind::kCollective),
            tiny::count(graph_of(plan), OpKind::kCollective));
  EXPECT_EQ(tiny::count(graph, OpKind::kPack), 2 * 15);  // to the exchange, and out
  EXPECT_EQ(tiny::count(graph, OpKind::kUnpack), 2 * 15);
}

TEST(direct_access, activations_and_streamed_state_are_copied_as_before) {
  Plan plan = tiny::plan();
  plan.optimizer.stream_share = 1;
  plan.activations->fate.fill(ActivationFate::kOffload);
  const auto copies = [&](const Graph& graph) {
    int64_t found = 0;
    for (const Op& op : graph.step.ops) {
      found += op.kind == OpKind::kCopy && !moves_parameters(graph, op);
    }
    return found;
  };
  EXPECT_GT(copies(graph_of(plan)), 30);
  EXPECT_EQ(copies(graph_of(direct(plan))), copies(graph_of(plan)));
}

TEST(direct_access, costs_have_a_key_of_their_own) {
  Op op;
  op.kind = OpKind::kPack;
  op.phase = Phase::kOptimizer;
  BucketWork work = elementwise(1000, DType::kBf16, DType::kF32, Site::kGpu);
  op.work = work;
  const std::string here = cost_key(op);
  work.to_host = Bytes{4000};
  op.work = work;
  EXPECT_EQ(cost_key(op), here + " to host");
}

}  // namespace
}  // namespace ballast
