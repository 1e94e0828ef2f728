// The model and the run of a published case: how the words of sources become knobs and facts.
#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "profiles/json_records.h"
#include "profiles/load.h"
#include "profiles/names/words.h"
#include "profiles/published_reader.h"
#include "sim/base/error.h"
#include "sim/spec/model_family.h"

namespace ballast {
namespace {

constexpr WholeRange kRunCount{1, 1 << 30};
constexpr WholeRange kCountOrNone{0, 1 << 30};
constexpr NumberRange kRunShare{0, 1};
constexpr int64_t kBytesPerElement = 4;  // Plan counts buckets in 32-bit values
constexpr std::array<const char*, 7> kDegrees = {
    "data", "tensor", "pipeline", "virtual_pipeline", "sequence", "context", "expert"};
constexpr const char* kArchitectureOfExperts = "llama_moe";

// What the two architectures of the cases have in common with their namesakes (README of the
// published cases): gpt2 has LayerNorm, GELU, learned positions and biases; llama RMSNorm, SwiGLU,
// RoPE and none.
void set_architecture(Model& model) {
  const bool gpt = model_family(model.architecture).gpt2_names;
  model.norm = gpt ? NormKind::kLayerNorm : NormKind::kRmsNorm;
  model.position = gpt ? PositionKind::kLearned : PositionKind::kRope;
  model.activation = gpt ? ActivationKind::kGeluTanh : ActivationKind::kSwiGlu;
  model.layout = gpt ? WeightLayout::kInOut : WeightLayout::kOutIn;
  model.qkv_bias = model.attention_out_bias = model.mlp_bias = gpt;
}

// A gated network of experts in a model that is described by numbers alone.
void read_experts(JsonReader& reader, Model& model) {
  if (!reader.has("experts")) return;
  model.experts = reader.whole("experts", kRunCount);
  model.experts_per_token = reader.whole("experts_per_token", kRunCount);
  model.expert_ffn = reader.has("expert_ffn") ? reader.whole("expert_ffn", kRunCount) : model.ffn;
  if (reader.has("shared_ffn")) {
    const int64_t shared = reader.whole("shared_ffn", kCountOrNone);
    if (shared % model.expert_ffn != 0) {
      reader.fail(
          "shared_ffn",
          fmt::format("{} columns are not of whole experts of {}", shared, model.expert_ffn),
          "give a multiple of expert_ffn");
    }
    model.shared_experts = shared / model.expert_ffn;
  }
  if (reader.has("dense_layers")) {
    model.first_dense_layers = reader.whole("dense_layers", {0, model.layers});
  }
  model.architecture = kArchitectureOfExperts;
}

}  // namespace

void read_model(JsonReader reader, PublishedCase& published) {
  Model& model = published.model;
  model.name = published.id;
  const std::vector<std::string> architectures = {"gpt2", "llama"};
  model.architecture = architectures[reader.choice("architecture", architectures)];
  model.layers = reader.whole("layers", kRunCount);
  model.hidden = reader.whole("hidden", kRunCount);
  model.heads = reader.whole("heads", kRunCount);
  model.kv_heads = reader.has("kv_heads") ? reader.whole("kv_heads", kRunCount) : model.heads;
  model.ffn = reader.has("ffn") ? reader.whole("ffn", kRunCount) : 4 * model.hidden;
  model.vocab = reader.whole("vocab", kRunCount);
  if (reader.has("head_dim")) {
    model.head_size = reader.whole("head_dim", kRunCount);
  } else if (model.hidden % model.heads != 0) {
    reader.fail("heads", fmt::format("{} do not divide a width of {}", model.heads, model.hidden),
                "give a divisor, or head_dim");
  } else {
    model.head_size = model.hidden / model.heads;
  }
  set_architecture(model);
  if (reader.has("position")) {
    const bool turned = reader.choice("position", {"learned", "rope"}) == 1;
    model.position = turned ? PositionKind::kRope : PositionKind::kLearned;
  }
  model.tied_embeddings = reader.has("tied_embeddings")
                              ? reader.boolean("tied_embeddings")
                              : model_family(model.architecture).gpt2_names;
  read_experts(reader, model);
  if (reader.has("attention")) {
    std::vector<std::string> known = names_of<AttentionKernel>(kAttentionKernels);
    known.insert(known.begin(), std::string(to_string(AttentionKind::kEager)));
    const size_t kind = reader.choice("attention", known);
    published.attention = kind == 0 ? AttentionKind::kEager : AttentionKind::kFlash;
    const auto kernel = static_cast<AttentionKernel>(kind - 1);
    // The cases say flash2 of whatever stores no scores (their README), so which kernel that was
    // is the stack's to know; another name is meant.
    if (kind > 0 && kernel != AttentionKernel::kFlash2) published.attention_kernel = kernel;
  }
  reader.finish();
}

namespace {

// Reads `run` into the changes of a plan, key by key.
class RunReader {
 public:
  RunReader(JsonReader reader, PublishedCase& result)
      : reader_(std::move(reader)), result_(result) {}

  void read(const std::string& source) {
    read_degrees();
    read_batch();
    const Json activations = read_activations();
    read_optimizer();
    read_plan_keys();
    read_facts();
    read_group();
    read_tiles();
    read_words();
    const Strategy strategy = load_strategy(reader_.text("strategy"));
    reader_.finish();
    Json plan = to_json(Plan{});
    plan["strategy"] = strategy.name;
    const Json of_strategy = Json::parse(strategy.plan);
    merge_plan(plan, of_strategy, source + ": strategy " + strategy.name);
    merge_plan(plan, changes_, source);
    if (!activations.is_null()) merge_plan(plan, {{"activations", activations}}, source);
    result_.plan = plan_from_json(plan, source);
    result_.strategy_adam = strategy.adam;
    result_.state_may_be_anywhere = !changes_.contains("optimizer") &&
                                    result_.plan.optimizer.placement == OptimizerPlacement::kGpu;
    result_.plan.data = data_;
    const auto is_open = [&](KnobId id) {
      const std::string knob(knob_of(id).path);
      const bool set =
          of_strategy.contains(knob) &&
          std::find(strategy.open.begin(), strategy.open.end(), knob) == strategy.open.end();
      return !changes_.contains(knob) && !set;
    };
    const Plan& plan_of_run = result_.plan;
    result_.open.set(KnobId::kVirtualPipeline,
                     is_open(KnobId::kVirtualPipeline) && plan_of_run.pipeline > 1);
    result_.open.set(KnobId::kTensorSequence,
                     is_open(KnobId::kTensorSequence) && plan_of_run.tensor > 1);
    result_.open.set(KnobId::kZeroStage, is_open(KnobId::kZeroStage));
    result_.open.set(KnobId::kAdam, plan_of_run.optimizer.adam == "best");
    result_.open.set(KnobId::kBucketBytes, !names_bucket(changes_) && !names_bucket(of_strategy));
    if (!changes_.contains("tensor_sequence") && result_.plan.tensor == 1) {
      result_.plan.tensor_sequence = false;
    }
  }

 private:
  static bool names_bucket(const Json& plan) {
    return plan.contains("optimizer") && plan["optimizer"].contains("bucket_bytes");
  }

  void copy(const char* key, const char* to) {
    if (reader_.has(key)) changes_[to] = reader_.raw(key);
  }
  void copy_to_optimizer(const char* key, const char* to) {
    if (reader_.has(key)) changes_["optimizer"][to] = reader_.raw(key);
  }

  void read_degrees() {
    const int64_t devices = reader_.whole("devices", kRunCount);
    changes_["devices"] = devices;
    int64_t others = 1;
    for (const char* key : kDegrees) {
      if (!reader_.has(key)) continue;
      const int64_t degree = reader_.whole(key, kRunCount);
      changes_[key] = degree;
      const std::string name = key;
      const bool counts = name != "data" && name != "virtual_pipeline" && name != "expert";
      if (counts) others *= std::min(degree, int64_t{1} << 20);
    }
    if (changes_.contains("data")) {
      data_ = changes_["data"].get<int64_t>();
    } else if (others > devices || devices % others != 0) {
      reader_.fail("devices", fmt::format("{} do not divide by degrees of {}", devices, others),
                   "make them a multiple");
    } else {
      data_ = devices / others;
    }
    const auto degree = [&](const char* key) { return changes_.value(key, int64_t{1}); };
    read_expert_tensor(degree("expert"), degree("tensor"));
    replicas_ = data_ * degree("sequence") * degree("context");
  }

  // Where experts are whole, ranks that share them are tensor-parallel ones too, and a plan counts
  // the data-parallel ones among these.
  void read_expert_tensor(int64_t expert, int64_t tensor) {
    if (!reader_.has("expert_tensor")) return;
    const int64_t cut = reader_.whole("expert_tensor", kRunCount);
    if (cut != 1 && cut != tensor) {
      reader_.fail("expert_tensor", fmt::format("{} is neither 1 nor tensor", cut),
                   "give one of the two");
    }
    if (cut == tensor) return;
    if (expert % tensor != 0 || expert == tensor) {
      reader_.fail("expert_tensor",
                   fmt::format("1 wants experts over several times the {} tensor-parallel ranks, "
                               "and expert is {}",
                               tensor, expert),
                   "make expert a multiple of tensor above it");
    }
    changes_["expert"] = expert / tensor;
    whole_experts_ = true;
  }

  void read_batch() {
    changes_["sequence_length"] = reader_.whole("sequence_length", kRunCount);
    changes_["global_batch"] = reader_.whole("global_batch", kRunCount);
    copy("micro_batch", "micro_batch");
    // What is called training in fp8 multiplies in it; weights and activations are of 16 bits.
    const std::string dtype = reader_.text("dtype");
    changes_["dtype"] = dtype == "fp8" ? "bf16" : dtype;
    if (dtype == "fp8") changes_["products"] = "fp8";
    copy("zero_stage", "zero_stage");
    copy("megatron_sequence_parallel", "tensor_sequence");
  }

  // The knobs of `activations`, or null where nothing was said about them.
  Json read_activations() {
    const bool named = reader_.has("recompute");
    const std::vector<std::string> words = {
        "none", "selective", "full", "ffn+norm", "norm+mlp-activation", "every-other-product"};
    const bool checkpoints = flag("checkpoint_offload") || offloads("residual");
    const bool asked = flag("activation_offload");
    const double share = reader_.has("activation_offload_ratio")
                             ? reader_.number("activation_offload_ratio", kRunShare)
                             : 1;
    const bool offload = asked && share > 0;
    if (!named && !checkpoints && !asked) return nullptr;
    // Whoever offloads checkpoints has them: everything else is recomputed.
    const auto recompute = named ? static_cast<Recompute>(reader_.choice("recompute", words))
                           : checkpoints ? Recompute::kFull
                                         : Recompute::kNone;
    const ActivationPlan plan = activations_of(recompute, result_.model.activation);
    Json knobs = Json::object();
    for (const ModuleKind kind : saving_kinds()) {
      ActivationFate fate = plan.fate[static_cast<size_t>(kind)];
      const bool leaves = offload || (checkpoints && kind == ModuleKind::kFc2);
      if (leaves && fate == ActivationFate::kKeep) fate = ActivationFate::kOffload;
      knobs[std::string(to_string(kind))] = to_string(fate);
    }
    knobs["scores"] = to_string(plan.scores);
    if (plan.recompute_fc1_part < 1) knobs["recompute_fc1_part"] = plan.recompute_fc1_part;
    if (offload) knobs["offload_part"] = share;
    if (reader_.has("recompute_fraction")) {
      knobs["recompute_share"] = reader_.number("recompute_fraction", kRunShare);
    }
    return knobs;
  }

  bool flag(const char* key) { return reader_.has(key) && reader_.boolean(key); }

  bool offloads(const std::string& what) {
    if (!reader_.has("offload")) return false;
    const std::vector<std::string> known = {"m",         "v",          "master",
                                            "gradients", "parameters", "residual"};
    const Json& list = reader_.raw("offload");
    if (!list.is_array()) reader_.fail("offload", "must be a list", "write it as [\"m\", \"v\"]");
    bool found = false;
    for (const Json& one : list) {
      const std::string word = one.is_string() ? one.get<std::string>() : one.dump();
      if (std::find(known.begin(), known.end(), word) == known.end()) {
        reader_.fail("offload", "holds " + in_quotes(word), suggestion(word, known));
      }
      found = found || word == what;
    }
    return found;
  }

  void read_optimizer() {
    // State that lives in CPU memory and is stepped by the GPU comes and goes by bucket; where an
    // Adam of the CPU is named, it steps there.
    const bool state = offloads("m") || offloads("v") || offloads("master");
    if (state && reader_.has("adam")) {
      changes_["optimizer"] = {{"placement", "cpu"}, {"gpu_buckets", 0}, {"sync", "wait"}};
    } else if (state) {
      result_.offloads_state = true;
      changes_["optimizer"] = {{"placement", "cpu"},
                               {"gpu_buckets", 0},
                               {"stream_share", 1.0},
                               {"cast", "gpu"},
                               {"sync", "wait"}};
    }
    copy_to_optimizer("optimizer_state_dtype", "moments");
    copy_to_optimizer("adam", "adam");
    copy_to_optimizer("cast", "cast");
    copy_to_optimizer("sync", "sync");
    copy_to_optimizer("undo", "undo");
    copy_to_optimizer("placement", "placement");
    copy_to_optimizer("stream_share", "stream_share");
    copy_to_optimizer("bucket_bytes", "bucket_bytes");
    copy_to_optimizer("gpu_buckets", "gpu_buckets");
    if (reader_.has("bucket_elements")) {
      changes_["optimizer"]["bucket_bytes"] =
          kBytesPerElement * reader_.whole("bucket_elements", kRunCount);
    }
    if (reader_.has("offload_ratio")) {
      result_.optimizer_share_on_cpu = reader_.number("offload_ratio", kRunShare);
    }
    if (reader_.has("rollback_rate")) {
      result_.rollback_rate = reader_.number("rollback_rate", kRunShare);
    }
  }

  // Knobs under the names that a plan has for them.
  void read_plan_keys() {
    copy("cuda_graph", "cuda_graphs");
    copy("weights", "weights");
    if (flag("offload_parameters") || offloads("parameters")) {
      changes_["weights"] = {{"flow_share", 1.0}};
    }
    copy("numa", "numa");
    copy("tensor_sequence", "tensor_sequence");
    if (reader_.has("flow_share"))
      changes_["weights"] = {{"flow_share", reader_.raw("flow_share")}};
    if (reader_.has("optimizer")) merge_optimizer(reader_.raw("optimizer"));
    if (reader_.has("activations")) changes_["activations"] = reader_.raw("activations");
  }

  void merge_optimizer(const Json& knobs) {
    if (!knobs.is_object()) reader_.fail("optimizer", "must be an object", "put keys between { }");
    for (const auto& item : knobs.items()) changes_["optimizer"][item.key()] = item.value();
  }

  // What this run's framework does other than its stack says.
  void read_facts() {
    CaseFacts& facts = result_.facts;
    if (flag("fused_loss")) {
      // Pieces of the logits as large as the hidden state (Liger-Kernel,
      // ops/fused_linear_cross_entropy.py: inc_factor = ceil(V / H)).
      facts.loss_chunks = div_ceil(result_.model.vocab, result_.model.hidden);
    }
    if (reader_.has("loss")) {
      // PyTorch's cross_entropy of logits.float(): as it stands its kernels write three copies and
      // move 36 bytes a logit, behind torch.compile 16-bit logits and their gradient alone.
      const bool compiled = reader_.choice("loss", {"eager", "compiled"}) == 1;
      facts.loss = compiled ? LossPrecision::kCompiled : LossPrecision::kTorchF32;
      facts.loss_bytes = compiled ? 8 : 36;
    }
    if (reader_.has("accumulate_fp32")) {
      facts.gradients = reader_.boolean("accumulate_fp32") ? GradientPrecision::kF32
                                                           : GradientPrecision::kAsWeights;
    }
    if (reader_.has("gradient_dtype")) {
      const size_t type = reader_.choice("gradient_dtype", {"bf16", "fp16", "fp32"});
      facts.gradients = type == 2 ? GradientPrecision::kF32 : GradientPrecision::kAsWeights;
      facts.reduction = facts.gradients;
    }
    if (reader_.has("fp8_scaling")) {
      facts.fp8_scaling =
          static_cast<Scaling8>(reader_.choice("fp8_scaling", names_of<Scaling8>(kScalings8)));
    }
    if (reader_.has("tp_comm_overlap")) {
      facts.tensor_overlap =
          reader_.boolean("tp_comm_overlap") ? Overlap::kFull : Overlap::kPartial;
    }
    if (flag("expert_overlap")) facts.expert_overlap = Overlap::kFull;
    if (flag("sends_tokens_once")) facts.sends_tokens_once = true;
    if (whole_experts_) keep_experts_whole(facts);
    result_.packed = flag("packed");
  }

  void keep_experts_whole(CaseFacts& facts) {
    if (changes_.value("tensor_sequence", Json(true)) == false) {
      reader_.fail("expert_tensor", "1 wants tokens split over the tensor-parallel ranks",
                   "set megatron_sequence_parallel to true");
    }
    facts.keeps_experts_whole = true;
  }

  // Ranks that share state: a number of them, or all; of a hybrid scheme those of a node, which
  // the machine knows.
  void read_group() {
    if (reader_.has("hybrid_shard")) {
      const Json& value = reader_.raw("hybrid_shard");
      if (value.is_boolean()) {
        result_.shards_by_node = value.get<bool>();
      } else {
        set_group(reader_.whole("hybrid_shard", kRunCount));
      }
    }
    if (reader_.has("zero_group") && reader_.raw("zero_group") != "all") {
      set_group(reader_.whole("zero_group", kRunCount));
    }
  }

  void set_group(int64_t ranks) {
    if (ranks == 1) {
      changes_["zero_stage"] = 0;
    } else if (ranks < replicas_) {
      changes_["zero_group"] = ranks;
    }
  }

  // Pieces of the feed-forward as DeepSpeed cuts it (docs of ALST: ceil(sequence / hidden)).
  void read_tiles() {
    if (!flag("tiled_mlp")) return;
    changes_["ffn_tiles"] = div_ceil(changes_["sequence_length"].get<int64_t>() * data_,
                                     replicas_ * result_.model.hidden);
  }

  // Keys that say how the run was chosen, or what no prediction depends on.
  void read_words() {
    if (reader_.has("policy")) reader_.text("policy");
    if (reader_.has("clip")) reader_.number("clip", {0, 1e9});
  }

  JsonReader reader_;
  PublishedCase& result_;
  Json changes_ = Json::object();
  int64_t data_ = 1;
  int64_t replicas_ = 1;
  bool whole_experts_ = false;
};

}  // namespace

void read_run(JsonReader reader, PublishedCase& published, const std::string& source) {
  RunReader(std::move(reader), published).read(source);
}

ActivationPlan activations_of(Recompute recompute, ActivationKind activation) {
  ActivationPlan plan;
  const auto redo = [&](ModuleKind kind) {
    plan.fate[static_cast<size_t>(kind)] = ActivationFate::kRecompute;
  };
  if (recompute == Recompute::kFull) {
    for (const ModuleKind kind : saving_kinds()) {
      if (kind != ModuleKind::kFc2) redo(kind);
    }
  }
  const bool every_other = recompute == Recompute::kEveryOtherProduct;
  if (recompute == Recompute::kFfnAndNorms || recompute == Recompute::kNormsAndActivation ||
      every_other) {
    for (const ModuleKind kind :
         {ModuleKind::kNorm1, ModuleKind::kNorm2, ModuleKind::kActivation}) {
      redo(kind);
    }
  }
  if (recompute == Recompute::kFfnAndNorms) redo(ModuleKind::kFc1);
  // Queries, keys, values, output, gate, up, down: the first, third, fifth and seventh stay. The
  // keys', a fraction of one product, count as kept with their neighbours.
  if (every_other) redo(ModuleKind::kAttentionOut);
  if (every_other && activation == ActivationKind::kSwiGlu) {
    redo(ModuleKind::kFc1);
    plan.recompute_fc1_part = 0.5;
  }
  const bool scores = recompute == Recompute::kFull || recompute == Recompute::kSelective;
  plan.scores = scores ? ActivationFate::kRecompute : ActivationFate::kKeep;
  return plan;
}

}  // namespace ballast
