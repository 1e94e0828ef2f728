// Pipelines: the order of blocks on every stage, what is in flight, what is sent and stepped.
#include "sim/graph/schedules/pipeline.h"

#include <algorithm>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <map>
#include <set>

#include "sim/graph/core/stages.h"
#include "sim/graph/report/memory.h"
#include "tests/graph/tiny_plans.h"

namespace ballast {
namespace {

struct StageShape {
  int64_t stages = 1, chunks = 1, micro_batches = 1;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int64_t parts = 1;
};

// A layer a chunk.
Model model_of(const StageShape& shape) {
  Model model = tiny::model();
  model.layers = shape.stages * shape.chunks;
  return model;
}

Plan plan_of(const StageShape& shape) {
  Plan plan = tiny::plan();
  plan.devices = plan.pipeline = shape.stages;
  plan.virtual_pipeline = shape.chunks;
  plan.pipeline_schedule = shape.schedule;
  plan.global_batch = 2 * shape.micro_batches;
  plan.optimizer.placement = OptimizerPlacement::kGpu;
  plan.subsequences = shape.parts;
  if (shape.parts > 1) plan.sequence_length = shape.parts * kAttentionTile;
  return plan;
}

Graph graph_of(const StageShape& shape) { return build(model_of(shape), plan_of(shape)); }

// "F0.1" is the forward of the stage's first chunk for the second micro-batch, "F0.1.2" for the
// third part of it.
std::string order_on(int stage, const Graph& graph, const StageShape& shape) {
  std::string order;
  for (const Op& op : graph.step.ops) {
    if (op.kind != OpKind::kBlock || device_of(op.lane) != stage) continue;
    order += fmt::format("{}{}.{}{} ", op.phase == Phase::kForward ? 'F' : 'B',
                         op.label.layer / shape.stages, op.label.micro_batch,
                         shape.parts > 1 ? fmt::format(".{}", op.label.subsequence) : "");
  }
  return order;
}

// Most chunks of a stage whose saved activations are alive at once.
int64_t in_flight(int stage, const Graph& graph) {
  const std::vector<Life> lives = lives_of(graph);
  std::vector<int64_t> change(graph.step.ops.size() + 1);
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    if (graph.tensors[t].kind != TensorKind::kSaved || graph.tensors[t].device != stage) continue;
    ++change[static_cast<size_t>(lives[t].first)];
    --change[static_cast<size_t>(lives[t].last) + 1];
  }
  int64_t alive = 0;
  int64_t most = 0;
  for (const int64_t by : change) most = std::max(most, alive += by);
  return most;
}

// arXiv 2104.04473, figure 4.
TEST(build_pipeline, stages_warm_up_and_then_take_turns) {
  const StageShape shape{4, 1, 8};
  const Graph graph = graph_of(shape);
  EXPECT_EQ(order_on(0, graph, shape),
            "F0.0 F0.1 F0.2 F0.3 B0.0 F0.4 B0.1 F0.5 B0.2 F0.6 B0.3 F0.7 B0.4 B0.5 B0.6 B0.7 ");
  EXPECT_EQ(order_on(2, graph, shape),
            "F0.0 F0.1 B0.0 F0.2 B0.1 F0.3 B0.2 F0.4 B0.3 F0.5 B0.4 F0.6 B0.5 F0.7 B0.6 B0.7 ");
  EXPECT_EQ(order_on(3, graph, shape),
            "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 F0.3 B0.3 F0.4 B0.4 F0.5 B0.5 F0.6 B0.6 F0.7 B0.7 ");
}

// arXiv 1811.06965, figure 2; with chunks arXiv 2211.05953, figure 4.
TEST(build_pipeline, gpipe_runs_all_forwards_and_holds_what_they_save) {
  const StageShape shape{4, 1, 3, PipelineSchedule::kGpipe};
  const Graph graph = graph_of(shape);
  for (const int stage : {0, 3}) {
    EXPECT_EQ(order_on(stage, graph, shape), "F0.0 F0.1 F0.2 B0.0 B0.1 B0.2 ");
    EXPECT_EQ(in_flight(stage, graph), 3);
  }
  const StageShape chunks{2, 2, 4, PipelineSchedule::kGpipe};
  EXPECT_EQ(order_on(0, graph_of(chunks), chunks),
            "F0.0 F0.1 F0.2 F0.3 F1.0 F1.1 F1.2 F1.3 B1.0 B1.1 B1.2 B1.3 B0.0 B0.1 B0.2 B0.3 ");
  EXPECT_EQ(in_flight(0, graph_of(chunks)), 8);
}

// arXiv 2102.07988: parts go as micro-batches do, but back in reverse.
TEST(build_pipeline, terapipe_passes_parts_and_takes_them_back_in_reverse) {
  const StageShape shape{2, 1, 2, PipelineSchedule::kGpipe, 3};
  for (const int stage : {0, 1}) {
    EXPECT_EQ(order_on(stage, graph_of(shape), shape),
              "F0.0.0 F0.0.1 F0.0.2 F0.1.0 F0.1.1 F0.1.2 "
              "B0.0.2 B0.0.1 B0.0.0 B0.1.2 B0.1.1 B0.1.0 ");
  }
  const StageShape chunks{2, 2, 2, PipelineSchedule::kGpipe, 2};
  EXPECT_EQ(order_on(0, graph_of(chunks), chunks),
            "F0.0.0 F0.0.1 F0.1.0 F0.1.1 F1.0.0 F1.0.1 F1.1.0 F1.1.1 "
            "B1.0.1 B1.0.0 B1.1.1 B1.1.0 B0.0.1 B0.0.0 B0.1.1 B0.1.0 ");
  EXPECT_EQ(schedule_of(plan_of(chunks)).name, "TeraPipe");
}

// arXiv 2406.03488: stage s of p runs p - s - 1 + N - 1 parts ahead, so that it holds one
// for every stage from its own on and N - 1 more, where TeraPipe holds all of every micro-batch.
TEST(build_pipeline, seq1f1b_takes_turns_by_parts) {
  const StageShape shape{2, 1, 2, PipelineSchedule::k1F1B, 3};
  const Graph graph = graph_of(shape);
  EXPECT_EQ(order_on(0, graph, shape),
            "F0.0.0 F0.0.1 F0.0.2 F0.1.0 B0.0.2 F0.1.1 B0.0.1 F0.1.2 B0.0.0 B0.1.2 B0.1.1 B0.1.0 ");
  EXPECT_EQ(order_on(1, graph, shape),
            "F0.0.0 F0.0.1 F0.0.2 B0.0.2 F0.1.0 B0.0.1 F0.1.1 B0.0.0 F0.1.2 B0.1.2 B0.1.1 B0.1.0 ");
  for (const int64_t stage : {0, 1}) {
    EXPECT_EQ(most_in_flight(stage, plan_of(shape)), 2 - stage + 2);
  }
  EXPECT_EQ(most_in_flight(0, plan_of({2, 1, 2, PipelineSchedule::kGpipe, 3})), 6);
  EXPECT_EQ(schedule_of(plan_of(shape)).name, "Seq1F1B");
}

// Of 2 sequences 128 tokens of 8 values of 2 bytes for each part, once forward and once backward.
TEST(build_pipeline, every_part_crosses_every_border_twice) {
  const StageShape shape{2, 1, 2, PipelineSchedule::kGpipe, 3};
  int64_t sends = 0;
  for (const Op& op : graph_of(shape).step.ops) {
    const auto* work = std::get_if<CollectiveWork>(&op.work);
    if (work == nullptr || work->kind != CollectiveKind::kSendReceive) continue;
    EXPECT_EQ(work->bytes.count, 2 * 128 * 8 * 2);
    ++sends;
  }
  EXPECT_EQ(sends, 2 * 2 * 3);
}

// arXiv 2211.05322: stage s of p runs 2 (p - s - 1) forwards ahead, where 1F1B runs p - s - 1.
TEST(build_pipeline, eager_stages_run_twice_as_far_ahead) {
  const StageShape shape{3, 1, 6, PipelineSchedule::kEager1F1B};
  const Graph graph = graph_of(shape);
  EXPECT_EQ(order_on(0, graph, shape),
            "F0.0 F0.1 F0.2 F0.3 F0.4 B0.0 F0.5 B0.1 B0.2 B0.3 B0.4 B0.5 ");
  EXPECT_EQ(order_on(1, graph, shape),
            "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 F0.4 B0.2 F0.5 B0.3 B0.4 B0.5 ");
  EXPECT_EQ(order_on(2, graph, shape),
            "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 F0.3 B0.3 F0.4 B0.4 F0.5 B0.5 ");
  EXPECT_EQ(in_flight(0, graph), 5);
}

// p - s micro-batches at stage s, fewer where there are fewer.
TEST(build_pipeline, a_stage_has_as_many_micro_batches_in_flight_as_stages_follow_it) {
  const Graph graph = graph_of({4, 1, 8});
  for (int stage = 0; stage < 4; ++stage) EXPECT_EQ(in_flight(stage, graph), 4 - stage);
  EXPECT_EQ(in_flight(0, graph_of({4, 1, 2})), 2);
}

// p = 2, v = 2: the first stage runs 2 (p - 1) + (v - 1) p = 4 chunks ahead.
TEST(build_pipeline, chunks_are_interleaved_by_groups_of_micro_batches) {
  const StageShape shape{2, 2, 4};
  const Graph graph = graph_of(shape);
  EXPECT_EQ(order_on(0, graph, shape),
            "F0.0 F0.1 F1.0 F1.1 F0.2 B1.0 F0.3 B1.1 F1.2 B0.0 F1.3 B0.1 B1.2 B1.3 B0.2 B0.3 ");
  EXPECT_EQ(order_on(1, graph, shape),
            "F0.0 F0.1 F1.0 B1.0 F1.1 B1.1 F0.2 B0.0 F0.3 B0.1 F1.2 B1.2 F1.3 B1.3 B0.2 B0.3 ");
}

// Of chunks of L / (p v) layers p v + p - 1: L (1 + (p - 1) / (p v)) layers (arXiv 2205.05198,
// section 4.2.3).
TEST(build_pipeline, interleaving_keeps_the_activations_of_more_than_all_layers) {
  EXPECT_EQ(in_flight(0, graph_of({2, 2, 4})), 4 + 1);
  EXPECT_EQ(in_flight(0, graph_of({4, 2, 8})), 8 + 3);
  EXPECT_EQ(in_flight(0, graph_of({4, 3, 8})), 12 + 3);
}

// 8 tokens of 8 values of 2 bytes, split over the tensor-parallel ranks, once forward and once
// backward over each of p v - 1 borders.
TEST(build_pipeline, every_border_is_crossed_twice_a_micro_batch) {
  for (const int64_t tensor : {1, 2}) {
    const StageShape shape{2, 2, 4};
    Plan plan = plan_of(shape);
    plan.tensor = tensor;
    plan.devices = 2 * tensor;
    const Graph graph = build(model_of(shape), plan);
    int64_t sends = 0;
    for (const Op& op : graph.step.ops) {
      const auto* work = std::get_if<CollectiveWork>(&op.work);
      if (work == nullptr) continue;
      EXPECT_EQ(*work, (CollectiveWork{CollectiveKind::kSendReceive, {128 / tensor}, 2, tensor}));
      EXPECT_EQ(kind_of(op.lane), LaneKind::kPipelineNetwork);
      ++sends;
    }
    EXPECT_EQ(sends, 2 * 3 * 4);
  }
}

TEST(build_pipeline, sends_stand_between_blocks_where_a_stack_does_not_overlap_them) {
  const StageShape shape{2, 1, 4};
  StackFacts facts;
  facts.pipeline_overlap = Overlap::kNone;
  for (const Op& op : build(model_of(shape), plan_of(shape), facts).step.ops) {
    EXPECT_NE(kind_of(op.lane), LaneKind::kPipelineNetwork);
  }
}

// All stages together hold the model once, a tied embedding twice, and the sum of its two gradients
// goes from the first to the last stage: 128 values.
TEST(build_pipeline, a_tied_embedding_lies_on_both_ends) {
  const StageShape shape{2, 1, 4};
  const int64_t layers = 2 * 1040;
  EXPECT_EQ(tiny::elements(graph_of(shape), TensorKind::kWeight), layers + 128 + 8 + 128);
  Model tied = model_of(shape);
  tied.tied_embeddings = true;
  const Graph graph = build(tied, plan_of(shape));
  EXPECT_EQ(tiny::elements(graph, TensorKind::kWeight), layers + 128 + 8 + 128);
  const CollectiveWork sum{CollectiveKind::kAllReduce, {128 * 2}, 2, 1};
  EXPECT_EQ(tiny::count(tiny::exchanges(graph, Phase::kOptimizer).outside, sum), 1);
}

// What the first stage adds to must be there: its embedding is the first to write the gradient that
// the head of another stage shares.
TEST(build_pipeline, a_tied_gradient_begins_anew_every_step_on_both_ends) {
  const StageShape shape{2, 1, 4};
  Model tied = model_of(shape);
  tied.tied_embeddings = true;
  for (const Folding folding : {Folding::kOn, Folding::kOff}) {
    const Graph graph = build_pipeline(tied, plan_of(shape), {}, folding);
    const std::vector<Life> lives = lives_of(graph);
    int gradients = 0;
    for (size_t t = 0; t < graph.tensors.size(); ++t) {
      const Tensor& tensor = graph.tensors[t];
      if (tensor.kind != TensorKind::kGradient) continue;
      if (tensor.label.module != ModuleKind::kEmbedding) continue;
      ++gradients;
      EXPECT_FALSE(lives[t].carried) << "stage " << int{tensor.device};
    }
    EXPECT_EQ(gradients, 2);
  }
}

// Of a stage that only passes values on, the commit is told when its forward has read what it
// stepped: else it might be judged, or undone, in the middle of its step.
TEST(build_pipeline, a_commit_waits_for_the_forward_of_every_stage) {
  for (const StageShape& shape : {StageShape{2, 1, 4}, StageShape{4, 1, 6}, StageShape{4, 2, 4}}) {
    Plan plan = plan_of(shape);
    plan.optimizer.sync = SyncMode::kSpeculate;
    for (const bool spread : {false, true}) {
      Graph graph =
          build_pipeline(model_of(shape), plan, {}, spread ? Folding::kOff : Folding::kOn);
      link(graph);
      std::set<int> waited;
      const auto commit = static_cast<size_t>(graph.commit);
      for (int32_t e = graph.step.edge_begin[commit]; e < graph.step.edge_begin[commit + 1]; ++e) {
        const Edge& edge = graph.step.edges[static_cast<size_t>(e)];
        const LaneId lane = graph.op(edge.op).lane;
        const bool computes = kind_of(lane) == LaneKind::kCompute;
        if (edge.steps_ahead == 0 && computes) waited.insert(device_of(lane));
      }
      EXPECT_EQ(waited.size(), static_cast<size_t>(shape.stages - 1));
    }
  }
}

// A chunk is built once for all that are alike, and every layer still has its own names.
TEST(build_pipeline, parameters_have_the_names_of_the_whole_model) {
  const StageShape shape{2, 2, 4};
  const Model model = model_of(shape);
  std::set<std::string> names;
  for (const Module& module : graph_of(shape).modules) {
    for (const Parameter& parameter : module.parameters) names.insert(parameter.name);
  }
  std::set<std::string> of_model;
  for (const Module& module : modules_of(model)) {
    for (const Parameter& parameter : module.parameters) of_model.insert(parameter.name);
  }
  EXPECT_EQ(names, of_model);
}

// Stage after stage the layers are 0 2, 1 3; in the order of the model the tied matrix is there
// once.
TEST(stages, modules_are_those_of_the_model_in_its_order) {
  const StageShape shape{2, 2, 4};
  Model model = model_of(shape);
  for (const bool tied : {false, true}) {
    model.tied_embeddings = tied;
    const Graph graph = build(model, plan_of(shape));
    std::vector<std::pair<ModuleKind, int64_t>> order;
    for (const int32_t i : modules_in_order(graph)) {
      order.emplace_back(graph.module(i).kind, graph.module(i).layer);
    }
    std::vector<std::pair<ModuleKind, int64_t>> of_model;
    for (const Module& module : modules_of(model)) {
      if (module.count > 0) of_model.emplace_back(module.kind, module.layer);
    }
    EXPECT_EQ(order, of_model);
    EXPECT_EQ(devices_of(graph), 2);
    const std::vector<int32_t> copies = copies_of_module(graph, modules_in_order(graph).front());
    EXPECT_EQ(copies.size(), tied ? 1u : 0u);
  }
}

// 2 stages of 2 ranks each: every bucket's gradients are summed, or scattered and its weights
// gathered. Ranks that hold the same weights are neighbours here.
TEST(build_pipeline, replicas_exchange_the_gradients_of_every_bucket) {
  const StageShape shape{2, 2, 4};
  Plan plan = plan_of(shape);
  plan.data = 2;
  plan.devices = 4;
  plan.global_batch = 16;
  for (const int64_t stage : {0, 1}) {
    plan.zero_stage = stage;
    const Graph graph = build(model_of(shape), plan);
    const auto works = tiny::exchanges(graph, Phase::kOptimizer).outside;
    EXPECT_EQ(works.size(), graph.buckets.size() * (stage == 0 ? 1 : 2));
    Bytes bytes;
    for (const CollectiveWork& work : works) {
      EXPECT_EQ(work.kind == CollectiveKind::kAllReduce, stage == 0);
      EXPECT_EQ(work.ranks, 2);
      EXPECT_EQ(work.stride, 1);
      bytes += work.bytes;
    }
    const int64_t parameters = 4 * 1040 + 128 + 8 + 128;
    EXPECT_EQ(bytes, Bytes{2 * parameters * (stage == 0 ? 1 : 2)});
    EXPECT_EQ(tiny::elements(graph, TensorKind::kMaster), parameters / (stage == 0 ? 1 : 2));
  }
}

// --- the two forms ----------------------------------------------------------------------------

std::vector<std::string> sorted(std::vector<std::string> list) {
  std::sort(list.begin(), list.end());
  return list;
}

// What a graph does outside of its turns, each with the device that does it.
std::vector<std::string> outside_of_turns(const Graph& graph) {
  std::vector<std::string> list;
  for (const Op& op : graph.step.ops) {
    const auto* work = std::get_if<CollectiveWork>(&op.work);
    const bool message = work != nullptr && work->kind == CollectiveKind::kSendReceive;
    if (op.phase != Phase::kOptimizer && !message) continue;
    list.push_back(fmt::format("{} {}{} bucket {}", device_of(op.lane), to_string(op.kind),
                               cost_key(op), op.label.bucket));
  }
  return sorted(std::move(list));
}

// What each turn does with weights and gradients: "1 F chunk 3 micro-batch 0: tensors".
std::map<std::string, std::set<std::string>> state_of_turns(const Graph& graph, int64_t layers,
                                                            int64_t chunks) {
  std::map<std::string, std::set<std::string>> turns;
  // The embedding lies in the first chunk, the head in the last; only layers are told apart here.
  for (const Op& op : graph.step.ops) {
    const bool computes = kind_of(op.lane) == LaneKind::kCompute && op.label.layer >= 0;
    if (!computes || op.phase == Phase::kOptimizer) continue;
    const std::string turn =
        fmt::format("{} {} chunk {} micro-batch {}", device_of(op.lane),
                    op.phase == Phase::kForward ? 'F' : 'B',
                    chunk_of_layer(op.label.layer, chunks, layers), op.label.micro_batch);
    for (const Access& access : op.accesses) {
      const Tensor& tensor = graph.tensor(access.tensor);
      const bool state = tensor.kind == TensorKind::kWeight || tensor.kind == TensorKind::kGradient;
      if (state && tensor.label.layer >= 0) turns[turn].insert(describe(tensor));
    }
  }
  return turns;
}

// Folding a turn changes nothing but that it is one: the same messages, the same work on the same
// buckets, the same weights read and gradients written by the same turns.
TEST(build_pipeline, both_forms_do_the_same_work) {
  int64_t compared = 0;
  for (const StageShape& shape : {StageShape{2, 1, 4}, StageShape{4, 1, 8}, StageShape{2, 2, 4}}) {
    for (const auto placement : {OptimizerPlacement::kGpu, OptimizerPlacement::kCpu}) {
      for (const int64_t ranks : {1, 2}) {
        for (const SyncMode sync : {SyncMode::kWait, SyncMode::kDelay, SyncMode::kSpeculate}) {
          Plan plan = plan_of(shape);
          plan.optimizer.placement = placement;
          plan.optimizer.sync = sync;
          plan.data = ranks;
          plan.devices *= ranks;
          plan.global_batch *= ranks;
          plan.zero_stage = ranks > 1 ? 1 : 0;
          Model model = model_of(shape);
          model.tied_embeddings = ranks > 1;
          const Graph folded = build_pipeline(model, plan, {}, Folding::kOn);
          const Graph spread = build_pipeline(model, plan, {}, Folding::kOff);
          EXPECT_EQ(outside_of_turns(folded), outside_of_turns(spread));
          const int64_t chunks = shape.stages * shape.chunks;
          EXPECT_EQ(state_of_turns(folded, model.layers, chunks),
                    state_of_turns(spread, model.layers, chunks));
          EXPECT_GT(spread.step.ops.size(), folded.step.ops.size());
          ++compared;
        }
      }
    }
  }
  EXPECT_EQ(compared, 36);
}

// Merged in the order of one thread: `verify` says that everything is written before it is read,
// and edges never point forward. Weights that flow and activations that leave are copies of every
// stage.
TEST(build_pipeline, spread_stages_offload_and_stream_like_a_graph_of_one) {
  Plan plan = plan_of({2, 1, 4});
  Model model = model_of({2, 1, 4});
  model.layers = 4;
  plan.optimizer.placement = OptimizerPlacement::kCpu;
  plan.optimizer.sync = SyncMode::kSpeculate;
  plan.optimizer.gpu_buckets = 1;
  plan.weights.flow_share = 1;
  plan.activations->fate[static_cast<size_t>(ModuleKind::kFc1)] = ActivationFate::kOffload;
  plan.activations->offload_share = 1;
  const Graph graph = build(model, plan);
  EXPECT_TRUE(graph.blocks.empty());
  for (int device = 0; device < 2; ++device) {
    int64_t fetched = 0, left = 0, stepped_on_gpu = 0;
    for (const Op& op : graph.step.ops) {
      if (device_of(op.lane) != device) continue;
      fetched += op.phase == Phase::kFetch;
      left += op.phase == Phase::kOffload;
      stepped_on_gpu += op.kind == OpKind::kAdam && kind_of(op.lane) == LaneKind::kCompute;
    }
    EXPECT_GT(fetched, 0);
    EXPECT_GT(left, 0);
    EXPECT_EQ(stepped_on_gpu, 1);
  }
  ASSERT_GE(graph.commit, 0);
  EXPECT_FALSE(graph.repair.ops.empty());
  for (size_t i = 0; i < graph.step.ops.size(); ++i) {
    for (int32_t e = graph.step.edge_begin[i]; e < graph.step.edge_begin[i + 1]; ++e) {
      const Edge& edge = graph.step.edges[static_cast<size_t>(e)];
      if (edge.steps_ahead == 0 && !graph.op(edge.op).fence) {
        EXPECT_LT(static_cast<size_t>(edge.op), i);
      }
    }
  }
}

// Layers of three makes: the first without experts, every other one, and one besides; all positions
// seen by every third.
std::vector<Model> uneven_models() {
  Model model = tiny::model();
  model.architecture = "qwen3_moe";
  model.layers = 8;
  model.experts = 8;
  model.experts_per_token = 2;
  model.expert_ffn = 64;
  Model first = model, every_other = model, windows = model;
  first.first_dense_layers = 1;
  every_other.sparse_step = 2;
  every_other.dense_layers = {5};
  windows.sliding_window = 2;
  windows.full_attention_period = 3;
  return {first, every_other, windows};
}

struct WorkOfStep {
  double forward = 0, backward = 0;  // floating-point operations
  int64_t stepped = 0;               // parameters
};

WorkOfStep work_of(const Graph& graph) {
  WorkOfStep sum;
  const auto add = [&](const Op& op) {
    if (op.phase == Phase::kForward) sum.forward += flops_of(op.work).count;
    if (op.phase == Phase::kBackward) sum.backward += flops_of(op.work).count;
  };
  for (const Op& op : graph.step.ops) {
    const auto* block = std::get_if<BlockWork>(&op.work);
    if (block == nullptr) {
      add(op);
    } else {
      for (const Op& inside : graph.blocks[static_cast<size_t>(block->block)].ops) add(inside);
    }
  }
  sum.stepped = tiny::elements(graph, TensorKind::kMaster);
  return sum;
}

// A stage counts its layers from 0, and they are still those of the model: with experts or without,
// and with their windows.
TEST(build_pipeline, layers_that_differ_keep_their_place_in_every_stage) {
  for (const Model& model : uneven_models()) {
    Plan plan = plan_of({1, 1, 8});
    const WorkOfStep whole = work_of(build(model, plan));
    for (const StageShape& shape :
         {StageShape{2, 1, 8}, StageShape{4, 1, 8}, StageShape{8, 1, 8}, StageShape{2, 2, 8}}) {
      for (const Folding folding : {Folding::kOn, Folding::kOff}) {
        const WorkOfStep stages = work_of(build_pipeline(model, plan_of(shape), {}, folding));
        EXPECT_EQ(stages.forward, whole.forward) << shape.stages;
        EXPECT_EQ(stages.backward, whole.backward) << shape.stages;
        EXPECT_EQ(stages.stepped, whole.stepped) << shape.stages;
      }
    }
  }
}

// Folded or spread: what all parts compute is what they compute on one device.
TEST(build_pipeline, parts_compute_the_same_on_any_stages) {
  for (const int64_t chunks : {1, 2}) {
    const StageShape shape{2, chunks, 2, PipelineSchedule::kGpipe, 3};
    const Model model = model_of(shape);
    Plan plan = plan_of(shape);
    plan.devices = plan.pipeline = plan.virtual_pipeline = 1;
    const WorkOfStep alone = work_of(build(model, plan));
    for (const Folding folding : {Folding::kOn, Folding::kOff}) {
      const WorkOfStep stages = work_of(build_pipeline(model, plan_of(shape), {}, folding));
      EXPECT_EQ(stages.forward, alone.forward);
      EXPECT_EQ(stages.backward, alone.backward);
      EXPECT_EQ(stages.stepped, alone.stepped);
    }
  }
}

// Of a pipeline whose chunks would have a layer each if embedding and head were layers, the first
// and the last have none. Their stages do the same work as one device: with learned or tied
// embeddings, folded and spread, with a stage of its own for either end (4 stages of one chunk).
TEST(build_pipeline, chunks_at_the_ends_may_have_no_layer) {
  int64_t compared = 0;
  for (const StageShape& shape : {StageShape{2, 2, 4}, StageShape{4, 1, 6}, StageShape{2, 4, 4},
                                  StageShape{3, 1, 3}, StageShape{4, 2, 4}}) {
    for (const int64_t parts : {1, 3}) {
      for (const bool tied : {false, true}) {
        StageShape of = shape;
        of.parts = parts;
        if (parts > 1) of.schedule = PipelineSchedule::kGpipe;
        Model model = model_of(of);
        model.layers -= 2;
        model.tied_embeddings = tied;
        Plan alone = plan_of(of);
        alone.devices = alone.pipeline = alone.virtual_pipeline = 1;
        const WorkOfStep whole = work_of(build(model, alone));
        for (const Folding folding : {Folding::kOn, Folding::kOff}) {
          const Graph graph = build_pipeline(model, plan_of(of), {}, folding);
          const WorkOfStep stages = work_of(graph);
          EXPECT_EQ(stages.forward, whole.forward) << of.stages << " of " << of.chunks;
          EXPECT_EQ(stages.backward, whole.backward) << of.stages << " of " << of.chunks;
          // A tied embedding lies, and is stepped, on the first stage and on the last.
          if (!tied) {
            EXPECT_EQ(stages.stepped, whole.stepped) << of.stages << " of " << of.chunks;
          }
          ++compared;
        }
        const Graph folded = build_pipeline(model, plan_of(of), {}, Folding::kOn);
        const Graph spread = build_pipeline(model, plan_of(of), {}, Folding::kOff);
        EXPECT_EQ(outside_of_turns(folded), outside_of_turns(spread));
        const int64_t chunks = of.stages * of.chunks;
        EXPECT_EQ(state_of_turns(folded, model.layers, chunks),
                  state_of_turns(spread, model.layers, chunks));
        // Of three kinds: the ends, and what lies between.
        EXPECT_EQ(folded.blocks.size(), 2U * 3U * static_cast<size_t>(parts));
      }
    }
  }
  EXPECT_EQ(compared, 5 * 2 * 2 * 2);
  Model model = model_of({2, 2, 4});
  model.layers = 1;
  EXPECT_THROW(build(model, plan_of({2, 2, 4})), Error) << "4 chunks of 1 layer";
}

// Blocks are built once for each kind of chunk: the first, the last, and those between.
TEST(build_pipeline, stages_alike_share_their_blocks) {
  EXPECT_EQ(graph_of({4, 2, 8}).blocks.size(), 2U * 3U);
  EXPECT_EQ(graph_of({2, 1, 4}).blocks.size(), 2U * 2U);
}

}  // namespace
}  // namespace ballast
