// State split over two ranks, by stage of ZeRO, and where it rests. The tiny model has 128
// parameters in the embedding, 1040 in each of 2 layers, 8 in the final norm and 128 in the head:
// N = 2344.
#include <algorithm>
#include <gtest/gtest.h>

#include "sim/graph/core/edit.h"
#include "sim/graph/report/memory.h"
#include "tests/graph/tiny_plans.h"

namespace ballast {
namespace {

constexpr int64_t kGathered = 2344;

struct Split {
  int64_t zero_stage = 0;
  int64_t micro_batches = 1;
};

Plan by_two(const Split& split) {
  Plan plan = tiny::plan();
  plan.devices = plan.data = 2;
  plan.global_batch = 4 * split.micro_batches;
  plan.zero_stage = split.zero_stage;
  plan.optimizer.placement = OptimizerPlacement::kGpu;
  return plan;
}

std::vector<CollectiveWork> of_kind(const Graph& graph, CollectiveKind kind) {
  std::vector<CollectiveWork> found;
  for (const Op& op : graph.step.ops) {
    const auto* work = std::get_if<CollectiveWork>(&op.work);
    if (work != nullptr && work->kind == kind) found.push_back(*work);
  }
  return found;
}

Bytes sum(const std::vector<CollectiveWork>& works) {
  Bytes bytes;
  for (const CollectiveWork& work : works) bytes += work.bytes;
  return bytes;
}

// Five units. Forward each is gathered, backward all but the embedding, whose backward reads no
// weight. 2 bytes a parameter: 2344 and 2344 - 128.
TEST(gather_pass, every_visit_of_a_unit_gathers_it_and_every_backward_scatters_its_gradient) {
  for (const int64_t micro_batches : {1, 2}) {
    const Graph graph = build(tiny::model(), by_two({3, micro_batches}));
    const auto gathers = of_kind(graph, CollectiveKind::kAllGather);
    const auto scatters = of_kind(graph, CollectiveKind::kReduceScatter);
    EXPECT_EQ(static_cast<int64_t>(gathers.size()), 9 * micro_batches);
    EXPECT_EQ(static_cast<int64_t>(scatters.size()), 5 * micro_batches);
    EXPECT_EQ(sum(gathers), Bytes{2 * (2 * kGathered - 128)} * micro_batches);
    EXPECT_EQ(sum(scatters), Bytes{2 * kGathered} * micro_batches);
    const CollectiveWork layer{CollectiveKind::kAllGather, {2 * 1040}, 2, 1};
    EXPECT_EQ(tiny::count(gathers, layer), 4 * micro_batches);
    EXPECT_EQ(of_kind(graph, CollectiveKind::kAllReduce).size(), 0U);
  }
}

// By tensor a unit of weights is a module: 6 of each layer's have a matrix or a norm, and 3 stand
// outside. Each arrives as partitions, 2 bytes a parameter, and is joined on the GPU, read and
// written once. Gradients still go by layer; what is scattered is packed and divided, in two
// passes.
TEST(gather_pass, a_framework_that_works_by_tensor_joins_what_it_gathers) {
  StackFacts facts;
  facts.stage3_copies_by_tensor = true;
  const Graph graph = build(tiny::model(), by_two({3}), facts);
  const auto gathers = of_kind(graph, CollectiveKind::kAllGather);
  EXPECT_EQ(gathers.size(), 2 * (2 * 6 + 3) - 1U);  // no backward reads the embedding
  EXPECT_EQ(sum(gathers), Bytes{2 * (2 * kGathered - 128)});
  EXPECT_EQ(of_kind(graph, CollectiveKind::kReduceScatter).size(), 5U);
  Bytes joined, packed;
  for (const Op& op : graph.step.ops) {
    const auto* work = std::get_if<BucketWork>(&op.work);
    if (op.kind == OpKind::kUnpack) joined += work->moved;
    if (op.kind == OpKind::kPack) packed += work->moved;
  }
  EXPECT_EQ(joined, Bytes{2 * 2 * (2 * kGathered - 128)});
  EXPECT_EQ(packed, Bytes{2 * 2 * 2 * kGathered});
}

TEST(gather_pass, a_rank_keeps_half_of_weights_gradients_and_state) {
  const Graph graph = build(tiny::model(), by_two({3}));
  for (const TensorKind kind :
       {TensorKind::kWeight, TensorKind::kGradient, TensorKind::kMaster, TensorKind::kMoment1}) {
    EXPECT_EQ(tiny::elements(graph, kind), kGathered / 2);
  }
}

// What is gathered for one layer is dropped before the layer after the next one is gathered.
TEST(gather_pass, gathered_weights_live_for_their_visit_and_the_one_before) {
  Model model = tiny::model();
  model.layers = 6;
  const Graph graph = build(model, by_two({3}));
  const std::vector<Life> lives = lives_of(graph);
  std::vector<int64_t> change(graph.step.ops.size() + 1);
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    if (tensor.kind != TensorKind::kGathered || tensor.label.layer < 0) continue;
    change[static_cast<size_t>(lives[t].first)] += tensor.elements;
    change[static_cast<size_t>(lives[t].last) + 1] -= tensor.elements;
  }
  int64_t alive = 0;
  int64_t most = 0;
  for (const int64_t by : change) most = std::max(most, alive += by);
  EXPECT_EQ(most, 2 * 1040);
}

TEST(gather_pass, the_first_scatter_of_a_step_overwrites_the_shard_and_later_ones_add) {
  const Graph graph = build(tiny::model(), by_two({3, 2}));
  int64_t overwrites = 0;
  int64_t adds = 0;
  for (const Op& op : graph.step.ops) {
    const auto* work = std::get_if<CollectiveWork>(&op.work);
    if (work == nullptr || work->kind != CollectiveKind::kReduceScatter) continue;
    for (const Access& access : op.accesses) {
      overwrites += access.mode == AccessMode::kWrite;
      adds += access.mode == AccessMode::kReadWrite;
    }
  }
  EXPECT_EQ(overwrites, 15);  // 2 layers of 6 modules, embedding, final norm, head
  EXPECT_EQ(adds, 15);
}

TEST(gather_pass, it_leaves_stage_two_and_single_ranks_alone) {
  const Graph two = build(tiny::model(), by_two({2}));
  EXPECT_EQ(tiny::elements(two, TensorKind::kGathered), 0);
  EXPECT_EQ(tiny::elements(two, TensorKind::kWeight), kGathered);
  Plan one = tiny::plan();
  one.zero_stage = 3;
  EXPECT_EQ(tiny::count(build(tiny::model(), one), OpKind::kCollective), 0);
}

// --- stages 0 to 2 of what the GPU steps: 15 buckets, a module each ------------------------------

TEST(optimizer_pass, stage_zero_sums_every_gradient_and_keeps_all_state) {
  const Graph graph = build(tiny::model(), by_two({0}));
  const auto sums = of_kind(graph, CollectiveKind::kAllReduce);
  EXPECT_EQ(sums.size(), 15U);
  EXPECT_EQ(sum(sums), Bytes{2 * kGathered});
  EXPECT_EQ(tiny::count(graph, OpKind::kCollective), 15);
  EXPECT_EQ(tiny::elements(graph, TensorKind::kMaster), kGathered);
  for (const Op& op : graph.step.ops) {
    if (op.kind != OpKind::kAdam) continue;
    EXPECT_EQ(std::get<BucketWork>(op.work).elements,
              graph.buckets[static_cast<size_t>(op.label.bucket)].count);
  }
}

TEST(optimizer_pass, stages_one_and_two_scatter_gradients_step_half_and_gather_weights) {
  for (const int64_t stage : {1, 2}) {
    const Graph graph = build(tiny::model(), by_two({stage}));
    EXPECT_EQ(sum(of_kind(graph, CollectiveKind::kReduceScatter)), Bytes{2 * kGathered});
    EXPECT_EQ(sum(of_kind(graph, CollectiveKind::kAllGather)), Bytes{2 * kGathered});
    EXPECT_EQ(tiny::count(graph, OpKind::kCollective), 30);
    EXPECT_EQ(tiny::elements(graph, TensorKind::kMaster), kGathered / 2);
    EXPECT_EQ(tiny::elements(graph, TensorKind::kMoment2), kGathered / 2);
    EXPECT_EQ(tiny::elements(graph, TensorKind::kReduced), stage == 2 ? kGathered / 2 : 0);
    for (const Op& op : graph.step.ops) {
      if (op.kind != OpKind::kAdam) continue;
      EXPECT_EQ(std::get<BucketWork>(op.work).elements,
                graph.buckets[static_cast<size_t>(op.label.bucket)].count / 2);
    }
  }
}

// At stage 2 a whole gradient dies in the scatter; at stage 1 the norm and Adam read it.
TEST(optimizer_pass, whole_gradients_live_until_the_step_only_below_stage_two) {
  for (const int64_t stage : {0, 1, 2}) {
    const Graph graph = build(tiny::model(), by_two({stage}));
    const std::vector<Life> lives = lives_of(graph);
    for (size_t t = 0; t < graph.tensors.size(); ++t) {
      if (graph.tensors[t].kind != TensorKind::kGradient) continue;
      EXPECT_EQ(graph.step.ops[static_cast<size_t>(lives[t].last)].kind,
                stage == 2 ? OpKind::kCollective : OpKind::kAdam);
    }
  }
}

// A norm in the middle of the backward would wait for an exchange and hold up what follows it.
TEST(optimizer_pass, no_norm_of_exchanged_gradients_stands_before_the_end_of_the_backward) {
  for (const int64_t stage : {0, 1, 2, 3}) {
    const Graph graph = build(tiny::model(), by_two({stage}));
    const OpId norm = tiny::first(graph, OpKind::kSumOfSquares);
    ASSERT_GE(norm, 0);
    for (size_t i = static_cast<size_t>(norm); i < graph.step.ops.size(); ++i) {
      EXPECT_FALSE(is_backward(graph.step.ops[i].phase)) << stage;
    }
  }
}

// --- state that comes to the GPU for the step, or from NVMe --------------------------------------

// Every second of 15 buckets, the first of them the second one: 7. Master and moments, 12 bytes a
// parameter, come in, are stepped by the GPU and go back.
TEST(optimizer_pass, streamed_buckets_bring_their_state_to_the_gpu_and_take_it_back) {
  Plan plan = tiny::plan();
  plan.optimizer.stream_share = 0.5;
  const Graph graph = build(tiny::model(), plan);
  int64_t streamed = 0;
  Bytes in, out, state;
  for (const Bucket& bucket : graph.buckets) {
    if (bucket.rest < 0) continue;
    ++streamed;
    state += Bytes{12 * bucket.count};
    EXPECT_EQ(bucket.site, Site::kGpu);
    EXPECT_EQ(graph.tensors[static_cast<size_t>(bucket.rest)].place, Place::kDram);
    EXPECT_EQ(graph.tensors[static_cast<size_t>(bucket.master)].place, Place::kHbm);
  }
  EXPECT_EQ(streamed, 7);
  for (const Op& op : graph.step.ops) {
    if (op.label.bucket < 0 || graph.buckets[static_cast<size_t>(op.label.bucket)].rest < 0) {
      continue;
    }
    if (op.kind == OpKind::kAdam) {
      EXPECT_EQ(op.lane, lane_of(0, LaneKind::kCompute));
    }
    const auto* copy = std::get_if<CopyWork>(&op.work);
    if (copy == nullptr || copy->bytes.count < 12 * 8) continue;  // a norm leaves as 8 bytes
    (copy->direction == CopyDirection::kHostToDevice ? in : out) += copy->bytes;
  }
  EXPECT_EQ(in, state);
  EXPECT_EQ(out, state);
  EXPECT_EQ(tiny::bytes(graph, TensorKind::kState), state);
}

TEST(optimizer_pass, nothing_streams_at_share_zero_and_all_buckets_at_share_one) {
  Plan plan = tiny::plan();
  EXPECT_EQ(tiny::elements(build(tiny::model(), plan), TensorKind::kState), 0);
  plan.optimizer.stream_share = 1;
  EXPECT_EQ(tiny::elements(build(tiny::model(), plan), TensorKind::kState), 3 * kGathered);
}

// 12 bytes a parameter rest on NVMe, are read before and written after each Adam of the CPU, whose
// memory holds them only meanwhile.
TEST(optimizer_pass, state_on_nvme_passes_through_cpu_memory) {
  Plan plan = tiny::plan();
  plan.optimizer.placement = OptimizerPlacement::kNvme;
  const Graph graph = build(tiny::model(), plan);
  Bytes read, written;
  for (const Op& op : graph.step.ops) {
    const auto* work = std::get_if<IoWork>(&op.work);
    if (work == nullptr) continue;
    const bool in = work->direction == IoDirection::kRead;
    EXPECT_EQ(op.lane, lane_of(0, in ? LaneKind::kNvmeRead : LaneKind::kNvmeWrite));
    (in ? read : written) += work->bytes;
  }
  EXPECT_EQ(read, Bytes{12 * kGathered});
  EXPECT_EQ(written, Bytes{12 * kGathered});
  const PlacePeak nvme = memory_peaks(graph)[static_cast<size_t>(Place::kNvme)];
  EXPECT_EQ(nvme.live, Bytes{12 * kGathered});
  const std::vector<Life> lives = lives_of(graph);
  for (const Bucket& bucket : graph.buckets) {
    EXPECT_EQ(bucket.site, Site::kCpu);
    EXPECT_FALSE(lives[static_cast<size_t>(bucket.master)].carried);
    EXPECT_TRUE(lives[static_cast<size_t>(bucket.rest)].carried);
  }
}

// Of three ranks that share optimizer state each moves its third, rounded up in each of the three
// arrays, and nobody exchanges it: from CPU memory as from NVMe.
TEST(optimizer_pass, each_rank_moves_its_share_of_state_that_rests_elsewhere) {
  for (const bool nvme : {false, true}) {
    for (const int64_t zero_stage : {1, 2}) {
      Plan plan = tiny::plan();
      plan.data = plan.devices = 3;
      plan.global_batch = 3 * tiny::plan().global_batch;
      plan.zero_stage = zero_stage;
      if (nvme) plan.optimizer.placement = OptimizerPlacement::kNvme;
      if (!nvme) plan.optimizer.stream_share = 1;
      const Graph graph = build(tiny::model(), plan);
      Bytes moved, expected;
      int64_t collectives = 0;
      for (const Bucket& bucket : graph.buckets) {
        expected += Bytes{2 * 12 * div_ceil(bucket.count, 3)};
        EXPECT_EQ(graph.tensor(bucket.rest).elements, 3 * div_ceil(bucket.count, 3));
      }
      for (const Op& op : graph.step.ops) {
        collectives += op.kind == OpKind::kCollective ? 1 : 0;
        const bool moves =
            std::any_of(op.accesses.begin(), op.accesses.end(), [&](const Access& access) {
              return graph.tensor(access.tensor).kind == TensorKind::kState;
            });
        if (!moves) continue;
        const auto* copy = std::get_if<CopyWork>(&op.work);
        moved += copy != nullptr ? copy->bytes : std::get<IoWork>(op.work).bytes;
      }
      EXPECT_EQ(moved, expected);
      // Gradients of each bucket are scattered and its weights gathered.
      EXPECT_EQ(collectives, 2 * std::ssize(graph.buckets));
    }
  }
}

Plan speculating_by_two() {
  Plan plan = by_two({3, 1});
  plan.optimizer.placement = OptimizerPlacement::kCpu;
  plan.optimizer.gpu_buckets = 0;
  plan.optimizer.sync = SyncMode::kSpeculate;
  // A rank's 1172 parameters in two buckets: modules are one segment each, and are not cut.
  plan.optimizer.bucket_bytes = bytes_of(600, DType::kF32);
  return plan;
}

TEST(gather_pass, gradients_are_scattered_by_bucket_where_a_stack_speculates_so) {
  StackFacts facts;
  facts.scatters_by_bucket = true;
  const Graph graph = build(tiny::model(), speculating_by_two(), facts);
  const auto scatters = of_kind(graph, CollectiveKind::kReduceScatter);
  EXPECT_EQ(scatters.size(), graph.buckets.size());
  EXPECT_EQ(sum(scatters), Bytes{2 * kGathered});
  // Those of a bucket are whole until the last of them is there.
  for (size_t b = 0; b < graph.buckets.size(); ++b) {
    EXPECT_EQ(scatters[b].bytes, Bytes{2 * 2 * graph.buckets[b].count}) << b;
  }
  Plan waits = speculating_by_two();
  waits.optimizer.sync = SyncMode::kWait;
  const Graph waiting = build(tiny::model(), waits, facts);
  EXPECT_EQ(of_kind(waiting, CollectiveKind::kReduceScatter).size(), 5U);
}

// 16 bytes of every parameter of a rank, behind the last step; the next forward waits for them.
TEST(gather_pass, what_was_stepped_returns_in_passes_of_its_own_where_a_stack_does_so) {
  StackFacts facts;
  facts.return_bytes = 16;
  facts.return_core_percent = 10;
  facts.undoes_by_arithmetic = true;
  const Graph graph = build(tiny::model(), speculating_by_two(), facts);
  int64_t moved = 0;
  size_t last_adam = 0, first_pass = graph.step.ops.size();
  for (size_t i = 0; i < graph.step.ops.size(); ++i) {
    const Op& op = graph.step.ops[i];
    if (op.kind == OpKind::kAdam) last_adam = i;
    if (op.kind != OpKind::kScale) continue;
    first_pass = std::min(first_pass, i);
    moved += std::get<BucketWork>(op.work).moved.count;
    EXPECT_EQ(std::get<BucketWork>(op.work).core_percent, 10);
  }
  EXPECT_EQ(moved, 16 * kGathered / 2);
  EXPECT_GT(first_pass, last_adam);
  const auto first = std::find_if(graph.step.ops.begin(), graph.step.ops.end(), [](const Op& op) {
    return kind_of(op.lane) == LaneKind::kCompute;
  });
  for (const Bucket& bucket : graph.buckets) {
    EXPECT_TRUE(std::any_of(first->accesses.begin(), first->accesses.end(),
                            [&](const Access& access) { return access.tensor == bucket.master; }));
  }
  EXPECT_EQ(tiny::count(graph, OpKind::kSnapshot), 0);
  EXPECT_TRUE(tiny::used(graph, TensorKind::kUndoRecord).empty());
  EXPECT_EQ(std::count_if(graph.repair.ops.begin(), graph.repair.ops.end(),
                          [](const Op& op) { return op.kind == OpKind::kUndo; }),
            std::ssize(graph.buckets));
  const Graph plain = build(tiny::model(), speculating_by_two(), StackFacts{});
  EXPECT_EQ(tiny::count(plain, OpKind::kScale), 0);
  EXPECT_EQ(tiny::count(plain, OpKind::kSnapshot), std::ssize(plain.buckets));
}

}  // namespace
}  // namespace ballast
