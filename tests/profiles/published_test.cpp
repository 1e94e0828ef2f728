// Published cases: which plan each key of a run becomes, what stays open, and what is refused.
#include "profiles/published.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "profiles/load.h"
#include "profiles/names/clusters.h"
#include "tests/profiles/support.h"

namespace ballast {
namespace {

using Json = nlohmann::json;
using profile_tests::holds;

// Four devices, four sequences of 128 tokens each.
Json small_case() {
  return Json::parse(R"({
    "id": "one", "machine": "hgx-a100-80gb", "stack": "deepspeed-2024",
    "model": {"architecture": "gpt2", "layers": 4, "hidden": 64, "heads": 4, "kv_heads": 4,
              "ffn": 256, "vocab": 1000},
    "run": {"devices": 4, "sequence_length": 128, "global_batch": 16, "dtype": "bf16",
            "strategy": "zero-2"},
    "measured": {"step_time_s": 2.0}, "read": "text"})");
}

PublishedEntry entry_of(const Json& one) {
  const Json file = {
      {"schema", "ballast.published/1"}, {"title", "t"}, {"source", "s"}, {"cases", {one}}};
  return parse_published(file.dump(), "f.json").entries.at(0);
}

PublishedCase case_of(const Json& one) {
  const PublishedEntry entry = entry_of(one);
  EXPECT_EQ(entry.error, "");
  return entry.published.value();
}

PublishedCase with_run(const std::string& key, const Json& value) {
  Json one = small_case();
  one["run"][key] = value;
  return case_of(one);
}

ActivationFate fate(const PublishedCase& published, ModuleKind kind) {
  return published.plan.activations.value().fate[static_cast<size_t>(kind)];
}

TEST(Published, gpt2_and_llama_get_the_parts_of_their_kind) {
  const Model gpt = case_of(small_case()).model;
  EXPECT_EQ(gpt.norm, NormKind::kLayerNorm);
  EXPECT_EQ(gpt.activation, ActivationKind::kGeluTanh);
  EXPECT_EQ(gpt.position, PositionKind::kLearned);
  EXPECT_TRUE(gpt.qkv_bias && gpt.attention_out_bias && gpt.mlp_bias);
  EXPECT_TRUE(gpt.tied_embeddings);
  EXPECT_EQ(gpt.max_positions, 128) << "as many as the sequence has tokens";
  // 1000*64 + 128*64 + 4 * (12*64*64 + 13*64) + 2*64: Hugging Face's count of such a gpt2.
  EXPECT_EQ(parameter_count(gpt), 64000 + 8192 + 4 * (49152 + 832) + 128);

  Json one = small_case();
  one["model"]["architecture"] = "llama";
  one["model"]["kv_heads"] = 2;
  const Model llama = case_of(one).model;
  EXPECT_EQ(llama.norm, NormKind::kRmsNorm);
  EXPECT_EQ(llama.activation, ActivationKind::kSwiGlu);
  EXPECT_FALSE(llama.qkv_bias || llama.mlp_bias || llama.tied_embeddings);
  // 2 * 1000*64 + 4 * (64*(64+2*32) + 64*64 + 3*64*256 + 2*64) + 64.
  EXPECT_EQ(parameter_count(llama), 128000 + 4 * (8192 + 4096 + 49152 + 128) + 64);
}

TEST(Published, a_model_may_have_other_positions_than_its_kind) {
  Json one = small_case();
  one["model"]["position"] = "rope";
  const Model turned = case_of(one).model;
  EXPECT_EQ(turned.position, PositionKind::kRope);
  EXPECT_EQ(turned.norm, NormKind::kLayerNorm);
  EXPECT_EQ(parameter_count(turned), parameter_count(case_of(small_case()).model) - 128 * 64)
      << "positions that are not learned are no parameters";
  one["model"]["position"] = "sinusoidal";
  EXPECT_TRUE(holds(entry_of(one).error, "position"));
}

TEST(Published, a_model_may_be_a_shipped_one) {
  Json one = small_case();
  one["model"] = "gpt-oss-120b";
  const PublishedCase named = case_of(one);
  EXPECT_EQ(named.model.layers, 36);
  EXPECT_EQ(named.model.experts, 128);
  EXPECT_EQ(named.model.max_positions, named.plan.sequence_length);
  one["model"] = "gpt-oss-121b";
  EXPECT_TRUE(holds(entry_of(one).error, "gpt-oss-120b")) << "the nearest name";
}

// Whole experts over four ranks, of which two are tensor-parallel ones: over two of the data ranks.
TEST(Published, whole_experts_are_shared_by_tensor_ranks_too) {
  Json one = small_case();
  one["model"]["architecture"] = "llama";
  one["model"]["kv_heads"] = 2;
  one["model"]["experts"] = 8;
  one["model"]["experts_per_token"] = 2;
  one["run"].update({{"devices", 4}, {"tensor", 2}, {"expert", 4}, {"expert_tensor", 1}});
  const PublishedCase whole = case_of(one);
  EXPECT_EQ(whole.plan.expert, 2);
  EXPECT_TRUE(whole.facts.keeps_experts_whole.value_or(false));
  one["run"]["expert_tensor"] = 2;
  one["run"]["expert"] = 2;
  EXPECT_FALSE(case_of(one).facts.keeps_experts_whole.has_value());
  one["run"]["expert_tensor"] = 3;
  EXPECT_TRUE(holds(entry_of(one).error, "neither 1 nor tensor"));
  one["run"]["expert_tensor"] = 1;
  EXPECT_TRUE(holds(entry_of(one).error, "make expert a multiple of tensor above it"));
  one["run"]["expert"] = 4;
  one["run"]["megatron_sequence_parallel"] = false;
  EXPECT_TRUE(holds(entry_of(one).error, "set megatron_sequence_parallel to true"));
  one["run"].erase("megatron_sequence_parallel");
  one["run"]["tensor_sequence"] = false;
  EXPECT_TRUE(holds(entry_of(one).error, "set megatron_sequence_parallel to true"));
}

TEST(Published, what_was_not_published_stays_open) {
  const PublishedCase published = case_of(small_case());
  EXPECT_FALSE(published.plan.micro_batch.has_value());
  EXPECT_FALSE(published.plan.activations.has_value());
  EXPECT_EQ(published.plan.data, 4) << "devices over the other degrees";
  EXPECT_FALSE(published.open.has(KnobId::kZeroStage)) << "zero-2 is a stage";
  EXPECT_FALSE(published.open.has(KnobId::kVirtualPipeline)) << "there is one stage";
  Json megatron = small_case();
  megatron["run"]["strategy"] = "megatron";
  megatron["run"]["tensor"] = 2;
  megatron["run"]["pipeline"] = 2;
  const PublishedCase open = case_of(megatron);
  EXPECT_EQ(open.plan.data, 1);
  EXPECT_TRUE(open.open.has(KnobId::kZeroStage) && open.open.has(KnobId::kVirtualPipeline) &&
              open.open.has(KnobId::kTensorSequence));
  megatron["run"]["megatron_sequence_parallel"] = false;
  megatron["run"]["zero_stage"] = 1;
  const PublishedCase closed = case_of(megatron);
  EXPECT_FALSE(closed.open.has(KnobId::kZeroStage) || closed.open.has(KnobId::kTensorSequence));
  EXPECT_FALSE(closed.plan.tensor_sequence);
  EXPECT_EQ(closed.plan.zero_stage, 1);
}

TEST(Published, recompute_says_what_becomes_of_each_module) {
  const PublishedCase none = with_run("recompute", "none");
  EXPECT_EQ(fate(none, ModuleKind::kFc1), ActivationFate::kKeep);
  EXPECT_EQ(none.plan.activations->scores, ActivationFate::kKeep);
  const PublishedCase selective = with_run("recompute", "selective");
  EXPECT_EQ(fate(selective, ModuleKind::kFc1), ActivationFate::kKeep);
  EXPECT_EQ(selective.plan.activations->scores, ActivationFate::kRecompute);
  const PublishedCase full = with_run("recompute", "full");
  EXPECT_EQ(fate(full, ModuleKind::kFc1), ActivationFate::kRecompute);
  EXPECT_EQ(fate(full, ModuleKind::kFc2), ActivationFate::kKeep) << "recompute starts from it";
  const PublishedCase ffn = with_run("recompute", "ffn+norm");
  EXPECT_EQ(fate(ffn, ModuleKind::kNorm2), ActivationFate::kRecompute);
  EXPECT_EQ(fate(ffn, ModuleKind::kQkv), ActivationFate::kKeep);
}

TEST(Published, offloaded_checkpoints_are_layer_inputs) {
  const PublishedCase checkpoints = with_run("checkpoint_offload", true);
  EXPECT_EQ(fate(checkpoints, ModuleKind::kFc2), ActivationFate::kOffload);
  EXPECT_EQ(fate(checkpoints, ModuleKind::kQkv), ActivationFate::kRecompute);
  const PublishedCase all = with_run("activation_offload", true);
  EXPECT_EQ(fate(all, ModuleKind::kQkv), ActivationFate::kOffload);
  EXPECT_FALSE(with_run("activation_offload", false).plan.activations.has_value());
}

TEST(Published, offloaded_state_is_stepped_by_the_gpu) {
  const PublishedCase published = with_run("offload", {"m", "v", "residual"});
  EXPECT_EQ(published.plan.optimizer.placement, OptimizerPlacement::kCpu);
  EXPECT_EQ(published.plan.optimizer.stream_share, 1.0);
  EXPECT_EQ(published.plan.optimizer.gpu_buckets, 0);
  EXPECT_EQ(fate(published, ModuleKind::kFc2), ActivationFate::kOffload);
}

TEST(Published, optimizer_keys_become_knobs) {
  EXPECT_EQ(with_run("optimizer_state_dtype", "bf16").plan.optimizer.moments, DType::kBf16);
  EXPECT_EQ(with_run("adam", "pt-cpu").plan.optimizer.adam, "pt-cpu");
  EXPECT_EQ(with_run("cast", "cpu").plan.optimizer.cast, CastPlacement::kCpu);
  EXPECT_EQ(with_run("sync", "delay").plan.optimizer.sync, SyncMode::kDelay);
  EXPECT_EQ(with_run("gpu_buckets", 3).plan.optimizer.gpu_buckets, 3);
  EXPECT_FALSE(with_run("gpu_buckets", "auto").plan.optimizer.gpu_buckets.has_value());
  // Four bytes an element.
  EXPECT_EQ(with_run("bucket_elements", 1000).plan.optimizer.bucket_bytes.count, 4000);
  EXPECT_EQ(with_run("offload_ratio", 0.25).optimizer_share_on_cpu, 0.25);
  EXPECT_EQ(with_run("rollback_rate", 0.01).rollback_rate, 0.01);
  EXPECT_EQ(with_run("numa", "remote").plan.numa, NumaBinding::kRemote);
  EXPECT_EQ(with_run("weights", "flow").plan.weights.flow_share, 1.0);
  EXPECT_EQ(with_run("optimizer", {{"undo", "exact"}}).plan.optimizer.undo, UndoKind::kExact);
  EXPECT_EQ(with_run("clip", 1.0).plan, case_of(small_case()).plan) << "no prediction needs it";
}

TEST(Published, keys_of_newer_files_become_knobs_and_facts) {
  const PublishedCase fp8 = with_run("dtype", "fp8");
  EXPECT_EQ(fp8.plan.dtype, DType::kBf16);
  EXPECT_EQ(fp8.plan.products, ProductFormat::kFp8);
  EXPECT_EQ(with_run("zero_group", 2).plan.zero_group, 2);
  EXPECT_EQ(with_run("zero_group", "all").plan.zero_group, 0);
  EXPECT_EQ(with_run("zero_group", 4).plan.zero_group, 0) << "all that there are";
  EXPECT_TRUE(with_run("hybrid_shard", true).shards_by_node);
  EXPECT_EQ(with_run("fused_loss", true).facts.loss_chunks, 16) << "1000 columns over 64";
  EXPECT_EQ(with_run("accumulate_fp32", true).facts.gradients, GradientPrecision::kF32);
  EXPECT_EQ(with_run("gradient_dtype", "bf16").facts.reduction, GradientPrecision::kAsWeights);
  EXPECT_EQ(with_run("tp_comm_overlap", true).facts.tensor_overlap, Overlap::kFull);
  EXPECT_TRUE(with_run("cuda_graph", true).plan.cuda_graphs);
  EXPECT_EQ(with_run("offload_parameters", true).plan.weights.flow_share, 1.0);
  EXPECT_TRUE(with_run("packed", true).packed);
  const PublishedCase kwai = with_run("recompute", "norm+mlp-activation");
  EXPECT_EQ(fate(kwai, ModuleKind::kNorm1), ActivationFate::kRecompute);
  EXPECT_EQ(fate(kwai, ModuleKind::kActivation), ActivationFate::kRecompute);
  EXPECT_EQ(fate(kwai, ModuleKind::kFc1), ActivationFate::kKeep);
  Json part = small_case();
  part["run"]["activation_offload"] = true;
  part["run"]["activation_offload_ratio"] = 0.3;
  EXPECT_EQ(case_of(part).plan.activations->offload_part, 0.3);
  Json some = small_case();
  some["run"]["recompute"] = "full";
  some["run"]["recompute_fraction"] = 0.5;
  EXPECT_EQ(case_of(some).plan.activations->recompute_share, 0.5);
  some["run"].erase("recompute_fraction");
  some["run"]["tiled_mlp"] = true;
  EXPECT_EQ(case_of(some).plan.ffn_tiles, 2) << "128 tokens over a width of 64";
}

// torchtitan's "op": of seven products of a gated layer the second, fourth and sixth are made
// again; of six of another one the second, fourth and sixth too, none of them fc1.
TEST(Published, every_other_product_is_half_of_a_gated_fc1) {
  Json one = small_case();
  one["run"]["recompute"] = "every-other-product";
  EXPECT_EQ(fate(case_of(one), ModuleKind::kFc1), ActivationFate::kKeep);
  one["model"]["architecture"] = "llama";
  const PublishedCase gated = case_of(one);
  EXPECT_EQ(fate(gated, ModuleKind::kFc1), ActivationFate::kRecompute);
  EXPECT_EQ(gated.plan.activations->recompute_fc1_part, 0.5);
  EXPECT_EQ(fate(gated, ModuleKind::kAttentionOut), ActivationFate::kRecompute);
  EXPECT_EQ(fate(gated, ModuleKind::kQkv), ActivationFate::kKeep);
  EXPECT_EQ(fate(gated, ModuleKind::kCoreAttention), ActivationFate::kKeep);
}

TEST(Published, a_run_says_whether_its_loss_was_compiled) {
  EXPECT_EQ(with_run("loss", "compiled").facts.loss, LossPrecision::kCompiled);
  EXPECT_EQ(with_run("loss", "eager").facts.loss, LossPrecision::kTorchF32);
  EXPECT_EQ(with_run("loss", "eager").facts.loss_bytes, 36);
  EXPECT_FALSE(with_run("packed", true).facts.loss);
}

// Cases name a machine like the one that their authors' other words describe.
TEST(Published, a_source_says_on_which_cluster_it_ran) {
  EXPECT_EQ(cluster_of("dgx-h100-80gb", "huggingface/nanotron@2411b022"), "hgx-h100-80gb-efa");
  EXPECT_EQ(cluster_of("dgx-h100-80gb", "mosaicml/llm-foundry"), "dgx-h100-80gb");
  EXPECT_EQ(cluster_of("h100-sxm-80gb", "huggingface/nanotron"), "h100-sxm-80gb");
  for (const PublishedEntry& entry : load_published("fpdt-limits").entries) {
    ASSERT_TRUE(entry.published);
    EXPECT_EQ(entry.published->plan.machine, "hgx-a100-80gb-quad");
    EXPECT_EQ(load_machine(entry.published->machine).devices_per_node, 4);
  }
}

TEST(Published, experts_are_described_by_their_sizes) {
  Json one = small_case();
  one["model"].update({{"architecture", "llama"},
                       {"head_dim", 32},
                       {"experts", 4},
                       {"experts_per_token", 2},
                       {"expert_ffn", 32},
                       {"shared_ffn", 64},
                       {"dense_layers", 1}});
  const Model model = case_of(one).model;
  EXPECT_EQ(model.head_size, 32);
  EXPECT_EQ(model.shared_experts, 2);
  EXPECT_FALSE(model.has_experts(0));
  EXPECT_TRUE(model.has_experts(1));
  // A router of 4 columns, 4 experts and 2 shared ones of three matrices of 64 x 32.
  const int64_t dense = 3 * 64 * model.ffn;
  EXPECT_EQ(parameter_count(model) - 3 * (64 * 4 + 6 * 3 * 64 * 32 - dense),
            2 * 1000 * 64 + 64 + 4 * (4 * 64 * 4 * 32 + dense + 2 * 64));
}

TEST(conventions_of, words_of_sources_say_what_counts) {
  using Conventions = std::vector<FlopsConvention>;
  EXPECT_EQ(
      conventions_of("fwd+bwd matmuls incl. logits and full (non-causal) attention, peak 989"),
      (Conventions{{true, false, true, 989}}));
  EXPECT_EQ(conventions_of("causal attention, logits"), (Conventions{{true, true, true, 0}}));
  EXPECT_EQ(conventions_of("6ND"), (Conventions{{false, false, true, 0}}));
  EXPECT_EQ(conventions_of("").front(), FlopsConvention()) << "the whole square";
  EXPECT_EQ(conventions_of("").size(), 2u);
  EXPECT_EQ(conventions_of("the model's own").size(), 6u) << "nothing is known";
}

TEST(Published, bad_case_is_an_entry_that_names_file_case_and_key) {
  struct Change {
    const char* pointer;
    Json value;
    const char* message;
  };
  const Change changes[] = {
      {"/run/micro_bach", 1, "'run.micro_bach'"},
      {"/run/micro_batch", 3, "does not divide"},
      {"/run/dtype", "fp7", "fp7"},
      {"/run/zero_group", 3, "zero_group"},
      {"/run/strategy", "zero-4", "did you mean 'zero-"},
      {"/run/recompute", "some", "'run.recompute': is 'some'"},
      {"/run/offload", {"w"}, "'w'"},
      {"/run/tensor", 3, "multiple"},
      {"/run/data", 3, "make the product equal to devices"},
      {"/model/heads", 5, "do not divide a width"},
      {"/model/architecture", "bert", "'model.architecture'"},
      {"/measured/step_time", 1, "'measured.step_time'"},
      {"/measured/step_time_s", 0, "'measured.step_time_s'"},
      {"/measured/tflops_per_device", 100, "'measured.tflops_counts_recompute': is missing"},
      {"/stak", "x", "key 'stak'"},
      {"/read", "guess", "key 'read'"}};
  for (const Change& change : changes) {
    Json one = small_case();
    one[Json::json_pointer(change.pointer)] = change.value;
    // Nested keys are named by their path in the case.
    const PublishedEntry entry = entry_of(one);
    EXPECT_FALSE(entry.published.has_value()) << change.pointer;
    EXPECT_TRUE(holds(entry.error, change.message)) << change.pointer;
    EXPECT_TRUE(holds(entry.error, "f.json: case 'one'")) << change.pointer;
  }
}

TEST(Published, one_bad_case_does_not_hide_the_next) {
  Json bad = small_case();
  bad["id"] = "bad";
  bad.erase("run");
  const Json file = {{"schema", "ballast.published/1"},
                     {"title", "t"},
                     {"source", "s"},
                     {"cases", {bad, small_case(), small_case(), 7}}};
  const PublishedFile read = parse_published(file.dump(), "f.json");
  ASSERT_EQ(read.entries.size(), 4u);
  EXPECT_TRUE(holds(read.entries[0].error, "'bad'"));
  EXPECT_TRUE(read.entries[1].published.has_value());
  EXPECT_TRUE(holds(read.entries[2].error, "is taken"));
  EXPECT_EQ(read.entries[3].id, "case 4");
}

TEST(Published, file_of_another_schema_is_refused_and_not_among_the_shipped) {
  const std::string hardware = data_folder() + "/published/hardware.json";
  EXPECT_TRUE(holds(profile_tests::error_of([&] { load_published(hardware); }), "schema"));
  const std::vector<std::string> shipped = shipped_published();
  EXPECT_GT(shipped.size(), 10u);
  EXPECT_EQ(std::count(shipped.begin(), shipped.end(), hardware), 0);
}

TEST(Published, every_metric_is_read) {
  Json one = small_case();
  for (int i = 0; i < kMetrics; ++i) {
    const auto metric = static_cast<Metric>(i);
    one["measured"][std::string(metric_name(metric))] =
        metric == Metric::kFits ? Json(true) : Json(1.5);
  }
  one["measured"]["tflops_counts_recompute"] = true;
  const PublishedCase published = case_of(one);
  EXPECT_EQ(published.measured.size(), static_cast<size_t>(kMetrics));
  EXPECT_TRUE(published.tflops_count_recompute);
}

}  // namespace
}  // namespace ballast
