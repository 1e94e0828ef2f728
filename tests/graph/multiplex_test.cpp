// Parts that all stages of a pipeline share (Plan::multiplex): turns, what is sent, and memory.
#include "sim/graph/schedules/multiplex.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <map>
#include <set>

#include "sim/graph/report/memory.h"
#include "sim/graph/schedules/pipeline.h"
#include "tests/graph/tiny_plans.h"

namespace ballast {
namespace {

constexpr int64_t kSharers = 4;

// A layer a stage, four heads of four.
Model shared_model() {
  return tiny::llama({.layers = kSharers,
                      .hidden = 16,
                      .heads = kSharers,
                      .kv_heads = kSharers,
                      .head_size = 4,
                      .vocab = 32,
                      .positions = 8 * kAttentionTile});
}

Plan shared_plan() {
  Plan plan = tiny::plan();
  plan.devices = plan.pipeline = kSharers;
  plan.optimizer.placement = OptimizerPlacement::kGpu;
  plan.subsequences = 8;
  plan.sequence_length = 8 * kAttentionTile;
  plan.multiplex = true;
  return plan;
}

// "f0 f1" of shared turns of stages 0 and 1, "F3" of a turn of the stage's own.
std::string shared_order_on(int stage, const Graph& graph) {
  std::string order;
  for (const Op& op : graph.step.ops) {
    if (op.kind != OpKind::kBlock || device_of(op.lane) != stage) continue;
    const bool forward = op.phase == Phase::kForward;
    const bool shared = std::get<BlockWork>(op.work).is_shared;
    order += fmt::format("{}{} ", shared ? (forward ? 'f' : 'b') : (forward ? 'F' : 'B'),
                         shared ? op.label.layer : op.label.subsequence);
  }
  return order;
}

// Parts that lie below slot 3 or from slot 8 on, of slot part + stage.
TEST(Multiplex, stages_share_what_fills_and_empties_them) {
  const Graph graph = build(shared_model(), shared_plan());
  EXPECT_EQ(shared_order_on(0, graph),
            "f0 f1 f2 F3 F4 F5 F6 F7 f1 f2 f3 b3 b2 b1 B7 B6 B5 B4 B3 b2 b1 b0 ");
  EXPECT_EQ(shared_order_on(2, graph),
            "f0 f1 f2 F1 F2 F3 F4 F5 f1 f2 f3 b3 b2 b1 B5 B4 B3 B2 B1 b2 b1 b0 ");
  for (int64_t stage = 0; stage < kSharers; ++stage) {
    const SharedParts parts = shared_parts(shared_plan(), stage);
    for (int64_t part = 0; part < 8; ++part) {
      EXPECT_EQ(parts.has(part), part + stage < 3 || part + stage >= 8);
    }
  }
}

// FLOPs of all devices are those of the same plan without it.
TEST(Multiplex, shares_add_up_to_the_whole) {
  const auto work_of = [](const Graph& graph) {
    Flops sum;
    for (const Op& op : graph.step.ops) {
      const auto* run = std::get_if<BlockWork>(&op.work);
      if (run == nullptr) continue;
      for (const Op& inside : graph.blocks[static_cast<size_t>(run->block)].ops) {
        sum += flops_of(inside.work);
      }
    }
    return sum.count;
  };
  Plan alone = shared_plan();
  alone.multiplex = false;
  EXPECT_NEAR(work_of(build(shared_model(), shared_plan())) / work_of(build(shared_model(), alone)),
              1, 1e-9);
}

// No device begins a shared turn before all others have done what comes before.
TEST(Multiplex, a_shared_turn_waits_for_all_stages) {
  const Graph graph = build(shared_model(), shared_plan());
  std::map<int, OpId> last;  // by device: its computation before
  std::map<std::string, int64_t> waits;
  for (size_t i = 0; i < graph.step.ops.size(); ++i) {
    const Op& op = graph.step.ops[i];
    if (kind_of(op.lane) != LaneKind::kCompute) continue;
    const auto* run = std::get_if<BlockWork>(&op.work);
    if (run != nullptr && run->is_shared) {
      for (int32_t e = graph.step.edge_begin[i]; e < graph.step.edge_begin[i + 1]; ++e) {
        const Edge& edge = graph.step.edges[static_cast<size_t>(e)];
        if (edge.steps_ahead == 0 && kind_of(graph.op(edge.op).lane) == LaneKind::kCompute) {
          ++waits[fmt::format("{} {}", run->block, device_of(op.lane))];
        }
      }
    }
  }
  // Four ends of three stages, four devices; the first of a step waits for the step before.
  int64_t waited = 0;
  for (const auto& [turn, stages] : waits) {
    EXPECT_EQ(stages, kSharers - 1) << turn;
    ++waited;
  }
  EXPECT_EQ(waited, (4 * (kSharers - 1) - 1) * kSharers);
}

// Of stage 1 of 4, 2 sequences in parts of 128 tokens: on the left parts 0 and 1, on the right part
// 7. A part's keys and values of the one head that a device has are 2 * 128 * 2 * 4 values of 2
// bytes, the sums of their gradients as many of 4, two such pairs.
//
//   left, forward    of parts 0 and 1 from 3 devices to the stage         3 * 2 pairs
//   right, forward   of parts 2 to 6 to 3 devices (0 and 1 are there)     3 * 5 pairs
//   right, back      the same again, then sums of 7 parts back            3 * 5 and 3 * 14 pairs
//   left, back       sums of parts 0 and 1 to 3 devices                   3 * 4 pairs
// A stage's norms wait for its last shared turn, and what copies them waits with them.
TEST(Multiplex, norms_are_copied_after_they_are_found) {
  const Graph graph = build(shared_model(), shared_plan());
  std::set<TensorId> found;
  int copies = 0;
  for (const Op& op : graph.step.ops) {
    for (const Access& access : op.accesses) {
      if (graph.tensor(access.tensor).kind != TensorKind::kNormPartials) continue;
      if (op.kind == OpKind::kSumOfSquares) found.insert(access.tensor);
      if (op.kind != OpKind::kCopy || !reads(access)) continue;
      EXPECT_TRUE(found.contains(access.tensor));
      ++copies;
    }
  }
  EXPECT_GE(copies, kSharers);
}

TEST(Multiplex, keys_and_values_are_sent_once_each_way) {
  constexpr int64_t kPair = 2 * kAttentionTile * 2 * 4 * 2;
  const Graph graph = build(shared_model(), shared_plan());
  std::map<std::pair<Phase, int32_t>, std::vector<int64_t>> sent;
  for (const Op& op : graph.step.ops) {
    const auto* run = std::get_if<BlockWork>(&op.work);
    if (run == nullptr || !run->is_shared || device_of(op.lane) != 0 || op.label.layer != 1) {
      continue;
    }
    for (const Op& inside : graph.blocks[static_cast<size_t>(run->block)].ops) {
      const auto* work = std::get_if<CollectiveWork>(&inside.work);
      if (work == nullptr || kind_of(inside.lane) != LaneKind::kPipelineNetwork) continue;
      EXPECT_EQ(work->kind, CollectiveKind::kSendReceive);
      EXPECT_EQ(work->ranks, kSharers);
      sent[{op.phase, run->block}].push_back(work->bytes.count / kPair);
    }
  }
  std::vector<std::vector<int64_t>> turns;
  for (const auto& [turn, pairs] : sent) turns.push_back(pairs);
  EXPECT_EQ(turns, (std::vector<std::vector<int64_t>>{{3 * 2}, {3 * 5}, {3 * 5, 3 * 14}, {3 * 4}}));
}

// What the parts on the left save lies on all devices, a quarter on each, and not on the stages
// that take them: of 3, 2, 1 and no part each has a share of (3 + 2 + 1) / 4.
TEST(Multiplex, devices_save_what_they_share) {
  const auto saved_on = [](int device, const Graph& graph) {
    const std::vector<Life> lives = lives_of(graph);
    size_t turned = 0;  // the first backward
    while (graph.step.ops[turned].phase != Phase::kBackward) ++turned;
    int64_t bytes = 0;
    for (size_t t = 0; t < graph.tensors.size(); ++t) {
      const Tensor& tensor = graph.tensors[t];
      if (tensor.kind != TensorKind::kSaved || tensor.device != device) continue;
      const bool held =
          lives[t].first < static_cast<OpId>(turned) && lives[t].last >= static_cast<OpId>(turned);
      if (held) bytes += tensor.all_bytes().count;
    }
    return bytes;
  };
  Plan alone = shared_plan();
  alone.multiplex = false;
  const Graph graph = build(shared_model(), shared_plan());
  const Graph before = build(shared_model(), alone);
  int64_t all = 0, all_before = 0;
  for (int device = 0; device < kSharers; ++device) {
    all += saved_on(device, graph);
    all_before += saved_on(device, before);
  }
  // Saved twice are keys and values of the left, on the stage and by head on all, and what
  // attention makes of 6 parts at either end, by head and by token. Each device loads its tokens,
  // and the next one of 2 sequences, for the first turn and for the last stage's. A byte stands for
  // what an own turn leaves beside a shared one, which is nothing.
  constexpr int64_t kOutput = 2 * kAttentionTile * 16 * 2;
  constexpr int64_t kTokens = (2 * 8 * kAttentionTile / kSharers + 2) * 4;
  EXPECT_EQ(all, all_before + 6 * 2 * kOutput + 2 * 6 * kOutput + 2 * kSharers * kTokens + 6);
}

}  // namespace
}  // namespace ballast
