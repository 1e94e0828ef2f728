// The busiest rank of experts (Plan::routing_percent), counted by hand.
#include <algorithm>
#include <gtest/gtest.h>

#include "sim/graph/core/edit.h"
#include "tests/graph/tiny_plans.h"

namespace ballast {
namespace {

// 8 tokens, two of four experts each, on two ranks of two experts: 16 rows a rank were they even.
Plan plan_of(int64_t percent) {
  Plan plan = tiny::plan();
  plan.devices = plan.data = plan.expert = 2;
  plan.global_batch *= 2;
  plan.routing_percent = percent;
  return plan;
}

struct Work {
  int64_t rows_up = 0, rows_down = 0, summed_rows = 0, sent = 0, kept = 0;
  bool operator==(const Work&) const = default;
};

// Of the only layer.
Work work_of(const Model& model, int64_t percent) {
  const Graph graph = build_plain(model, plan_of(percent));
  Work work;
  for (const Op& op : graph.step.ops) {
    const auto* product = std::get_if<GemmWork>(&op.work);
    if (product != nullptr && product->experts > 0) {
      if (op.phase == Phase::kBackwardWeight) work.summed_rows = product->k;
      if (op.phase == Phase::kForward) {
        (op.label.module == ModuleKind::kFc1 ? work.rows_up : work.rows_down) = product->m;
      }
    }
    if (kind_of(op.lane) == LaneKind::kExpertNetwork) work.sent += bytes_of(op.work).count;
    if (op.phase == Phase::kForward && op.label.module == ModuleKind::kActivation) {
      for (const Access& access : op.accesses) {
        if (access.role == Role::kInput) work.kept = graph.tensor(access.tensor).elements;
      }
    }
  }
  return work;
}

TEST(routing, the_busiest_rank_has_as_many_more_rows_up_to_all) {
  const Model model = tiny::mixtral({.layers = 1});
  const Work even = work_of(model, 100);
  // Four exchanges of 16 rows of 8 values of 2 bytes; fc1 keeps 16 rows of 2 x 32 values.
  EXPECT_EQ(even, (Work{16, 16, 16, 4 * 256, 16 * 64}));
  EXPECT_EQ(work_of(model, 150), (Work{24, 24, 24, 4 * 384, 24 * 64}));
  // No rank gets more than both choices of all tokens: twice as many.
  EXPECT_EQ(work_of(model, 200), (Work{32, 32, 32, 4 * 512, 32 * 64}));
  EXPECT_EQ(work_of(model, 1000), work_of(model, 200));
}

// Shared experts have a token's rows however it is routed: 3 routed of 16 columns beside 2 shared.
TEST(routing, what_is_shared_grows_by_nothing) {
  Model model = tiny::deepseek_v3({.layers = 1});
  model.first_dense_layers = 0;
  const Work even = work_of(model, 100);
  const Work more = work_of(model, 150);
  EXPECT_EQ(even.rows_up, 24);
  EXPECT_EQ(more.rows_up, 36);
  EXPECT_EQ(even.kept, 8 * 2 * (3 * 16 + 2 * 16));
  EXPECT_EQ(more.kept, 12 * 2 * 3 * 16 + 8 * 2 * 2 * 16);
}

// Two tensor-parallel ranks with whole experts in place of halves: as many FLOPs of half the rows
// and all columns, no exchange of partial sums, and tokens of their norms to twice the ranks.
TEST(routing, experts_that_stay_whole_are_dealt_to_tensor_ranks) {
  const Model model = tiny::mixtral({.layers = 1});
  Plan plan = plan_of(100);
  plan.tensor = 2;
  plan.devices = 4;
  plan.tensor_sequence = true;
  struct Sums {
    double flops = 0;
    int64_t weights = 0, partial = 0;
  };
  const auto sums_of = [](const Graph& graph) {
    Sums sums;
    for (const Op& op : graph.step.ops) {
      if (op.kind == OpKind::kGemm) sums.flops += flops_of(op.work).count;
      const bool of_experts =
          op.label.module == ModuleKind::kFc1 || op.label.module == ModuleKind::kFc2;
      if (kind_of(op.lane) == LaneKind::kTensorNetwork && of_experts) ++sums.partial;
    }
    for (const Tensor& tensor : graph.tensors) {
      if (tensor.kind == TensorKind::kWeight) sums.weights += tensor.elements;
    }
    return sums;
  };
  StackFacts facts;
  const Graph cut = build(model, plan, facts);
  facts.keeps_experts_whole = true;
  const Graph whole = build(model, plan, facts);
  EXPECT_EQ(sums_of(whole).flops, sums_of(cut).flops);
  EXPECT_EQ(sums_of(whole).weights, sums_of(cut).weights);
  EXPECT_GT(sums_of(cut).partial, 0);
  EXPECT_EQ(sums_of(whole).partial, 0);
  int exchanges = 0;
  int products = 0;
  for (const Op& op : whole.step.ops) {
    if (kind_of(op.lane) == LaneKind::kExpertNetwork) {
      // 8 rows of 8 values of 2 bytes: four tokens of a rank's norms, two experts each.
      EXPECT_EQ(std::get<CollectiveWork>(op.work),
                (CollectiveWork{CollectiveKind::kAllToAll, {128}, 4, 1}));
      ++exchanges;
    }
    const auto* product = std::get_if<GemmWork>(&op.work);
    if (product == nullptr || product->experts == 0) continue;
    ++products;
    EXPECT_EQ(product->experts, 1);
    const bool up = op.label.module == ModuleKind::kFc1;
    const std::vector<int64_t> shape = {product->m, product->n, product->k};
    if (op.phase == Phase::kForward) {
      EXPECT_EQ(shape, (up ? std::vector<int64_t>{8, 64, 8} : std::vector<int64_t>{8, 8, 32}));
    } else if (op.phase == Phase::kBackwardInput) {
      EXPECT_EQ(shape, (up ? std::vector<int64_t>{8, 8, 64} : std::vector<int64_t>{8, 32, 8}));
    } else {
      EXPECT_EQ(shape, (up ? std::vector<int64_t>{64, 8, 8} : std::vector<int64_t>{8, 32, 8}));
    }
  }
  EXPECT_EQ(exchanges, 4);
  EXPECT_EQ(products, 6);
}

// Ranks with the same tokens, or with experts of their own, cut them as ever.
TEST(routing, experts_stay_whole_where_tokens_and_experts_are_shared) {
  const Model model = tiny::mixtral({.layers = 1});
  Plan plan = plan_of(100);
  plan.tensor = 2;
  plan.devices = 4;
  StackFacts facts;
  facts.keeps_experts_whole = true;
  const auto as_ever = [&] {
    const Graph with = build(model, plan, facts);
    const Graph without = build(model, plan, StackFacts{});
    return std::equal(with.step.ops.begin(), with.step.ops.end(), without.step.ops.begin(),
                      without.step.ops.end(), [](const Op& a, const Op& b) {
                        return a.kind == b.kind && a.work == b.work;
                      });
  };
  EXPECT_TRUE(as_ever());
  plan.tensor_sequence = true;
  EXPECT_FALSE(as_ever());
  plan.expert = 1;
  EXPECT_TRUE(as_ever());
}

// What sends a token once says among how many experts it chooses; a sorted row is as long as ever.
TEST(routing, tokens_that_go_once_say_how_their_experts_lie) {
  StackFacts facts;
  facts.sends_tokens_once = true;
  Model model = tiny::deepseek_v3({.layers = 1});
  model.first_dense_layers = 0;
  const auto once_of = [&](const Model& one) {
    TokenRouting found;
    for (const Op& op : build(one, plan_of(100), facts).step.ops) {
      if (kind_of(op.lane) == LaneKind::kExpertNetwork) {
        found = std::get<CollectiveWork>(op.work).once;
      }
    }
    return found;
  };
  EXPECT_EQ(once_of(model), (TokenRouting{model.experts, model.experts_per_token,
                                          model.expert_groups, model.chosen_groups}));
  const Model plain = tiny::mixtral({.layers = 1});
  EXPECT_EQ(once_of(plain), (TokenRouting{plain.experts, plain.experts_per_token, 1, 1}));
}

// What sends each row holds as many multiprocessors as other collectives.
TEST(routing, what_sends_tokens_once_says_what_it_holds) {
  StackFacts facts;
  facts.once_multiprocessors = 32;
  for (const bool once : {false, true}) {
    int64_t exchanges = 0;
    facts.sends_tokens_once = once;
    for (const Op& op : build(tiny::mixtral({.layers = 1}), plan_of(100), facts).step.ops) {
      if (kind_of(op.lane) != LaneKind::kExpertNetwork) continue;
      EXPECT_EQ(std::get<CollectiveWork>(op.work).multiprocessors, once ? 32 : 0);
      ++exchanges;
    }
    EXPECT_GT(exchanges, 0);
  }
}

bool reads_what_it_writes(const Op& reader, const Op& writer) {
  for (const Access& made : writer.accesses) {
    for (const Access& used : reader.accesses) {
      if (used.tensor == made.tensor && writes(made) && reads(used)) return true;
    }
  }
  return false;
}

// By exchange: how many more begin before the first computation that needs what it writes; -1
// where none does.
std::vector<int> exchanges_before_a_wait(const StackFacts& facts) {
  const Graph graph = build(tiny::mixtral({.layers = 2}), plan_of(100), facts);
  const std::vector<Op>& ops = graph.step.ops;
  std::vector<int> counts;
  for (auto exchange = ops.begin(); exchange != ops.end(); ++exchange) {
    if (kind_of(exchange->lane) != LaneKind::kExpertNetwork) continue;
    int begun = 0;
    const auto waits = std::find_if(exchange + 1, ops.end(), [&](const Op& op) {
      if (kind_of(op.lane) == LaneKind::kExpertNetwork) ++begun;
      return kind_of(op.lane) == LaneKind::kCompute && reads_what_it_writes(op, *exchange);
    });
    counts.push_back(waits == ops.end() ? -1 : begun);
  }
  return counts;
}

// Four of a layer. Beside computation each has one piece of it, the last none behind it.
TEST(routing, exchanges_beside_computation_end_before_what_follows_the_next) {
  StackFacts facts;
  EXPECT_EQ(exchanges_before_a_wait(facts), std::vector<int>(8, 0));
  facts.expert_overlap = Overlap::kFull;
  EXPECT_EQ(exchanges_before_a_wait(facts), (std::vector<int>{1, 1, 1, 1, 1, 1, 1, -1}));
}

}  // namespace
}  // namespace ballast
