// Each pass where it must act and where it must not.
#include <gtest/gtest.h>
#include <random>

#include "sim/graph/core/edit.h"
#include "sim/graph/report/memory.h"
#include "sim/spec/knobs.h"
#include "tests/graph/tiny_plans.h"

namespace ballast {
namespace {

ActivationPlan with(ModuleKind kind, ActivationFate fate) {
  ActivationPlan plan;
  plan.fate[static_cast<size_t>(kind)] = fate;
  return plan;
}

// 2 layers of 4 linear modules and the head: 9 products forward, 9 each for input and weight.
TEST(build_plain, a_decoder_has_three_products_for_every_linear_module) {
  const Graph graph = build_plain(tiny::model(), tiny::plan());
  EXPECT_EQ(tiny::count(graph, OpKind::kGemm, Phase::kForward), 9);
  EXPECT_EQ(tiny::count(graph, OpKind::kGemm, Phase::kBackwardInput), 9);
  EXPECT_EQ(tiny::count(graph, OpKind::kGemm, Phase::kBackwardWeight), 9);
  EXPECT_EQ(tiny::count(graph, OpKind::kNorm, Phase::kForward), 5);
  EXPECT_EQ(tiny::count(graph, OpKind::kAttention), 4);
}

// Products of T=8 tokens. A layer: qkv 8x24, out 8x8, fc1 8x64, fc2 32x8 values of weight, 1024 in
// all; two layers and a head of 16x8: 2176; 2 FLOPs a token and weight forward, 4 backward.
TEST(build_plain, flops_of_the_products_are_six_a_weight_and_token) {
  const Graph graph = build_plain(tiny::model(), tiny::plan());
  double flops = 0;
  for (const Op& op : graph.step.ops) {
    if (op.kind == OpKind::kGemm) flops += flops_of(op.work).count;
  }
  EXPECT_EQ(flops, 6.0 * 8 * 2176);
}

TEST(build_plain, the_second_micro_batch_adds_to_the_gradients_of_the_first) {
  Plan plan = tiny::plan();
  plan.micro_batch = 1;
  const Graph graph = build_plain(tiny::model(), plan);
  int64_t writes_first = 0;
  int64_t adds = 0;
  for (const Op& op : graph.step.ops) {
    for (const Access& access : op.accesses) {
      if (access.role != Role::kParameterGradient) continue;
      writes_first += access.mode == AccessMode::kWrite;
      adds += access.mode == AccessMode::kReadWrite;
      EXPECT_EQ(access.mode == AccessMode::kReadWrite, op.label.micro_batch == 1);
    }
  }
  EXPECT_EQ(writes_first, adds);
  EXPECT_EQ(writes_first, 15);  // 2 layers of 6 modules, embedding, final norm, head
}

TEST(checkpoint_pass, keeping_everything_changes_nothing) {
  const Graph plain = build_plain(tiny::model(), tiny::plan());
  const Graph kept = checkpoint_pass(plain, tiny::plan(), StackFacts{});
  EXPECT_EQ(kept.step.ops.size(), plain.step.ops.size());
  EXPECT_EQ(kept.tensors.size(), plain.tensors.size());
}

TEST(checkpoint_pass, a_recomputed_activation_is_made_once_a_layer_before_its_first_reader) {
  Plan plan = tiny::plan();
  plan.activations = with(ModuleKind::kActivation, ActivationFate::kRecompute);
  const Graph graph = checkpoint_pass(build_plain(tiny::model(), plan), plan, StackFacts{});
  EXPECT_EQ(tiny::count(graph, OpKind::kActivation, Phase::kRecompute), 2);
  for (size_t i = 0; i < graph.step.ops.size(); ++i) {
    if (graph.step.ops[i].phase != Phase::kRecompute) continue;
    const Op& reader = graph.step.ops[i + 1];
    EXPECT_EQ(reader.phase, Phase::kBackwardWeight);
    EXPECT_EQ(reader.label.module, ModuleKind::kFc2);
    EXPECT_EQ(reader.label.layer, graph.step.ops[i].label.layer);
  }
}

int64_t repeated_in(const Plan& plan, const StackFacts& facts) {
  const Graph graph = build(tiny::model(), plan, facts);
  return std::ranges::count(graph.step.ops, Phase::kRecompute, &Op::phase);
}

// Who runs a recomputed network to its end does so where all of it is: fc1, the activation and fc2
// of each of two layers. An activation alone, or with norms, is made where it was.
TEST(checkpoint_pass, a_network_runs_to_its_end_where_all_of_it_is_recomputed) {
  StackFacts facts;
  facts.recomputes_whole_layer = true;
  Plan plan = tiny::plan();
  plan.activations = with(ModuleKind::kActivation, ActivationFate::kRecompute);
  EXPECT_EQ(repeated_in(plan, facts), 2);
  plan.activations->fate[static_cast<size_t>(ModuleKind::kNorm2)] = ActivationFate::kRecompute;
  EXPECT_EQ(repeated_in(plan, facts), 2 * 2);
  plan.activations = with(ModuleKind::kActivation, ActivationFate::kRecompute);
  plan.activations->fate[static_cast<size_t>(ModuleKind::kFc1)] = ActivationFate::kRecompute;
  EXPECT_EQ(repeated_in(plan, facts), 2 * 3);
  EXPECT_EQ(repeated_in(plan, {}), 2 * 2);
  plan.activations->recompute_fc1_part = 0.5;
  EXPECT_EQ(repeated_in(plan, facts), 2 * 2);
  plan.activations->recompute_fc1_part = 0;
  EXPECT_EQ(repeated_in(plan, facts), 2);
}

// fc2 reads activation, which reads fc1, which reads norm2, which reads attention_out, which reads
// core_attention and the layer's input; that reads qkv, which reads norm1: seven of them a layer.
TEST(checkpoint_pass, full_recompute_repeats_all_of_a_layer_but_its_output) {
  Plan plan = tiny::plan();
  plan.activations->fate.fill(ActivationFate::kRecompute);
  plan.activations->fate[static_cast<size_t>(ModuleKind::kFc2)] = ActivationFate::kKeep;
  const Graph graph = checkpoint_pass(build_plain(tiny::model(), plan), plan, StackFacts{});
  int64_t repeated = 0;
  for (const Op& op : graph.step.ops) repeated += op.phase == Phase::kRecompute;
  EXPECT_EQ(repeated, 2 * 7);
}

TEST(checkpoint_pass,
     an_offloaded_output_leaves_once_and_returns_once_and_the_last_layer_keeps_its) {
  Plan plan = tiny::plan();
  plan.activations = with(ModuleKind::kFc1, ActivationFate::kOffload);
  const Graph graph = checkpoint_pass(build_plain(tiny::model(), plan), plan, StackFacts{});
  EXPECT_EQ(tiny::count(graph, OpKind::kCopy, Phase::kOffload), 1);
  EXPECT_EQ(tiny::count(graph, OpKind::kCopy, Phase::kReload), 1);
  for (const Op& op : graph.step.ops) {
    // fc1 of SwiGLU: 8 tokens of 2 x 32 values of 2 bytes.
    if (op.phase == Phase::kOffload) {
      EXPECT_EQ(bytes_of(op.work).count, 8 * 64 * 2);
      EXPECT_EQ(op.label.layer, 0);
    }
  }
}

TEST(residency_pass, nothing_flows_at_share_zero_and_each_visit_is_fetched_at_share_one) {
  Plan plan = tiny::plan();
  plan.weights.look_ahead = 0;
  const Graph stays = residency_pass(build_plain(tiny::model(), plan), plan);
  EXPECT_EQ(tiny::count(stays, OpKind::kCopy, Phase::kFetch), 0);
  plan.weights.flow_share = 1;
  const Graph flows = residency_pass(build_plain(tiny::model(), plan), plan);
  // 2 layers of 6 modules, a visit in the forward and one in the backward.
  EXPECT_EQ(tiny::count(flows, OpKind::kCopy, Phase::kFetch), 2 * 6 * 2);
  EXPECT_EQ(tiny::count(flows, OpKind::kUnpack, Phase::kFetch), 2 * 6 * 2);
  plan.optimizer.cast = CastPlacement::kCpu;  // 16-bit values come straight to their place
  const Graph direct = residency_pass(build_plain(tiny::model(), plan), plan);
  EXPECT_EQ(tiny::count(direct, OpKind::kUnpack, Phase::kFetch), 0);
}

TEST(buckets_of, cover_every_parameter_once_from_the_end) {
  const std::vector<Module> modules = modules_of(tiny::model());
  OptimizerPlan optimizer;
  optimizer.gpu_buckets = 2;
  optimizer.bucket_bytes = {600 * 4};
  const std::vector<Bucket> buckets = buckets_of(modules, optimizer);
  int64_t end = parameter_count(tiny::model());
  for (const Bucket& bucket : buckets) {
    EXPECT_EQ(bucket.begin + bucket.count, end);
    end = bucket.begin;
    EXPECT_LE(bucket.count, 600);
  }
  EXPECT_EQ(end, 0);
  EXPECT_EQ(buckets.back().site, Site::kGpu);
  EXPECT_EQ(buckets[buckets.size() - 2].site, Site::kGpu);
  EXPECT_EQ(buckets.front().site, Site::kCpu);
}

// Modules of many sizes: none, less than a segment, whole segments, many buckets.
TEST(last_modules_of_buckets, are_those_of_the_buckets) {
  std::mt19937 random(20261126);
  const auto draw = [&](int64_t most) {
    return std::uniform_int_distribution<int64_t>(0, most)(random);
  };
  size_t inside = 0;  // buckets that are parts of one module
  for (int i = 0; i < 500; ++i) {
    std::vector<Module> modules(static_cast<size_t>(1 + draw(5)));
    int64_t offset = 0;
    for (Module& module : modules) {
      const int64_t sizes[] = {0, draw(2000), draw(40) * kSegment, draw(40 * kSegment)};
      module.count = sizes[draw(3)];
      module.flat_offset = offset;
      offset += module.count;
    }
    OptimizerPlan optimizer;
    optimizer.gpu_buckets = 0;
    optimizer.bucket_bytes = Bytes{4 * (1 + draw(6 * kSegment))};
    std::vector<int32_t> expected;
    for (const Bucket& bucket : buckets_of(modules, optimizer)) {
      expected.push_back(bucket.pieces.back().module);
      inside += bucket.pieces.size() == 1;
    }
    EXPECT_EQ(last_modules_of_buckets(modules, optimizer.bucket_bytes), expected) << i;
  }
  EXPECT_GT(inside, 1000U);
}

TEST(optimizer_pass, every_bucket_leaves_steps_and_comes_home) {
  const Graph graph = build(tiny::model(), tiny::plan());
  const auto buckets = static_cast<int64_t>(graph.buckets.size());
  EXPECT_EQ(buckets, 15);
  EXPECT_EQ(tiny::count(graph, OpKind::kPack), buckets);
  // Gradients and the sums of their norms out, weights in.
  EXPECT_EQ(tiny::count(graph, OpKind::kCopy, Phase::kOptimizer), 3 * buckets);
  EXPECT_EQ(tiny::count(graph, OpKind::kAdam), buckets);
  EXPECT_EQ(tiny::count(graph, OpKind::kUnpack), buckets);
  EXPECT_EQ(tiny::count(graph, OpKind::kDecide), 1);
  EXPECT_EQ(tiny::count(graph, OpKind::kCast), 0);
  EXPECT_EQ(graph.commit, -1);
  EXPECT_TRUE(graph.repair.ops.empty());
}

// Whoever steps a bucket, its gradient is summed once, by the GPU that has it, before it leaves or
// where it stays; of a share that ranks scatter, that share.
TEST(optimizer_pass, the_gpu_sums_every_gradient_once) {
  for (const SyncMode sync : {SyncMode::kWait, SyncMode::kDelay, SyncMode::kSpeculate}) {
    for (const int64_t zero_stage : {0, 1, 2, 3}) {
      for (const int64_t gpu_buckets : {0, 4}) {
        for (const bool adds_up : {false, true}) {
          Plan plan = tiny::plan();
          plan.optimizer.sync = sync;
          plan.optimizer.gpu_buckets = gpu_buckets;
          plan.zero_stage = zero_stage;
          plan.data = plan.devices = zero_stage > 0 ? 2 : 1;
          plan.global_batch *= 2 * plan.data;
          StackFacts facts;
          facts.accumulates_on_cpu = adds_up;
          const Graph graph = build(tiny::model(), plan, facts);
          SCOPED_TRACE(fmt::format("{}, stage {}, {} on the GPU{}", to_string(sync), zero_stage,
                                   gpu_buckets, adds_up ? ", added up on the CPU" : ""));
          std::vector<int> sums(graph.buckets.size(), 0);
          for (const Op& op : graph.step.ops) {
            if (op.kind != OpKind::kSumOfSquares) continue;
            ++sums[static_cast<size_t>(op.label.bucket)];
            const BucketWork& work = std::get<BucketWork>(op.work);
            EXPECT_EQ(work.site, Site::kGpu);
            for (const Access& access : op.accesses) {
              const Tensor& tensor = graph.tensor(access.tensor);
              EXPECT_EQ(tensor.place, Place::kHbm);
              if (tensor.kind == TensorKind::kPacked) EXPECT_EQ(tensor.elements, work.elements);
            }
          }
          EXPECT_EQ(sums, std::vector<int>(graph.buckets.size(), 1));
        }
      }
    }
  }
}

TEST(optimizer_pass, a_cast_on_the_cpu_moves_half_the_bytes) {
  Plan plan = tiny::plan();
  const auto moved = [](const Graph& graph) {
    int64_t bytes = 0;
    for (const Op& op : graph.step.ops) {
      if (op.kind == OpKind::kCopy && !holds_norms(graph, op)) bytes += bytes_of(op.work).count;
    }
    return bytes;
  };
  const int64_t on_gpu = moved(build(tiny::model(), plan));
  plan.optimizer.cast = CastPlacement::kCpu;
  const Graph graph = build(tiny::model(), plan);
  EXPECT_EQ(2 * moved(graph), on_gpu);
  EXPECT_EQ(tiny::count(graph, OpKind::kCast), 2 * 15);
}

TEST(optimizer_pass, resident_keeps_all_of_the_optimizer_on_the_gpu) {
  Plan plan = tiny::plan();
  plan.optimizer.placement = OptimizerPlacement::kGpu;
  const Graph graph = build(tiny::model(), plan);
  EXPECT_EQ(tiny::count(graph, OpKind::kPack), 0);
  for (const Op& op : graph.step.ops) {
    if (op.kind == OpKind::kAdam) {
      EXPECT_EQ(op.lane, lane_of(0, LaneKind::kCompute));
    }
  }
  for (const Tensor& tensor : graph.tensors) {
    if (tensor.category == Category::kMaster) {
      EXPECT_EQ(tensor.place, Place::kHbm);
    }
  }
}

TEST(optimizer_pass, speculation_commits_before_the_first_backward_and_can_repair_every_bucket) {
  Plan plan = tiny::plan();
  plan.optimizer.sync = SyncMode::kSpeculate;
  plan.optimizer.gpu_buckets = 1;
  const Graph graph = build(tiny::model(), plan);
  ASSERT_GE(graph.commit, 0);
  EXPECT_EQ(static_cast<size_t>(graph.commit) + 1, first_backward(graph.step.ops));
  int64_t undone = 0;
  for (const Op& op : graph.repair.ops) undone += op.kind == OpKind::kUndo;
  EXPECT_EQ(undone, 15);
}

// On the GPU too it takes snapshots, which is why the table says that it matters there.
TEST(optimizer_pass, sync_changes_the_graph_wherever_the_optimizer_stands) {
  const Knob& sync = knob_of(KnobId::kSync);
  for (const auto placement : {OptimizerPlacement::kGpu, OptimizerPlacement::kCpu}) {
    Plan plan = tiny::plan();
    plan.optimizer.placement = placement;
    plan.optimizer.sync = SyncMode::kWait;
    const Graph waits = build(tiny::model(), plan);
    plan.optimizer.sync = SyncMode::kSpeculate;
    const Graph speculates = build(tiny::model(), plan);
    EXPECT_EQ(tiny::count(waits, OpKind::kSnapshot), 0);
    EXPECT_GT(tiny::count(speculates, OpKind::kSnapshot), 0);
    EXPECT_TRUE(sync.matters_to(plan));
  }
}

// Master and both moments as they are stored: 12 bytes a parameter, or 8.
TEST(optimizer_pass, snapshots_take_the_bytes_of_the_state_that_they_copy) {
  for (const DType moments : {DType::kF32, DType::kBf16}) {
    Plan plan = tiny::plan();
    plan.optimizer.sync = SyncMode::kSpeculate;
    plan.optimizer.moments = moments;
    const Graph graph = build(tiny::model(), plan);
    const int64_t each = size_of(DType::kF32) + 2 * size_of(moments);
    for (const Tensor& tensor : graph.tensors) {
      if (tensor.kind != TensorKind::kUndoRecord) continue;
      const Bucket& bucket = graph.buckets[static_cast<size_t>(tensor.label.bucket)];
      EXPECT_EQ(tensor.bytes().count, bucket.count * each);
    }
    for (const Op& op : graph.step.ops) {
      if (op.kind != OpKind::kSnapshot) continue;
      const Bucket& bucket = graph.buckets[static_cast<size_t>(op.label.bucket)];
      EXPECT_EQ(bytes_of(op.work).count, 2 * bucket.count * each);  // read and written
    }
  }
}

// A weight must not change between the forward and the backward of the same step.
TEST(optimizer_pass, no_weight_is_written_between_its_forward_and_its_last_backward_reader) {
  for (const double flow : {0.0, 0.5, 1.0}) {
    for (const CastPlacement cast : {CastPlacement::kGpu, CastPlacement::kCpu}) {
      Plan plan = tiny::plan();
      plan.optimizer.sync = SyncMode::kSpeculate;
      plan.optimizer.cast = cast;
      plan.optimizer.gpu_buckets = 3;
      plan.weights.flow_share = flow;
      plan.weights.look_ahead = 0;
      const Graph graph = build(tiny::model(), plan);
      std::vector<OpId> last_read(graph.tensors.size(), -1);
      std::vector<OpId> first_write(graph.tensors.size(), 1 << 30);
      for (size_t i = 0; i < graph.step.ops.size(); ++i) {
        const Op& op = graph.step.ops[i];
        for (const Access& access : op.accesses) {
          const auto t = static_cast<size_t>(access.tensor);
          const bool fetched = op.phase == Phase::kFetch && access.role == Role::kSource;
          if (access.role == Role::kWeight || fetched) last_read[t] = static_cast<OpId>(i);
          const bool stepped = op.phase == Phase::kOptimizer && writes(access);
          if (stepped) first_write[t] = std::min(first_write[t], static_cast<OpId>(i));
        }
      }
      for (size_t t = 0; t < graph.tensors.size(); ++t) {
        EXPECT_LT(last_read[t], first_write[t]) << describe(graph.tensors[t]);
      }
    }
  }
}

// fc1 and fc2 of C=128, F=600 have more than one segment, so buckets of one segment cut modules
// between the two sites.
TEST(optimizer_pass, every_bucket_of_the_cpu_comes_home_once_wherever_the_gpu_begins) {
  Model model = tiny::model();
  model.hidden = 128;
  model.head_size = 64;
  model.ffn = 600;
  Plan plan = tiny::plan();
  plan.optimizer.sync = SyncMode::kSpeculate;
  plan.optimizer.gpu_buckets = 0;
  const auto buckets = static_cast<int64_t>(build(model, plan).buckets.size());
  for (int64_t on_gpu = 0; on_gpu <= buckets; ++on_gpu) {
    plan.optimizer.gpu_buckets = on_gpu;
    const Graph graph = build(model, plan);
    std::vector<int> uploads(graph.buckets.size(), 0);
    for (const Op& op : graph.step.ops) {
      if (op.kind == OpKind::kCopy && kind_of(op.lane) == LaneKind::kUpload) {
        ++uploads[static_cast<size_t>(op.label.bucket)];
      }
    }
    for (size_t b = 0; b < uploads.size(); ++b) {
      EXPECT_EQ(uploads[b], graph.buckets[b].site == Site::kCpu ? 1 : 0) << on_gpu << " " << b;
    }
  }
}

TEST(shard_pass, two_ranks_move_half_the_bytes_and_exchange_every_bucket) {
  Plan plan = tiny::plan();
  plan.devices = plan.data = 2;
  plan.global_batch = 4;
  const Graph graph = build(tiny::model(), plan);
  EXPECT_EQ(tiny::count(graph, OpKind::kCollective), 2 * 15);
  for (const Op& op : graph.step.ops) {
    if (op.kind != OpKind::kAdam) continue;
    const int64_t whole = graph.buckets[static_cast<size_t>(op.label.bucket)].count;
    EXPECT_EQ(std::get<BucketWork>(op.work).elements, (whole + 1) / 2);
  }
  plan.devices = plan.data = 1;
  plan.global_batch = 2;
  EXPECT_EQ(tiny::count(build(tiny::model(), plan), OpKind::kCollective), 0);
}

}  // namespace
}  // namespace ballast
