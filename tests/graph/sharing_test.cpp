// What the knobs zero_group, recompute_share, offload_part and ffn_tiles make of a graph, counted
// by hand; layers over uneven chunks; and products in 8 bits as frameworks make them.
#include <gtest/gtest.h>
#include <set>

#include "sim/graph/core/edit.h"
#include "sim/graph/schedules/pipeline.h"
#include "sim/graph/schedules/schedule.h"
#include "sim/spec/knobs.h"
#include "tests/graph/tiny_plans.h"

namespace ballast {
namespace {

Plan four_ranks(int64_t stage, int64_t group) {
  Plan plan = tiny::plan();
  plan.devices = plan.data = 4;
  plan.global_batch *= 4;
  plan.zero_stage = stage;
  plan.zero_group = group;
  plan.optimizer.placement = OptimizerPlacement::kGpu;
  return plan;
}

// Bytes of all collectives of a kind among these ranks.
int64_t exchanged(const Graph& graph, CollectiveKind kind, int64_t ranks, int64_t stride) {
  int64_t bytes = 0;
  for (const Op& op : graph.step.ops) {
    const auto* work = std::get_if<CollectiveWork>(&op.work);
    if (work == nullptr || work->kind != kind || work->ranks != ranks) continue;
    EXPECT_EQ(work->stride, stride);
    bytes += work->bytes.count;
  }
  return bytes;
}

TEST(ZeroGroup, shards_over_a_group_and_sums_over_the_others) {
  for (const int64_t stage : {1, 2}) {
    const Graph all = build(tiny::model(), four_ranks(stage, 0));
    const Graph pairs = build(tiny::model(), four_ranks(stage, 2));
    const int64_t gradients = exchanged(all, CollectiveKind::kReduceScatter, 4, 1);
    EXPECT_GT(gradients, 0);
    EXPECT_EQ(exchanged(pairs, CollectiveKind::kReduceScatter, 2, 1), gradients);
    EXPECT_EQ(exchanged(pairs, CollectiveKind::kAllReduce, 2, 2), gradients / 2)
        << "of half the gradients, what the other pair has of it";
    EXPECT_EQ(exchanged(pairs, CollectiveKind::kAllGather, 2, 1),
              exchanged(all, CollectiveKind::kAllGather, 4, 1));
    EXPECT_EQ(tiny::elements(pairs, TensorKind::kMaster),
              2 * tiny::elements(all, TensorKind::kMaster));
  }
}

// A model whose experts are nearly all of it.
Model with_experts() {
  Model model = tiny::model();
  model.architecture = "mixtral";
  model.norm = NormKind::kRmsNorm;
  model.position = PositionKind::kRope;
  model.activation = ActivationKind::kSwiGlu;
  model.layout = WeightLayout::kOutIn;
  model.qkv_bias = model.attention_out_bias = model.mlp_bias = false;
  model.tied_embeddings = false;
  model.experts = 8;
  model.experts_per_token = 2;
  model.expert_ffn = 512;
  return model;
}

// Two pairs of four ranks have the same experts: rank 0 those of rank 2. Four expert ranks exchange
// nothing of theirs.
TEST(Experts, gradients_that_the_gpu_steps_are_reduced_by_those_that_have_them) {
  for (const int64_t stage : {0, 1, 2}) {
    const CollectiveKind kind =
        stage == 0 ? CollectiveKind::kAllReduce : CollectiveKind::kReduceScatter;
    const auto graph_of = [&](int64_t experts) {
      Plan plan = four_ranks(stage, 0);
      plan.expert = experts;
      return build(with_experts(), plan);
    };
    const int64_t all = exchanged(graph_of(1), kind, 4, 1);
    const Graph pairs = graph_of(2);
    const int64_t dense = exchanged(pairs, kind, 4, 1);
    EXPECT_GT(dense, 0);
    EXPECT_LT(dense, all / 4);
    EXPECT_EQ(dense + 2 * exchanged(pairs, kind, 2, 2), all) << "stage " << stage;
    EXPECT_EQ(exchanged(graph_of(4), kind, 4, 1), dense) << "stage " << stage;
    EXPECT_EQ(exchanged(graph_of(4), kind, 2, 2), 0);
    if (stage == 0) continue;
    const int64_t gathered = exchanged(graph_of(1), CollectiveKind::kAllGather, 4, 1);
    EXPECT_EQ(exchanged(pairs, CollectiveKind::kAllGather, 4, 1) +
                  2 * exchanged(pairs, CollectiveKind::kAllGather, 2, 2),
              gathered);
  }
}

// Every parameter is stepped once: what ranks hold of different experts they cannot share.
TEST(Experts, state_of_all_ranks_is_that_of_the_model) {
  const Model model = with_experts();
  const auto parameters = static_cast<double>(parameter_count(model));
  for (const int64_t stage : {1, 2, 3}) {
    for (const int64_t experts : {1, 2, 4}) {
      Plan plan = four_ranks(stage, 0);
      plan.expert = experts;
      const Graph graph = build(model, plan);
      const auto stepped = static_cast<double>(4 * tiny::elements(graph, TensorKind::kMaster));
      EXPECT_GE(stepped, parameters) << "stage " << stage << ", " << experts << " expert ranks";
      EXPECT_LT(stepped, 1.02 * parameters) << "stage " << stage << ", " << experts;
    }
  }
}

TEST(ZeroGroup, stage_three_gathers_in_the_group) {
  const Graph all = build(tiny::model(), four_ranks(3, 0));
  const Graph pairs = build(tiny::model(), four_ranks(3, 2));
  EXPECT_EQ(exchanged(pairs, CollectiveKind::kAllGather, 2, 1),
            exchanged(all, CollectiveKind::kAllGather, 4, 1));
  EXPECT_EQ(exchanged(pairs, CollectiveKind::kAllReduce, 2, 2),
            exchanged(pairs, CollectiveKind::kReduceScatter, 2, 1) / 2);
  EXPECT_EQ(tiny::elements(pairs, TensorKind::kWeight),
            2 * tiny::elements(all, TensorKind::kWeight));
}

TEST(ZeroGroup, a_group_that_does_not_divide_or_shares_nothing_is_refused) {
  EXPECT_THROW(build(tiny::model(), four_ranks(2, 3)), Error);
  EXPECT_THROW(build(tiny::model(), four_ranks(2, 1)), Error);
}

int64_t recomputed(const Graph& graph) {
  int64_t count = 0;
  for (const Op& op : graph.step.ops) count += op.phase == Phase::kRecompute;
  return count;
}

TEST(RecomputeShare, so_many_layers_recompute_and_the_others_keep) {
  Plan plan = tiny::plan();
  for (const ModuleKind kind : saving_kinds()) {
    if (kind == ModuleKind::kFc2) continue;
    plan.activations->fate[static_cast<size_t>(kind)] = ActivationFate::kRecompute;
  }
  const int64_t all = recomputed(build(tiny::model(), plan));
  EXPECT_GT(all, 0);
  plan.activations->recompute_share = 0.5;  // one of two layers
  EXPECT_EQ(recomputed(build(tiny::model(), plan)), all / 2);
  plan.activations->recompute_share = 0;
  EXPECT_EQ(recomputed(build(tiny::model(), plan)), 0);
}

// Of a gated network half of fc1 is one of its two products: the backward finds the one and makes
// the other again, at half the FLOPs.
TEST(RecomputeFc1Part, half_of_the_columns_are_made_again_and_the_others_stay) {
  const auto fc1 = static_cast<size_t>(ModuleKind::kFc1);
  Plan plan = tiny::plan();
  plan.activations->fate[fc1] = ActivationFate::kRecompute;
  const auto again = [](const Graph& graph) {
    double flops = 0;
    for (const Op& op : graph.step.ops) {
      if (op.phase == Phase::kRecompute) flops += flops_of(op.work).count;
    }
    return flops;
  };
  // What of fc1 is written by the forward and read by the backward.
  const auto kept = [](const Graph& graph) {
    std::set<TensorId> written;
    std::set<TensorId> found;
    int64_t elements = 0;
    for (const Op& op : graph.step.ops) {
      for (const Access& access : op.accesses) {
        const Tensor& tensor = graph.tensor(access.tensor);
        if (tensor.kind != TensorKind::kOutput || tensor.label.module != ModuleKind::kFc1) continue;
        if (op.phase == Phase::kForward) written.insert(access.tensor);
        const bool stays = is_backward(op.phase) && written.contains(access.tensor);
        if (stays && found.insert(access.tensor).second) elements += tensor.elements;
      }
    }
    return elements;
  };
  const Graph whole = build(tiny::model(), plan);
  EXPECT_EQ(kept(whole), 0);
  plan.activations->recompute_fc1_part = 0;
  const Graph none = build(tiny::model(), plan);
  EXPECT_EQ(again(none), 0);
  plan.activations->recompute_fc1_part = 0.5;
  const Graph half = build(tiny::model(), plan);
  EXPECT_EQ(kept(half), kept(none) / 2);
  EXPECT_GT(kept(half), 0);
  EXPECT_EQ(again(half), again(whole) / 2);
}

TEST(OffloadPart, a_quarter_of_every_output_leaves_and_the_rest_stays) {
  Plan plan = tiny::plan();
  const auto qkv = static_cast<size_t>(ModuleKind::kQkv);
  plan.activations->fate[qkv] = ActivationFate::kOffload;
  const Graph whole = build(tiny::model(), plan);
  const int64_t all = tiny::bytes(whole, TensorKind::kHostOutput).count;
  EXPECT_GT(all, 0);
  plan.activations->offload_part = 0.25;
  const Graph part = build(tiny::model(), plan);
  EXPECT_EQ(tiny::bytes(part, TensorKind::kHostOutput).count, all / 4);
  // The same number of copies each way; both parts are there for the backward.
  EXPECT_EQ(tiny::count(part, OpKind::kCopy, Phase::kReload),
            tiny::count(whole, OpKind::kCopy, Phase::kReload));
}

// What another stage sent is an input of a layer too, and comes in both parts.
TEST(OffloadPart, a_quarter_leaves_in_every_stage_of_a_pipeline) {
  Plan plan = tiny::plan();
  plan.activations->fate.fill(ActivationFate::kOffload);
  plan.activations->reload = ReloadOrder::kByModule;
  plan.devices = plan.pipeline = 2;
  Model model = tiny::model();
  model.layers = 6;
  const auto away = [&](double part) {
    plan.activations->offload_part = part;
    const Graph graph = build_pipeline(model, plan, StackFacts(), Folding::kOff);
    return tiny::bytes(graph, TensorKind::kHostOutput).count;
  };
  EXPECT_GT(away(1), 0);
  EXPECT_EQ(away(0.25), away(1) / 4);
}

TEST(FfnTiles, of_the_hidden_columns_only_a_tile_exists) {
  Plan plan = tiny::plan();
  for (const ModuleKind kind : {ModuleKind::kFc1, ModuleKind::kActivation}) {
    plan.activations->fate[static_cast<size_t>(kind)] = ActivationFate::kRecompute;
  }
  const auto hidden_columns = [](const Graph& graph) {
    int64_t sum = 0;
    for (const Tensor& tensor : tiny::used(graph, TensorKind::kOutput)) {
      if (tensor.label.module == ModuleKind::kFc1) sum += tensor.elements;
    }
    return sum;
  };
  const int64_t whole = hidden_columns(build(tiny::model(), plan));
  plan.ffn_tiles = 4;
  EXPECT_EQ(hidden_columns(build(tiny::model(), plan)), whole / 4);
  plan.activations->fate[static_cast<size_t>(ModuleKind::kFc1)] = ActivationFate::kKeep;
  EXPECT_THROW(build(tiny::model(), plan), Error) << "what is kept is whole";
}

// 126 layers in 8 stages of 8 chunks: embedding and loss count as layers, so that 128 divide.
TEST(first_layer_of, ends_count_where_layers_alone_do_not_divide) {
  std::vector<int64_t> sizes;
  for (int64_t chunk = 0; chunk < 64; ++chunk) {
    sizes.push_back(first_layer_of(chunk + 1, 64, 126) - first_layer_of(chunk, 64, 126));
  }
  EXPECT_EQ(first_layer_of(0, 64, 126), 0);
  EXPECT_EQ(sizes.front(), 1);
  EXPECT_EQ(sizes.back(), 1);
  EXPECT_EQ(std::count(sizes.begin(), sizes.end(), 2), 62);
  for (int64_t layer = 0; layer < 126; ++layer) {
    const int64_t chunk = chunk_of_layer(layer, 64, 126);
    EXPECT_LE(first_layer_of(chunk, 64, 126), layer);
    EXPECT_GT(first_layer_of(chunk + 1, 64, 126), layer);
  }
  // In 128 chunks the first and the last have no layer of their own.
  for (int64_t chunk = 0; chunk < 128; ++chunk) {
    const int64_t size = first_layer_of(chunk + 1, 128, 126) - first_layer_of(chunk, 128, 126);
    EXPECT_EQ(size, chunk == 0 || chunk == 127 ? 0 : 1) << chunk;
    if (size > 0) {
      EXPECT_EQ(chunk_of_layer(chunk - 1, 128, 126), chunk);
    }
  }
  EXPECT_EQ(first_layer_of(1, 4, 126), 31) << "32 layers of 128, one of them the embedding";
  EXPECT_EQ(first_layer_of(1, 4, 9), 2) << "neither way divides: chunks differ by a layer";
}

StackFacts transformer_engine() {
  StackFacts facts;
  facts.fp8_scaling = Scaling8::kDelayed;
  facts.fp8_weights = Weights8::kKept;
  facts.fp8_saves_codes = true;
  return facts;
}

struct ModelInFp8 {
  Model model = tiny::model();
  Plan plan = tiny::plan();
};
ModelInFp8 in_fp8() {
  ModelInFp8 in;
  in.plan.sequence_length = 16;
  in.model.max_positions = 16;
  in.model.hidden = 32;
  in.model.head_size = 16;
  in.plan.products = ProductFormat::kFp8;
  in.plan.optimizer.placement = OptimizerPlacement::kGpu;
  return in;
}

TEST(ProductsInFp8, delayed_scales_round_each_value_once) {
  auto [model, plan] = in_fp8();
  const Graph graph = build(model, plan, transformer_engine());
  for (const Op& op : graph.step.ops) {
    const auto* work = std::get_if<GemmWork>(&op.work);
    if (work == nullptr || work->format != ProductFormat::kFp8) continue;
    const bool after_attention = op.label.module == ModuleKind::kAttentionOut;
    switch (op.phase) {
      case Phase::kForward:
        EXPECT_EQ(work->rounding, after_attention ? Rounding::kFirst : Rounding::kNone);
        break;
      case Phase::kBackwardInput:
        // Two bytes read, one written for each layout.
        EXPECT_EQ(rounding_bytes(*work).count, 4 * work->m * work->k);
        break;
      default:
        EXPECT_EQ(work->rounding, after_attention ? Rounding::kNone : Rounding::kTransposed);
    }
  }
  int64_t matrices = 0;
  for (const Module& module : graph.modules) {
    for (const Parameter& parameter : module.parameters) {
      if (module.layer >= 0 && parameter.is_matrix) matrices += parameter.count();
    }
  }
  int64_t kept = 0;
  for (const Tensor& tensor : tiny::used(graph, TensorKind::kCodes)) {
    if (tensor.category == Category::kWeights) kept += tensor.bytes().count;
  }
  EXPECT_EQ(kept, 2 * matrices) << "a byte a value in either layout";
  for (const Tensor& tensor : tiny::used(graph, TensorKind::kOutput)) {
    if (tensor.label.module == ModuleKind::kNorm1) {
      EXPECT_EQ(tensor.dtype, DType::kU8);
    }
  }
}

// The scale of the values themselves takes a pass over what a kernel wrote in 16 bits, and the pass
// that writes the codes reads it again; the codes are kept and serve both products that read them.
TEST(ProductsInFp8, current_scales_round_each_value_once_after_a_pass) {
  auto [model, plan] = in_fp8();
  StackFacts facts = transformer_engine();
  facts.fp8_scaling = Scaling8::kCurrent;
  const Graph graph = build(model, plan, facts);
  int products = 0;
  for (const Op& op : graph.step.ops) {
    const auto* work = std::get_if<GemmWork>(&op.work);
    if (work == nullptr || work->format != ProductFormat::kFp8) continue;
    ++products;
    if (op.phase == Phase::kBackwardWeight) {
      EXPECT_EQ(work->rounding, Rounding::kNone);
      continue;
    }
    EXPECT_EQ(work->rounding, Rounding::kCurrent);
    EXPECT_EQ(rounding_passes(*work), 3);
    EXPECT_EQ(rounding_bytes(*work).count, 6 * work->m * work->k);
    EXPECT_EQ(rounding_bytes(*work, 1).count, 5 * work->m * work->k);
  }
  EXPECT_EQ(products, 12 * model.layers);
  facts.norms_find_largest = true;
  int found_before = 0;
  for (const Op& op : build(model, plan, facts).step.ops) {
    const auto* work = std::get_if<GemmWork>(&op.work);
    found_before += work != nullptr && work->rounding == Rounding::kFirst ? 1 : 0;
  }
  EXPECT_EQ(found_before, 2 * model.layers) << "qkv and fc1 read what a norm wrote";
  facts.norms_find_largest = false;
  plan.products = ProductFormat::kAsStored;
  const Graph stored = build(model, plan, facts);
  const auto moved_by_rows = [](const Graph& one) {
    int64_t moved = 0;
    for (const Op& op : one.step.ops) {
      if (const auto* rows = std::get_if<RowWork>(&op.work)) moved += rows->moved.count;
    }
    return moved;
  };
  EXPECT_EQ(moved_by_rows(graph), moved_by_rows(stored)) << "norms write 16 bits";
  for (const Tensor& tensor : tiny::used(graph, TensorKind::kOutput)) {
    if (tensor.label.module == ModuleKind::kNorm1) {
      EXPECT_EQ(tensor.dtype, DType::kU8);
    }
  }
}

}  // namespace
}  // namespace ballast
