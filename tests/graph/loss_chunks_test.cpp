// Head and loss over one piece of a micro-batch's tokens after another (Plan::loss_chunks): rows,
// order, memory and exchanges, counted by hand.
#include <algorithm>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "sim/graph/report/memory.h"
#include "tests/graph/tiny_plans.h"

namespace ballast {
namespace {

bool is_of_head(const Op& op) {
  const bool computes = op.kind == OpKind::kGemm || op.kind == OpKind::kLoss;
  return computes && (op.label.module == ModuleKind::kHead || op.label.module == ModuleKind::kLoss);
}

std::vector<Op> ops_of_head(const Graph& graph) {
  std::vector<Op> found;
  for (const Op& op : graph.step.ops) {
    if (is_of_head(op)) found.push_back(op);
  }
  return found;
}

Plan plan_in_pieces(int64_t pieces) {
  Plan plan = tiny::plan();
  plan.loss_chunks = pieces;
  return plan;
}

// 8 tokens in 3 pieces: the first two, then three, then three; C = 8, V = 16.
TEST(loss_chunks, each_piece_passes_head_loss_and_backward_before_the_next) {
  const std::vector<Op> ops = ops_of_head(build(tiny::model(), plan_in_pieces(3)));
  ASSERT_EQ(ops.size(), 12u);
  const int64_t kRows[] = {2, 3, 3};
  for (size_t piece = 0; piece < 3; ++piece) {
    const int64_t rows = kRows[piece];
    const Op* const at = &ops[4 * piece];
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(at[i].label.loss_chunk, static_cast<int16_t>(piece)) << describe(at[i]);
    }
    const GemmWork forward{rows, 16, 8, DType::kBf16, false};
    const GemmWork weight{16, 8, rows, DType::kBf16, piece > 0};
    const GemmWork input{rows, 8, 16, DType::kBf16, false};
    EXPECT_EQ(std::get<GemmWork>(at[0].work), forward);
    EXPECT_EQ(std::get<RowWork>(at[1].work).rows, rows);
    EXPECT_EQ(std::get<GemmWork>(at[2].work), weight) << "later pieces add";
    EXPECT_EQ(std::get<GemmWork>(at[3].work), input);
  }
}

// Logits are 8 x 16 values in 16 bits, or of 4 of the tokens, or of 2.
TEST(loss_chunks, logits_of_one_piece_exist_at_a_time) {
  for (const int64_t pieces : {1, 2, 4}) {
    const Graph graph = build(tiny::model(), plan_in_pieces(pieces));
    const std::vector<Life> lives = lives_of(graph);
    const auto is_logits = [&](size_t t) {
      const Tensor& tensor = graph.tensors[t];
      return tensor.kind == TensorKind::kOutput && tensor.label.module == ModuleKind::kHead;
    };
    const std::vector<Bytes> live = live_bytes(graph, lives, is_logits);
    // Rows of 16 ids begin 64 values apart.
    EXPECT_EQ(std::max_element(live.begin(), live.end())->count, 8 * 64 * 2 / pieces) << pieces;
  }
}

TEST(loss_chunks, one_piece_is_the_graph_without_them) {
  const Graph graph = build(tiny::model(), plan_in_pieces(1));
  EXPECT_EQ(ops_of_head(graph).size(), 4u);
  for (const Op& op : graph.step.ops) EXPECT_EQ(op.label.loss_chunk, -1) << describe(op);
}

// What a framework's source says of its own pieces is of a micro-batch that nothing else cuts.
TEST(loss_chunks, a_plan_says_how_many_in_place_of_the_framework) {
  StackFacts facts;
  facts.loss_chunks = 8;
  const auto logits = [&](int64_t pieces) {
    int64_t most = 0;
    for (const Tensor& tensor :
         tiny::used(build(tiny::model(), plan_in_pieces(pieces), facts), TensorKind::kOutput)) {
      if (tensor.label.module == ModuleKind::kHead) most = std::max(most, tensor.elements);
    }
    return most;
  };
  EXPECT_EQ(logits(1), 64);
  EXPECT_EQ(logits(2), 4 * 64);
}

// Forward and backward gather the head's input, and one exchange sums what is left of its gradient,
// however many pieces; sums over the vocabulary are of each piece: 3 values a token in 32 bits.
TEST(loss_chunks, tensor_ranks_exchange_the_heads_input_and_its_gradient_once) {
  for (const bool by_token : {false, true}) {
    const auto exchanges_of = [&](int64_t pieces) {
      Plan plan = plan_in_pieces(pieces);
      plan.tensor = plan.devices = 2;
      plan.tensor_sequence = by_token;
      plan.optimizer.placement = OptimizerPlacement::kGpu;
      std::vector<CollectiveWork> of_head, of_loss;
      for (const Op& op : build(tiny::model(), plan).step.ops) {
        const auto* work = std::get_if<CollectiveWork>(&op.work);
        if (work == nullptr) continue;
        if (op.label.module == ModuleKind::kHead) of_head.push_back(*work);
        if (op.label.module == ModuleKind::kLoss) of_loss.push_back(*work);
      }
      return std::pair(of_head, of_loss);
    };
    const auto [head, loss] = exchanges_of(1);
    const auto [head_of_pieces, loss_of_pieces] = exchanges_of(4);
    ASSERT_FALSE(head.empty());
    EXPECT_EQ(head_of_pieces, head) << by_token;
    ASSERT_EQ(loss.size(), 1u);
    EXPECT_EQ(loss.front().bytes.count, 8 * 3 * 4);
    ASSERT_EQ(loss_of_pieces.size(), 4u);
    for (const CollectiveWork& work : loss_of_pieces) EXPECT_EQ(work.bytes.count, 2 * 3 * 4);
  }
}

TEST(loss_chunks, pieces_without_tokens_and_pieces_of_parts_are_refused_by_name) {
  const auto refusal = [](const Plan& plan) -> std::string {
    try {
      check(plan, tiny::model());
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal(plan_in_pieces(8)), "");
  EXPECT_EQ(refusal(plan_in_pieces(9)).substr(0, 17), "plan, loss_chunks");
  Plan parts = plan_in_pieces(2);
  parts.sequence_length = 256;
  parts.subsequences = 2;
  EXPECT_EQ(refusal(parts).substr(0, 17), "plan, loss_chunks");
}

}  // namespace
}  // namespace ballast
