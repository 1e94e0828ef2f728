// Megatron-LM's command line: megatron/training/arguments.py, and the guide to fine-grained
// offloading of activations of Megatron Core.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "profiles/frameworks/megatron_chunks.h"
#include "profiles/frameworks/options.h"
#include "profiles/names/words.h"
#include "sim/base/error.h"
#include "sim/spec/stack.h"

namespace ballast {
namespace {

using Fate = ActivationFate;

const std::string kFp8Format = "--fp8-format";

// Elements of a bucket where no flag says so: DistributedDataParallel of Megatron Core.
constexpr int64_t kLeastBucket = 40'000'000;
constexpr int64_t kBucketOfRank = 1'000'000;

// An offloaded module names its input, which is the output of the module before it; that of the
// experts' fc1 are the rows that were sent to them (ActivationPlan::dispatched).
struct OffloadName {
  ModuleKind output;
  std::string_view name;
  bool experts;  // only where every layer has experts
};
constexpr OffloadName kOffloadNames[] = {
    {ModuleKind::kFc2, "attn_norm", false},
    {ModuleKind::kNorm1, "qkv_linear", false},
    {ModuleKind::kQkv, "core_attn", false},
    {ModuleKind::kCoreAttention, "attn_proj", false},
    {ModuleKind::kAttentionOut, "mlp_norm", false},
    {ModuleKind::kFc1, "moe_act", true},
};
constexpr const char* kExpertFc1 = "expert_fc1";
// It is offloaded with what it belongs to (core 0.16, transformer/transformer_config.py).
constexpr std::string_view kAttentionProjection = "attn_proj";
constexpr const char* kLeastTensor = "--min-offloaded-tensor-size";
constexpr int64_t kLeastElements = 1024 * 1024;  // where no flag says so

enum class Experts : uint8_t { kNone, kSome, kAll };

Experts experts_of(const Model& model) {
  int64_t count = 0;
  for (int64_t layer = 0; layer < model.layers; ++layer) count += model.has_experts(layer);
  return count == 0 ? Experts::kNone : count == model.layers ? Experts::kAll : Experts::kSome;
}

// --- Writing --------------------------------------------------------------------------------

void write_experts(OrderedJson& out, const Model& model) {
  if (model.experts == 0) return;
  out["--num-experts"] = model.experts;
  out["--moe-router-topk"] = model.experts_per_token;
  out["--moe-ffn-hidden-size"] = model.expert_ffn;
  if (model.shared_experts > 0) {
    out["--moe-shared-expert-intermediate-size"] = model.shared_ffn();
  }
  if (experts_of(model) == Experts::kSome) {
    // A list in Python: one number a layer.
    std::vector<int> pattern;
    for (int64_t layer = 0; layer < model.layers; ++layer) {
      pattern.push_back(model.has_experts(layer) ? 1 : 0);
    }
    out["--moe-layer-freq"] = fmt::format("[{}]", fmt::join(pattern, ","));
  }
  out["--moe-grouped-gemm"] = true;
  out["--moe-token-dispatcher-type"] = "alltoall";
}

void write_model(OrderedJson& out, const Model& model) {
  out["--num-layers"] = model.layers;
  out["--hidden-size"] = model.hidden;
  out["--ffn-hidden-size"] = model.ffn;
  out["--num-attention-heads"] = model.heads;
  if (model.is_latent()) {
    out["--multi-latent-attention"] = true;
    if (model.query_rank > 0) out["--q-lora-rank"] = model.query_rank;
    out["--kv-lora-rank"] = model.kv_rank;
    out["--qk-head-dim"] = model.head_size - model.rope_size;
    out["--qk-pos-emb-head-dim"] = model.rope_size;
    out["--v-head-dim"] = model.value_size;
  } else {
    out["--kv-channels"] = model.head_size;
    if (model.kv_heads != model.heads) {
      out["--group-query-attention"] = true;
      out["--num-query-groups"] = model.kv_heads;
    }
  }
  const bool rotary = model.position == PositionKind::kRope;
  out["--position-embedding-type"] = rotary ? "rope" : "learned_absolute";
  out["--normalization"] = model.norm == NormKind::kRmsNorm ? "RMSNorm" : "LayerNorm";
  if (model.activation == ActivationKind::kSwiGlu) out["--swiglu"] = true;
  if (!model.mlp_bias) out["--disable-bias-linear"] = true;
  if (!model.mlp_bias && model.qkv_bias) out["--add-qkv-bias"] = true;
  if (model.qk_norm) out["--qk-layernorm"] = true;
  if (!model.tied_embeddings) out["--untie-embeddings-and-output-weights"] = true;
  out["--vocab-size"] = model.vocab;
  write_experts(out, model);
}

void write_degrees(OrderedJson& out, const Plan& plan, const Model& model) {
  out["--tensor-model-parallel-size"] = plan.tensor;
  if (plan.tensor > 1 && plan.tensor_sequence) out["--sequence-parallel"] = true;
  out["--pipeline-model-parallel-size"] = plan.pipeline;
  write_megatron_chunks(out, plan, model);
  const int64_t shared = plan.sequence * plan.context;
  out["--context-parallel-size"] = shared;
  if (plan.sequence > 1 && plan.context > 1) {
    out["--cp-comm-type"] = "a2a+p2p";
    out["--hierarchical-context-parallel-sizes"] = {plan.sequence, plan.context};
  } else if (shared > 1) {
    out["--cp-comm-type"] = plan.sequence > 1 ? "a2a" : "p2p";
  }
  if (plan.expert > 1) out["--expert-model-parallel-size"] = plan.expert;
}

void write_state(OrderedJson& out, const Plan& plan, const Model& model) {
  const OptimizerPlan& optimizer = plan.optimizer;
  const bool offloads = optimizer.placement != OptimizerPlacement::kGpu;
  const bool narrow = optimizer.moments == DType::kBf16;
  const int64_t asked = plan.replicas() == 1 ? 0 : plan.zero_stage;
  const int64_t stage = offloads || narrow ? std::max<int64_t>(1, asked) : asked;
  if (stage > 0) out["--use-distributed-optimizer"] = true;
  if (stage > 1) {
    out["--use-megatron-fsdp"] = true;
    out["--data-parallel-sharding-strategy"] = stage == 3 ? "optim_grads_params" : "optim_grads";
    out["--ckpt-format"] = "fsdp_dtensor";
  }
  if (plan.replicas() > 1) {
    out["--overlap-grad-reduce"] = true;
    if (stage > 0) out["--overlap-param-gather"] = true;
  }
  out["--ddp-bucket-size"] = elements_of_bucket(plan);
  if (offloads || narrow) out["--use-precision-aware-optimizer"] = true;
  if (narrow) {
    out["--exp-avg-dtype"] = "bf16";
    out["--exp-avg-sq-dtype"] = "bf16";
  }
  if (!offloads) return;
  out["--optimizer-cpu-offload"] = true;
  out["--optimizer-offload-fraction"] = offloaded_share(plan, model);
  out["--overlap-cpu-optimizer-d2h-h2d"] = true;
  if (optimizer.adam == kTorchAdam) out["--use-torch-optimizer-for-cpu-offload"] = true;
}

// Layers of which activations are offloaded; the last one never is (ActivationPlan).
int64_t offloaded_layers(const ActivationPlan& plan, const Model& model) {
  const double layers = static_cast<double>(model.layers);
  const auto count = static_cast<int64_t>(std::ceil(plan.offload_share * layers));
  return std::min(count, model.layers - 1);
}

std::vector<std::string> recomputed_modules(const ActivationPlan& plan, const Model& model) {
  const auto redone = [&](ModuleKind kind) { return fate_of(plan, kind) == Fate::kRecompute; };
  const Experts experts = experts_of(model);
  std::vector<std::string> names;
  if (plan.scores == Fate::kRecompute) names.emplace_back("core_attn");
  if (redone(ModuleKind::kNorm1) && redone(ModuleKind::kNorm2)) names.emplace_back("layernorm");
  if (redone(ModuleKind::kFc1) && redone(ModuleKind::kActivation)) {
    if (experts != Experts::kAll) names.emplace_back("mlp");
    if (experts != Experts::kNone) names.emplace_back("moe");
  } else if (redone(ModuleKind::kActivation) && experts == Experts::kAll) {
    names.emplace_back("moe_act");
  }
  return names;
}

void write_activations(OrderedJson& out, const Plan& plan, const Model& model) {
  const ActivationPlan& activations = *plan.activations;
  if (same_fates(activations, all_recomputed())) {
    out["--recompute-granularity"] = "full";
    out["--recompute-method"] = "uniform";
    out["--recompute-num-layers"] = 1;
    return;
  }
  // cpu_offloading of Megatron Core works without stages, and knows no recomputation.
  const bool keeps_scores = activations.scores == Fate::kKeep;
  const bool by_layer = plan.pipeline == 1 && activations.reload == ReloadOrder::kLookAhead;
  if (same_fates(activations, all_offloaded()) && by_layer && keeps_scores) {
    const int64_t count = offloaded_layers(activations, model);
    if (count > 0) out["--cpu-offloading-num-layers"] = count;
    return;
  }
  const std::vector<std::string> recomputed = recomputed_modules(activations, model);
  if (!recomputed.empty()) {
    out["--recompute-granularity"] = "selective";
    out["--recompute-modules"] = recomputed;
  }
  const auto leaves = [&](ModuleKind kind) { return fate_of(activations, kind) == Fate::kOffload; };
  std::vector<std::string> offloaded;
  for (const OffloadName& one : kOffloadNames) {
    const bool there = (!one.experts || experts_of(model) == Experts::kAll) &&
                       (one.name != kAttentionProjection || leaves(ModuleKind::kQkv));
    if (there && leaves(one.output)) offloaded.emplace_back(one.name);
  }
  if (model.experts > 0 && activations.dispatched == Fate::kOffload) {
    offloaded.emplace_back(kExpertFc1);
  }
  if (!offloaded.empty()) {
    out["--fine-grained-activation-offloading"] = true;
    out["--offload-modules"] = offloaded;
    out[kLeastTensor] = activations.offload_least.count / size_of(plan.dtype);
  }
}

// --- Reading --------------------------------------------------------------------------------

// Flags that describe the model must describe the one that was named.
void check_model(OptionReader& reader, const Model& model) {
  OrderedJson shape = OrderedJson::object();
  write_model(shape, model);
  for (const auto& item : shape.items()) {
    const std::string& name = item.key();
    // How the padding of a vocabulary, or how tokens find their experts, is no matter of shape.
    if (!reader.has(name) || name == "--vocab-size" || name == "--moe-layer-freq" ||
        name == "--moe-token-dispatcher-type") {
      continue;
    }
    const bool number = item.value().is_number();
    const int64_t given = number ? reader.whole(name, {0, 1 << 30}, 0) : 0;
    const bool same = number ? given == item.value().get<int64_t>()
                      : item.value().is_string()
                          ? reader.text(name, "") == item.value().get<std::string>()
                          : reader.flag(name);
    if (!same) {
      reader.fail(name,
                  fmt::format("is not {}, which model {} has", in_quotes(item.value().dump()),
                              in_quotes(model.name)),
                  "name the model that the flags describe");
    }
  }
  reader.accept({"--max-position-embeddings", "--make-vocab-size-divisible-by"});
}

// A size that the flags say, else the request's, else 1.
int64_t read_degree(OptionReader& reader, const std::string& name, const std::string& flag,
                    std::optional<int64_t> said) {
  const int64_t size = reader.whole(name, kOptionCount, said.value_or(1));
  check_said_once(reader, name, size, flag, said);
  return size;
}

void read_context(OptionReader& reader, Plan& plan, const ImportRequest& request) {
  const int64_t shared =
      read_degree(reader, "--context-parallel-size", "--context", request.context);
  const size_t kind = reader.choice("--cp-comm-type", {"p2p", "a2a", "allgather", "a2a+p2p"}, 0);
  plan.context = kind == 1 ? 1 : shared;
  plan.sequence = kind == 1 ? shared : 1;
  if (kind == 2) reader.ignore("--cp-comm-type", "a plan's context parallelism is a ring");
  const std::string sizes = "--hierarchical-context-parallel-sizes";
  const std::vector<std::string> levels = reader.list(sizes);
  if (kind != 3) return;
  const OrderedJson first =
      levels.size() == 2 ? OrderedJson::parse(levels[0], nullptr, false) : OrderedJson();
  const int64_t inner = first.is_number_integer() ? first.get<int64_t>() : 0;
  const OrderedJson second =
      levels.size() == 2 ? OrderedJson::parse(levels[1], nullptr, false) : OrderedJson();
  const int64_t outer = second.is_number_integer() ? second.get<int64_t>() : 0;
  if (inner < 1 || inner > shared || outer < 1 || outer > shared || inner * outer != shared) {
    reader.fail(sizes, "a2a+p2p needs two sizes whose product is --context-parallel-size",
                "write them as in --hierarchical-context-parallel-sizes 2 4");
  }
  plan.sequence = inner;
  plan.context = outer;
}

void read_degrees(OptionReader& reader, Plan& plan, const Model& model,
                  const ImportRequest& request) {
  plan.tensor = reader.whole("--tensor-model-parallel-size", kOptionCount, 1);
  plan.pipeline =
      read_degree(reader, "--pipeline-model-parallel-size", "--pipeline", request.pipeline);
  read_megatron_chunks(reader, plan, model);
  read_context(reader, plan, request);
  plan.expert = read_degree(reader, "--expert-model-parallel-size", "--expert", request.expert);
  if (plan.expert > 1 && model.experts == 0) {
    reader.fail("--expert-model-parallel-size", "the model has no experts", "use 1");
  }
  // Megatron-LM itself turns it off where there is one tensor-parallel rank.
  plan.tensor_sequence = reader.flag("--sequence-parallel") && plan.tensor > 1;
  const int64_t of_expert =
      reader.whole("--expert-tensor-parallel-size", kOptionCount, plan.tensor);
  if (of_expert != plan.tensor) {
    reader.ignore("--expert-tensor-parallel-size", "experts are split like the other matrices");
  }
  set_data_ranks(plan, reader, "--tensor-model-parallel-size");
}

void read_micro_batches(OptionReader& reader, Plan& plan, const ImportRequest& request) {
  plan.sequence_length = reader.whole("--seq-length", {1, 1 << 30}, plan.sequence_length);
  check_said_once(reader, "--seq-length", plan.sequence_length, "--sequence-length",
                  request.sequence_length);
  const auto micro = reader.whole_if_present("--micro-batch-size", kOptionCount);
  plan.micro_batch = micro ? micro : plan.micro_batch;
  if (!plan.micro_batch) reader.fail("--micro-batch-size", "is missing", "give it");
  check_said_once(reader, "--micro-batch-size", *plan.micro_batch, "--micro-batch",
                  request.micro_batch);
  const int64_t one_step = *plan.micro_batch * plan.data;  // at most 2^40
  const int64_t asked = plan.global_batch > 0 ? plan.global_batch : one_step;
  plan.global_batch = reader.whole("--global-batch-size", kOptionCount, asked);
  check_said_once(reader, "--global-batch-size", plan.global_batch, "--global-batch",
                  request.global_batch);
  if (plan.global_batch % one_step != 0) {
    reader.fail("--global-batch-size",
                fmt::format("{} does not divide into micro-batches of {} on {} data-parallel ranks",
                            plan.global_batch, *plan.micro_batch, plan.data),
                "correct one of them, or --devices");
  }
}

void read_precision(OptionReader& reader, Plan& plan, std::optional<DType> said) {
  const bool bf16 = reader.flag("--bf16");
  const bool fp16 = reader.flag("--fp16");
  if (bf16 && fp16) reader.fail("--bf16", "--fp16 is given too", "give one of them");
  plan.dtype = bf16 ? DType::kBf16 : fp16 ? DType::kF16 : DType::kF32;
  if (said && *said != plan.dtype) {
    reader.fail(bf16   ? "--bf16"
                : fp16 ? "--fp16"
                       : "--bf16, --fp16",
                fmt::format("the flags train in {}, --dtype says {}", to_string(plan.dtype),
                            to_string(*said)),
                "leave out --dtype, or correct the flags");
  }
}

// Transformer Engine's 8-bit products of layers. A plan has one scale for each factor, taken from
// the values at hand, and gradients of outputs in e5m2: --fp8-format hybrid --fp8-recipe
// tensorwise. Others take as long but for how they find their scales.
void read_products(OptionReader& reader, Plan& plan) {
  reader.accept(
      {"--fp8-margin", "--fp8-interval", "--fp8-amax-history-len", "--fp8-amax-compute-algo"});
  const std::string recipe = "--fp8-recipe";
  const std::vector<std::string> recipes = {"delayed", "tensorwise", "mxfp8", "blockwise",
                                            "custom"};
  const size_t how = reader.choice(recipe, recipes, 0);
  const bool wide_gradients = reader.flag("--no-fp8-wgrad");
  const bool gathers = reader.flag("--fp8-param-gather");
  const bool ends = reader.flag("--first-last-layers-bf16");
  const size_t format = reader.choice(kFp8Format, {"none", "e4m3", "hybrid"}, 0);
  if (format == 0) return;
  plan.products = ProductFormat::kFp8;
  if (format == 1) {
    reader.ignore(kFp8Format,
                  "a plan's gradients of outputs are e5m2 (hybrid), not e4m3, which "
                  "takes as long");
  }
  if (how == 0) {
    reader.ignore(kFp8Format,
                  "its scales come from steps before (--fp8-recipe delayed), a "
                  "plan's from the values at hand (tensorwise), which reads them "
                  "once more");
  } else if (how > 1) {
    reader.ignore(recipe, "a plan has one scale for each factor (tensorwise)");
  }
  if (wide_gradients) {
    reader.ignore("--no-fp8-wgrad", "a plan multiplies in 8 bits forward and backward");
  }
  if (gathers) reader.ignore("--fp8-param-gather", "a plan gathers weights as they are stored");
  if (ends) {
    reader.ignore("--first-last-layers-bf16", "a plan multiplies in 8 bits in every layer");
  }
}

int64_t read_stage(OptionReader& reader) {
  const bool distributed = reader.flag("--use-distributed-optimizer");
  const bool fsdp = reader.flag("--use-megatron-fsdp");
  const bool torch = reader.flag("--use-torch-fsdp2");
  const bool keeps = reader.flag("--torch-fsdp2-no-reshard-after-forward");
  const std::vector<std::string> names = {"no_shard", "optim", "optim_grads", "optim_grads_params"};
  const size_t strategy = reader.choice("--data-parallel-sharding-strategy", names, 0);
  if (torch && (distributed || fsdp)) {
    reader.fail("--use-torch-fsdp2", "does not go with another way of sharding",
                "leave out --use-distributed-optimizer and --use-megatron-fsdp");
  }
  if (strategy > 0 && !fsdp) {
    reader.fail("--data-parallel-sharding-strategy", "is obeyed by --use-megatron-fsdp only",
                "add that flag");
  }
  if (reader.flag("--overlap-param-gather") && !distributed && !fsdp) {
    reader.fail("--overlap-param-gather", "works with a distributed optimizer only",
                "add --use-distributed-optimizer");
  }
  if (torch) return keeps ? 2 : 3;
  return fsdp ? static_cast<int64_t>(strategy) : distributed ? 1 : 0;
}

DType read_moments(OptionReader& reader) {
  const std::vector<std::string> names = {"fp32", "bf16", "fp16", "fp8"};
  const size_t first = reader.choice("--exp-avg-dtype", names, 0);
  const size_t second = reader.choice("--exp-avg-sq-dtype", names, 0);
  if (first == 1 && second == 1) return DType::kBf16;
  const std::string reason = "a plan keeps both moments in fp32 or both in bf16";
  if (first > 0) reader.ignore("--exp-avg-dtype", reason);
  if (second > 0) reader.ignore("--exp-avg-sq-dtype", reason);
  return DType::kF32;
}

void read_optimizer(OptionReader& reader, Plan& plan, const Model& model) {
  plan.zero_stage = read_stage(reader);
  OptimizerPlan& optimizer = plan.optimizer;
  const int64_t usual = std::max(kLeastBucket, kBucketOfRank * plan.data);
  optimizer.bucket_bytes = {kOptionElementBytes *
                            reader.whole("--ddp-bucket-size", kOptionElements, usual)};
  optimizer.moments = read_moments(reader);
  const bool precise = reader.flag("--use-precision-aware-optimizer");
  const double share = reader.number("--optimizer-offload-fraction", {0, 1}, 1);
  const bool torch = reader.flag("--use-torch-optimizer-for-cpu-offload");
  if (!reader.flag("--optimizer-cpu-offload")) return;
  if (!precise) {
    reader.fail("--optimizer-cpu-offload", "needs --use-precision-aware-optimizer", "add it");
  }
  if (plan.zero_stage == 0) {
    reader.fail("--optimizer-cpu-offload", "needs a distributed optimizer",
                "add --use-distributed-optimizer");
  }
  optimizer.placement = OptimizerPlacement::kCpu;
  optimizer.gpu_buckets = gpu_buckets_of(plan, model, share);
  optimizer.cast = CastPlacement::kGpu;
  if (torch) optimizer.adam = std::string(kTorchAdam);
}

void read_recomputed(OptionReader& reader, ActivationPlan& plan) {
  const std::string modules = "--recompute-modules";
  std::vector<std::string> names = reader.list(modules);
  if (names.empty()) names = {"core_attn"};
  for (const std::string& name : names) {
    if (name == "core_attn") {
      plan.scores = Fate::kRecompute;
    } else if (name == "layernorm") {
      set_fate(plan, ModuleKind::kNorm1, Fate::kRecompute);
      set_fate(plan, ModuleKind::kNorm2, Fate::kRecompute);
    } else if (name == "mlp" || name == "moe") {
      set_fate(plan, ModuleKind::kFc1, Fate::kRecompute);
      set_fate(plan, ModuleKind::kActivation, Fate::kRecompute);
    } else if (name == "moe_act") {
      set_fate(plan, ModuleKind::kActivation, Fate::kRecompute);
    } else if (name == "mla_up_proj" || name == "shared_experts") {
      reader.ignore(modules, "a plan does not recompute " + name + " apart");
    } else {
      reader.fail(modules, in_quotes(name) + " is not known",
                  suggestion(name, {"core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp",
                                    "moe", "shared_experts"}));
    }
  }
}

void read_recomputation(OptionReader& reader, ActivationPlan& plan) {
  const size_t how = reader.choice("--recompute-granularity", {"none", "selective", "full"},
                                   reader.flag("--recompute-activations") ? 1 : 0);
  const bool method = reader.has("--recompute-method");
  const bool block = reader.choice("--recompute-method", {"uniform", "block"}, 0) == 1;
  const auto layers = reader.whole_if_present("--recompute-num-layers", kOptionCount);
  if (how == 1 && method) {
    reader.fail("--recompute-method", "does not go with selective recomputation",
                "leave it out, or set --recompute-granularity full");
  }
  if (how != 2) {
    if (how == 1) read_recomputed(reader, plan);
    return;
  }
  const double share = plan.offload_share;
  plan = all_recomputed();
  plan.offload_share = share;
  if (block) reader.ignore("--recompute-method", "a plan recomputes every layer alike");
  if (!block && layers.value_or(1) > 1) {
    reader.ignore("--recompute-num-layers", "a plan starts recomputation from every layer's input");
  }
}

void read_offloading(OptionReader& reader, Plan& plan, const Model& model) {
  ActivationPlan& activations = *plan.activations;
  const std::string layers = "--cpu-offloading-num-layers";
  const int64_t count = reader.whole(layers, {0, 1 << 20}, 0);
  const bool fine = reader.flag("--fine-grained-activation-offloading");
  const std::vector<std::string> names = reader.list("--offload-modules");
  if (count > 0 && (fine || plan.pipeline > 1 || !(activations == ActivationPlan{}))) {
    reader.fail(layers, "goes with neither stages, recomputation nor offloading by module",
                "leave one of them out");
  }
  if (count >= model.layers) {
    reader.fail(layers, fmt::format("the model has {} layers", model.layers), "use fewer");
  }
  if (count > 0) {
    activations = all_offloaded();
    const double all = static_cast<double>(model.layers);
    double share = static_cast<double>(count) / all;
    // Rounded so that as many layers come out again.
    while (std::ceil(share * all) > static_cast<double>(count)) share = std::nextafter(share, 0.0);
    activations.offload_share = count == model.layers - 1 ? 1 : share;
  }
  const int64_t least = reader.whole(kLeastTensor, {0, int64_t{1} << 38}, kLeastElements);
  if (!fine) return;
  activations.reload = ReloadOrder::kByModule;
  activations.offload_least = bytes_of(least, plan.dtype);
  const auto named = [&](std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (named(kAttentionProjection) && !named("core_attn")) {
    reader.fail("--offload-modules", "attn_proj goes with core_attn only", "add core_attn");
  }
  for (const std::string& name : names) {
    if (name == kExpertFc1) {
      if (model.experts == 0) reader.ignore("--offload-modules", "the model has no experts");
      if (model.experts > 0) activations.dispatched = Fate::kOffload;
      continue;
    }
    const auto* found = std::find_if(std::begin(kOffloadNames), std::end(kOffloadNames),
                                     [&](const OffloadName& one) { return one.name == name; });
    if (found == std::end(kOffloadNames)) {
      reader.fail("--offload-modules", in_quotes(name) + " is not known",
                  "use attn_norm, qkv_linear, core_attn, attn_proj, mlp_norm, expert_fc1, moe_act");
    }
    if (fate_of(activations, found->output) == Fate::kRecompute) {
      reader.ignore("--offload-modules", "what " + name + " reads is recomputed");
    } else {
      set_fate(activations, found->output, Fate::kOffload);
    }
  }
}

}  // namespace

OrderedJson write_megatron(const Plan& plan, const Model& model) {
  OrderedJson out = OrderedJson::object();
  write_degrees(out, plan, model);
  out["--micro-batch-size"] = *plan.micro_batch;
  out["--global-batch-size"] = plan.global_batch;
  out["--seq-length"] = plan.sequence_length;
  out["--max-position-embeddings"] = std::max(plan.sequence_length, model.max_positions);
  if (plan.dtype == DType::kBf16) out["--bf16"] = true;
  if (plan.dtype == DType::kF16) out["--fp16"] = true;
  if (plan.products == ProductFormat::kFp8) {
    out[kFp8Format] = "hybrid";
    out["--fp8-recipe"] = "tensorwise";
  }
  write_model(out, model);
  write_state(out, plan, model);
  write_activations(out, plan, model);
  out["--clip-grad"] = 1.0;
  return out;
}

Plan read_megatron(OptionReader& reader, const Model& model, const ImportRequest& request) {
  Plan plan = plan_of_request(request, model, Framework::kMegatron);
  check_model(reader, model);
  read_degrees(reader, plan, model, request);
  read_micro_batches(reader, plan, request);
  read_precision(reader, plan, request.dtype);
  read_products(reader, plan);
  read_optimizer(reader, plan, model);
  read_recomputation(reader, *plan.activations);
  read_offloading(reader, plan, model);
  // Hyperparameters, and what a prediction takes for granted.
  reader.accept({"--clip-grad", "--overlap-grad-reduce", "--ckpt-format", "--main-grads-dtype",
                 "--overlap-cpu-optimizer-d2h-h2d", "--transformer-impl", "--vocab-size",
                 "--moe-layer-freq", "--moe-grouped-gemm", "--moe-token-dispatcher-type"});
  return plan;
}

}  // namespace ballast
