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

// With one head of keys for two of queries 4 tokens have 4 * 16 values before the exchange, and
// repeated 4 * 24; the gradient the same. Each of the four exchanges has a pass of 4 bytes a value.
TEST(sequence_pass, a_framework_repeats_keys_and_lays_out_what_it_exchanges) {
  Model model = tiny::model();
  model.kv_heads = 1;
  StackFacts facts;
  facts.repeats_keys_values = true;
  facts.exchange_bytes = 4;
  const Plan plan = ulysses();
  const Graph graph = sequence_pass(build_plain(model, plan), plan, facts);
  const CollectiveWork in{CollectiveKind::kAllToAll, {4 * 24 * 2}, 2, 1};
  const CollectiveWork out{CollectiveKind::kAllToAll, {4 * 8 * 2}, 2, 1};
  EXPECT_EQ(tiny::exchanges(graph, Phase::kForward).layers,
            (std::vector<CollectiveWork>{in, out, in, out}));
  EXPECT_EQ(tiny::exchanges(graph, Phase::kBackward).layers,
            (std::vector<CollectiveWork>{out, in, out, in}));
  int64_t moved = 0;
  for (const Op& op : graph.step.ops) {
    if (op.kind != OpKind::kPack && op.kind != OpKind::kUnpack) continue;
    EXPECT_EQ(kind_of(op.lane), LaneKind::kCompute);
    moved += std::get<BucketWork>(op.work).moved.count;
  }
  EXPECT_EQ(moved, 2 * 4 * 2 * (4 * 24 + 4 * 8)) << "two layers, forward and backward";
  EXPECT_EQ(tiny::exchanges(sequence_pass(build_plain(model, plan), plan), Phase::kForward)
                .layers.front()
                .bytes,
            Bytes{4 * 16 * 2});
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
  plan.context_balance = ContextBalance::kNone;
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

using Pieces = std::vector<Subsequence>;

// Four ranks of 64 tokens: pieces of 8 tokens of a zigzag, 0 and 7, 1 and 6, 2 and 5, 3 and 4, or
// 16 consecutive tokens each.
Plan ring_of_four(ContextBalance balance) {
  Plan plan = ring();
  plan.devices = plan.context = 4;
  plan.sequence_length = 64;
  plan.context_balance = balance;
  return plan;
}

TEST(context_balance, a_rank_has_an_early_and_a_late_piece_or_consecutive_tokens) {
  const Plan zigzag = ring_of_four(ContextBalance::kZigzag);
  EXPECT_EQ(ring_pieces(zigzag, {0, 64}, 0), (Pieces{{0, 8}, {56, 8}}));
  EXPECT_EQ(ring_pieces(zigzag, {0, 64}, 1), (Pieces{{8, 8}, {48, 8}}));
  EXPECT_EQ(ring_pieces(zigzag, {0, 64}, 3), (Pieces{{24, 8}, {32, 8}}));
  EXPECT_EQ(ring_pieces(zigzag, {64, 32}, 3), (Pieces{{76, 4}, {80, 4}}));  // of a part
  const Plan none = ring_of_four(ContextBalance::kNone);
  EXPECT_EQ(ring_pieces(none, {0, 64}, 3), (Pieces{{48, 16}}));
  EXPECT_EQ(ring_pieces(none, {64, 32}, 1), (Pieces{{72, 8}}));
}

// Pairs of a query and a key no later that rank `rank` has in step `step` of the ring, when keys
// and values of the rank so many before it are there; a pair with itself is half, as it is on the
// edge of the causal half of the square.
double pairs_in(const Plan& plan, int64_t rank, int64_t step) {
  const int64_t other = (rank - step + plan.context) % plan.context;
  double pairs = 0;
  for (const Subsequence& queries : ring_pieces(plan, {0, plan.sequence_length}, rank)) {
    for (const Subsequence& keys : ring_pieces(plan, {0, plan.sequence_length}, other)) {
      for (int64_t query = queries.begin; query < queries.end(); ++query) {
        for (int64_t key = keys.begin; key < keys.end(); ++key) {
          pairs += query > key ? 1 : query == key ? 0.5 : 0;
        }
      }
    }
  }
  return pairs;
}

// Of pieces of 8 tokens a rank has two squares of 64 pairs in every step: at first two halves and
// the late piece's queries with the early one's keys; then both pieces' queries with an earlier
// rank's early keys, or the late piece's with both of a later rank.
TEST(context_balance, ranks_of_a_zigzag_have_as_many_pairs_in_every_step_of_the_ring) {
  const Plan plan = ring_of_four(ContextBalance::kZigzag);
  for (int64_t rank = 0; rank < 4; ++rank) {
    for (int64_t step = 0; step < 4; ++step) EXPECT_EQ(pairs_in(plan, rank, step), 2 * 64);
  }
  EXPECT_EQ(busiest_area(plan, {0, 64}, 0), 2 * 4 * 2 * 64);
}

// Of 16 consecutive tokens: half of a square of 256 with its own keys, then a square with those of
// ranks before it and nothing with those of ranks after it. The last one has 7/16 of all 2048.
TEST(context_balance, without_one_the_last_rank_has_all_the_squares) {
  const Plan plan = ring_of_four(ContextBalance::kNone);
  for (int64_t rank = 0; rank < 4; ++rank) {
    for (int64_t step = 0; step < 4; ++step) {
      EXPECT_EQ(pairs_in(plan, rank, step), step == 0 ? 128 : step <= rank ? 256 : 0);
    }
  }
  EXPECT_EQ(busiest_area(plan, {0, 64}, 0), 2 * (128 + 3 * 256));
}

// 2 - 1/P of the mean: all ranks wait for the last.
TEST(context_balance, attention_costs_what_the_busiest_rank_has) {
  Plan alone = tiny::plan();
  alone.sequence_length = 64;
  const double all = attention_flops(build(tiny::model(), alone));
  const auto of = [](ContextBalance balance) {
    return attention_flops(build(tiny::model(), ring_of_four(balance)));
  };
  EXPECT_EQ(of(ContextBalance::kZigzag), all / 4);
  EXPECT_EQ(of(ContextBalance::kNone), all * 7 / 16);
}

// A window of 4 tokens: of pieces of 8 the first has 4 (2 * 8 - 4) = 48 pairs, counted twice, and
// each of the others 2 * 4 * 8 = 64. So rank 0 has 112 of a zigzag and the others 128, of all 496;
// of 16 consecutive tokens each but the first has 128 too.
TEST(context_balance, the_first_tokens_of_a_window_leave_the_other_ranks_more_than_the_mean) {
  Model model = tiny::model();
  model.sliding_window = 4;
  Plan alone = tiny::plan();
  alone.sequence_length = 64;
  const double all = attention_flops(build(model, alone));
  for (const ContextBalance balance : {ContextBalance::kZigzag, ContextBalance::kNone}) {
    const Plan plan = ring_of_four(balance);
    EXPECT_EQ(busiest_area(plan, {0, 64}, 4), 128);
    EXPECT_DOUBLE_EQ(attention_flops(build(model, plan)), all * 128 / 496);
  }
}

// Part i of four of 128 tokens, begin 128 i: of two ranks of 64 the second has (begin + 128)^2 -
// (begin + 64)^2 pairs, counted twice, of a zigzag each half of (begin + 128)^2 - begin^2.
TEST(context_balance, parts_of_sequences_are_shared_in_the_same_way) {
  Plan plan = ring();
  plan.sequence_length = 512;
  plan.subsequences = 4;
  for (const ContextBalance balance : {ContextBalance::kZigzag, ContextBalance::kNone}) {
    plan.context_balance = balance;
    size_t part = 0;
    for (const Op& op : build_plain(tiny::model(), plan).step.ops) {
      if (op.kind != OpKind::kAttention || op.phase != Phase::kForward || part == 4) continue;
      const double begin = 128.0 * static_cast<double>(part++);
      const double mean = ((begin + 128) * (begin + 128) - begin * begin) / 2;
      const double last = (begin + 128) * (begin + 128) - (begin + 64) * (begin + 64);
      // Two products of 8 columns for 2 sequences.
      EXPECT_DOUBLE_EQ(flops_of(op.work).count,
                       2 * 8 * 2 * (balance == ContextBalance::kZigzag ? mean : last));
    }
    EXPECT_EQ(part, 4u);
  }
}

// Behind each piece of a sequence a rank has the token that its last one is to predict.
TEST(context_balance, a_batch_has_one_more_token_a_piece) {
  const auto ids = [](ContextBalance balance) {
    return tiny::used(build(tiny::model(), ring_of_four(balance)), TensorKind::kTokens)
        .front()
        .elements;
  };
  EXPECT_EQ(ids(ContextBalance::kZigzag), 2 * (16 + 2));
  EXPECT_EQ(ids(ContextBalance::kNone), 2 * (16 + 1));
}

// Eager attention multiplies what the mask hides too: a rank of four has a quarter of the rows of
// scores, each with all 64 keys, to multiply, to pass over and to keep, whichever tokens it has.
TEST(context_balance, of_eager_attention_every_rank_has_as_many_rows) {
  StackFacts facts;
  facts.attention = {AttentionKind::kEager};
  Plan alone = tiny::plan();
  alone.sequence_length = 64;
  const auto attention = [&](const Plan& plan) {
    const Graph graph = build(tiny::model(), plan, facts);
    for (const Op& op : graph.step.ops) {
      if (op.kind == OpKind::kAttention) return std::get<AttentionWork>(op.work);
    }
    return AttentionWork{};
  };
  const AttentionWork all = attention(alone);
  EXPECT_EQ(all.length, 64);
  for (const ContextBalance balance : {ContextBalance::kZigzag, ContextBalance::kNone}) {
    const AttentionWork rows = attention(ring_of_four(balance));
    EXPECT_EQ(rows.length, 16);
    EXPECT_EQ(rows.tokens_before + rows.length, 64);
    EXPECT_EQ(rows.flops.count, all.flops.count / 4);
    EXPECT_EQ(rows.moved.count, all.moved.count / 4);
  }
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
