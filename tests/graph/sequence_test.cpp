// Sequences of 4 tokens split over two ranks: of 2 sequences a rank has 4 tokens.
#include <gtest/gtest.h>

#include "tests/graph/tiny_plans.h"

namespace ballast {
namespace {

Plan ulysses() {
  Plan plan = tiny::plan();
  plan.devices = plan.sequence = 2;
  return plan;
}

Plan ring() {
  Plan plan = tiny::plan();
  plan.devices = plan.context = 2;
  return plan;
}

double attention_flops(const Graph& graph) {
  double sum = 0;
  for (const Op& op : graph.step.ops) {
    if (op.kind == OpKind::kAttention) sum += flops_of(op.work).count;
  }
  return sum;
}

// Queries, keys and values of 4 tokens: 4 * 24 values of 2 bytes; the output 4 * 8 (arXiv
// 2309.14509, section 3.1). The backward sends the gradient of the output, then that of the input.
TEST(sequence_pass, a_layer_has_two_all_to_alls_forward_and_two_backward) {
  Plan plan = ulysses();
  const CollectiveWork in{CollectiveKind::kAllToAll, {4 * 24 * 2}, 2, 1};
  const CollectiveWork out{CollectiveKind::kAllToAll, {4 * 8 * 2}, 2, 1};
  const Graph graph = sequence_pass(build_plain(tiny::model(), plan), plan);
  EXPECT_EQ(tiny::exchanges(graph, Phase::kForward).layers,
            (std::vector<CollectiveWork>{in, out, in, out}));
  EXPECT_EQ(tiny::exchanges(graph, Phase::kBackward).layers,
            (std::vector<CollectiveWork>{out, in, out, in}));
}

// Keys and values of 4 tokens are 2 * 4 * 8 values, 128 bytes, and go to the one other rank; in the
// backward with their gradients (arXiv 2310.01889, section 3).
TEST(sequence_pass, keys_and_values_go_round_the_ring_once_forward_and_with_gradients_backward) {
  Plan plan = ring();
  const CollectiveWork forward{CollectiveKind::kSendReceive, {128}, 2, 1};
  const CollectiveWork backward{CollectiveKind::kSendReceive, {256}, 2, 1};
  const Graph graph = sequence_pass(build_plain(tiny::model(), plan), plan);
  EXPECT_EQ(tiny::exchanges(graph, Phase::kForward).layers,
            (std::vector<CollectiveWork>{forward, forward}));
  EXPECT_EQ(tiny::exchanges(graph, Phase::kBackward).layers,
            (std::vector<CollectiveWork>{backward, backward}));
}

// Four ranks of one token each: 3 rounds of 2 * 2 * 8 values, 64 bytes.
TEST(sequence_pass, a_ring_of_four_has_three_rounds) {
  Plan plan = ring();
  plan.devices = plan.context = 4;
  const Graph graph = sequence_pass(build_plain(tiny::model(), plan), plan);
  const CollectiveWork forward{CollectiveKind::kSendReceive, {3 * 64}, 4, 1};
  EXPECT_EQ(tiny::count(tiny::exchanges(graph, Phase::kForward).layers, forward), 2);
}

TEST(sequence_pass, a_rank_attends_for_its_share_however_the_sequence_is_split) {
  const double all = attention_flops(build(tiny::model(), tiny::plan()));
  EXPECT_GT(all, 0);
  EXPECT_EQ(2 * attention_flops(build(tiny::model(), ulysses())), all);
  EXPECT_EQ(2 * attention_flops(build(tiny::model(), ring())), all);
}

// Tensor-parallel ranks are neighbours, then context, then sequence.
TEST(sequence_pass, groups_lie_outside_the_tensor_parallel_ranks) {
  Model model = tiny::model();
  model.heads = model.kv_heads = 4;
  model.head_size = 2;
  Plan plan = tiny::plan();
  plan.devices = 8;
  plan.tensor = plan.context = plan.sequence = 2;
  for (const Op& op : build(model, plan).step.ops) {
    const auto* work = std::get_if<CollectiveWork>(&op.work);
    if (work == nullptr) continue;
    if (work->kind == CollectiveKind::kAllToAll) {
      EXPECT_EQ(work->stride, 4);
    } else if (work->kind == CollectiveKind::kSendReceive) {
      EXPECT_EQ(work->stride, 2);
    } else if (op.phase == Phase::kForward || op.phase == Phase::kBackward) {
      EXPECT_EQ(work->stride, 1);
    } else {
      EXPECT_EQ(work->ranks, 4);  // gradients, over all that hold the same weights
      EXPECT_EQ(work->stride, 2);
    }
  }
}

TEST(sequence_pass, nothing_moves_where_sequences_are_whole) {
  const Plan plan = tiny::plan();
  const Graph plain = build_plain(tiny::model(), plan);
  const Graph graph = sequence_pass(plain, plan);
  EXPECT_EQ(graph.step.ops.size(), plain.step.ops.size());
  EXPECT_EQ(graph.tensors.size(), plain.tensors.size());
}

}  // namespace
}  // namespace ballast
