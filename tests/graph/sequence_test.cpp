// Sequences of 4 tokens split over two ranks: of 2 sequences a rank has 4 tokens.
#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "sim/spec/ranks/ring.h"
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

// Four ranks, two by heads and two in the ring: of 4 tokens a ring's rank has half of the heads,
// 2 * 4 * 4 values, 64 bytes.
TEST(sequence_pass, a_ring_of_ranks_that_split_heads_passes_on_all_their_tokens) {
  Plan plan = ring();
  plan.devices = 4;
  plan.sequence = 2;
  const Graph graph = sequence_pass(build_plain(tiny::model(), plan), plan);
  const std::vector<CollectiveWork> works = tiny::exchanges(graph, Phase::kForward).layers;
  EXPECT_EQ(std::count_if(works.begin(), works.end(),
                          [](const CollectiveWork& work) {
                            return work.kind == CollectiveKind::kSendReceive &&
                                   work.bytes == Bytes{64};
                          }),
            2);
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
  const Plan helpers = ring_of_four(ContextBalance::kHelpers);
  EXPECT_EQ(ring_pieces(helpers, {0, 64}, 3), (Pieces{{48, 16}}));
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

// A piece of queries, and of keys.
using Block = std::pair<int64_t, int64_t>;

// Which block each rank attends for in round `round` of a ring whose ranks help, as at RingRounds:
// for itself, for a later one, or not at all.
std::map<int64_t, Block> blocks_in(const Plan& plan, int64_t round) {
  const int64_t ranks = plan.context;
  const bool is_helped = round <= ring_rounds(plan).helped;
  std::map<int64_t, Block> blocks;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    if (rank >= round) {
      blocks[rank] = {rank, rank - round};
    } else if (is_helped) {
      blocks[rank] = {ranks - round + rank, rank};
    }
  }
  return blocks;
}

Plan helpers_of(int64_t ranks) {
  Plan plan = ring_of_four(ContextBalance::kHelpers);
  plan.devices = plan.context = ranks;
  plan.sequence_length = 16 * ranks;
  return plan;
}

// Each of P pieces sees itself and all before it, and no pair of them is met twice: in every round
// but the last of an even P all ranks attend for a block, there half of them.
TEST(context_balance, helpers_meet_every_block_once) {
  for (int64_t ranks = 2; ranks <= 17; ++ranks) {
    const Plan plan = helpers_of(ranks);
    const int64_t last = ring_rounds(plan).all;
    std::map<Block, int> met;
    std::map<int64_t, double> areas;  // of each rank
    for (int64_t round = 0; round <= last; ++round) {
      const std::map<int64_t, Block> blocks = blocks_in(plan, round);
      const bool half_idle = ranks % 2 == 0 && round == last;
      EXPECT_EQ(static_cast<int64_t>(blocks.size()), half_idle ? ranks / 2 : ranks);
      for (const auto& [rank, block] : blocks) {
        EXPECT_TRUE(block.first == rank || block.second == rank) << "one side is its own";
        ++met[block];
        areas[rank] += block.first == block.second ? 16 * 16 : 2 * 16 * 16;
      }
    }
    for (int64_t queries = 0; queries < ranks; ++queries) {
      for (int64_t keys = 0; keys < ranks; ++keys) {
        const Block block{queries, keys};
        EXPECT_EQ(met[block], keys <= queries ? 1 : 0) << ranks << ": " << queries << ", " << keys;
      }
    }
    double most = 0;
    for (const auto& [rank, area] : areas) most = std::max(most, area);
    EXPECT_EQ(busiest_area(plan, {0, plan.sequence_length}, 0), most) << ranks;
  }
}

// Pieces of 16 tokens: half a square of 256 pairs with its own keys, then whole ones. Three ranks:
// one more, 3/3 of the mean. Four: two more, of which only half of the ranks have the second, 5/4.
// Five: two more, the mean. Eight: four more, 9/8. Two: one more, as without balance. Counted
// twice.
TEST(context_balance, helpers_leave_the_mean_of_an_odd_number_of_ranks) {
  const auto area = [](int64_t ranks) {
    const Plan plan = helpers_of(ranks);
    return busiest_area(plan, {0, plan.sequence_length}, 0);
  };
  EXPECT_EQ(area(1), 256);
  EXPECT_EQ(area(2), 2 * (128 + 256));
  EXPECT_EQ(area(3), 2 * (128 + 256));
  EXPECT_EQ(area(4), 2 * (128 + 2 * 256));
  EXPECT_EQ(area(5), 2 * (128 + 2 * 256));
  EXPECT_EQ(area(8), 2 * (128 + 4 * 256));
  Plan two = helpers_of(2);
  two.context_balance = ContextBalance::kNone;
  EXPECT_EQ(area(2), busiest_area(two, {0, 32}, 0));
}

// What a ring of helpers sends: two sequences of 16 tokens a rank have 2 * 32 * 4 values of keys
// and values for one head, 512 bytes, 32 * 2 * 4 of queries for two heads, 512 bytes, and of their
// output, and a statistic of 4 bytes for each of 64 heads and tokens, 256 bytes.
//   a round with helpers forward: keys and values, output, a statistic      512 + 512 + 256
//                       backward: gradients of keys and values, queries, gradient of the output,
//                                 two statistics                            512 + 2 * (512 + 256)
//   the last of an even number:   keys and values, with gradients backward  512, 2 * 512
TEST(sequence_pass, helpers_send_queries_and_what_they_made_of_them) {
  Model grouped = tiny::model();
  grouped.kv_heads = 1;
  const auto sent = [](const Model& model, int64_t ranks, Phase phase) {
    const Graph graph = build_plain(model, helpers_of(ranks));
    const auto works = tiny::exchanges(sequence_pass(graph, helpers_of(ranks)), phase).layers;
    EXPECT_EQ(works.size(), 2u) << "one a layer";
    EXPECT_EQ(works.front(),
              (CollectiveWork{CollectiveKind::kSendReceive, works.front().bytes, ranks, 1}));
    return works.front().bytes.count;
  };
  EXPECT_EQ(sent(grouped, 3, Phase::kForward), 1280);
  EXPECT_EQ(sent(grouped, 3, Phase::kBackward), 2048);
  EXPECT_EQ(sent(grouped, 4, Phase::kForward), 1280 + 512);
  EXPECT_EQ(sent(grouped, 4, Phase::kBackward), 2048 + 1024);
  EXPECT_EQ(sent(grouped, 5, Phase::kForward), 2 * 1280);
  EXPECT_EQ(sent(grouped, 8, Phase::kBackward), 3 * 2048 + 1024);
  // Two heads of keys as well: 1024 bytes of keys and values.
  EXPECT_EQ(sent(tiny::model(), 4, Phase::kForward), 1024 + 512 + 256 + 1024);
  EXPECT_EQ(sent(tiny::model(), 4, Phase::kBackward), 1024 + 2 * (512 + 256) + 2 * 1024);
  // In 32 bits all but the statistics is twice as large.
  const auto in_32_bits = [&](Phase phase) {
    Plan plan = helpers_of(3);
    plan.dtype = DType::kF32;
    const Graph graph = sequence_pass(build_plain(grouped, plan), plan);
    return tiny::exchanges(graph, phase).layers.front().bytes.count;
  };
  EXPECT_EQ(in_32_bits(Phase::kForward), 1024 + 1024 + 256);
  EXPECT_EQ(in_32_bits(Phase::kBackward), 1024 + 2 * (1024 + 256));
}

// Twice what is in use: forward queries that came, or keys and values, of which either has 256
// values of one head of keys, and output of 256 with statistics of 4 bytes, 128 more; of two heads
// 512 of keys and values. Backward queries and two gradients of as many, two statistics and the
// gradients of keys and values that come.
TEST(sequence_pass, helpers_have_room_for_two_rounds) {
  Model grouped = tiny::model();
  grouped.kv_heads = 1;
  const auto rooms = [](const Model& model) {
    const Plan plan = helpers_of(4);
    const Graph graph = sequence_pass(build_plain(model, plan), plan);
    std::vector<int64_t> found;
    for (const Tensor& tensor : tiny::used(graph, TensorKind::kGathered)) {
      found.push_back(tensor.elements);
    }
    return found;
  };
  const int64_t one_forward = 2 * (256 + 256 + 128);
  const int64_t one_backward = 2 * (256 + 3 * 256 + 2 * 128);
  EXPECT_EQ(rooms(grouped),
            (std::vector<int64_t>{one_forward, one_forward, one_backward, one_backward}));
  const int64_t two_forward = 2 * (512 + 256 + 128);
  const int64_t two_backward = 2 * (512 + 3 * 256 + 2 * 128);
  EXPECT_EQ(rooms(tiny::model()),
            (std::vector<int64_t>{two_forward, two_forward, two_backward, two_backward}));
}

// Two ranks have one round, in which nobody is left to help: the graph is that without balance, and
// what was timed for the one is the time of the other. Of four it is another operation than that of
// consecutive tokens, or of a zigzag, whose times do not hold for it.
TEST(context_balance, two_ranks_have_nothing_to_help_with) {
  const auto graph_of = [](ContextBalance balance, int64_t ranks) {
    Plan plan = helpers_of(ranks);
    plan.context_balance = balance;
    return build(tiny::model(), plan);
  };
  const Graph helpers = graph_of(ContextBalance::kHelpers, 2);
  const Graph none = graph_of(ContextBalance::kNone, 2);
  ASSERT_EQ(helpers.step.ops.size(), none.step.ops.size());
  for (size_t i = 0; i < none.step.ops.size(); ++i) {
    EXPECT_EQ(helpers.step.ops[i].work, none.step.ops[i].work);
    EXPECT_EQ(cost_key(helpers.step.ops[i]), cost_key(none.step.ops[i]));
  }
  EXPECT_EQ(helpers.arenas.size, none.arenas.size);
  const auto attention_keys = [&](ContextBalance balance) {
    std::set<std::string> keys;
    for (const Op& op : graph_of(balance, 4).step.ops) {
      if (op.kind == OpKind::kAttention) keys.insert(cost_key(op));
    }
    return keys;
  };
  const std::set<std::string> of_four = attention_keys(ContextBalance::kHelpers);
  EXPECT_EQ(of_four.size(), 2u) << "forward and backward";
  for (const ContextBalance other : {ContextBalance::kNone, ContextBalance::kZigzag}) {
    for (const std::string& key : attention_keys(other)) EXPECT_FALSE(of_four.contains(key)) << key;
  }
}

// 2 - 1/P of the mean: all ranks wait for the last. With helpers 1 + 1/P of it.
TEST(context_balance, attention_costs_what_the_busiest_rank_has) {
  Plan alone = tiny::plan();
  alone.sequence_length = 64;
  const double all = attention_flops(build(tiny::model(), alone));
  const auto of = [](ContextBalance balance) {
    return attention_flops(build(tiny::model(), ring_of_four(balance)));
  };
  EXPECT_EQ(of(ContextBalance::kZigzag), all / 4);
  EXPECT_EQ(of(ContextBalance::kNone), all * 7 / 16);
  EXPECT_EQ(of(ContextBalance::kHelpers), all * 5 / 16);
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
  EXPECT_EQ(ids(ContextBalance::kHelpers), 2 * (16 + 1));
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
  for (const ContextBalance balance :
       {ContextBalance::kZigzag, ContextBalance::kNone, ContextBalance::kHelpers}) {
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
