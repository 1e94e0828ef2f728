#include "sim/spec/plan.h"

#include <algorithm>
#include <fmt/format.h>

#include "sim/spec/keys_values.h"
#include "sim/spec/knobs.h"
#include "sim/spec/ranks/ring.h"

namespace ballast {

std::string_view to_string(OptimizerPlacement value) {
  switch (value) {
    case OptimizerPlacement::kGpu:
      return "gpu";
    case OptimizerPlacement::kCpu:
      return "cpu";
    case OptimizerPlacement::kNvme:
      return "nvme";
  }
  return "";
}

std::string_view to_string(CastPlacement value) {
  return value == CastPlacement::kGpu ? "gpu" : "cpu";
}

std::string_view to_string(SyncMode value) {
  switch (value) {
    case SyncMode::kWait:
      return "wait";
    case SyncMode::kDelay:
      return "delay";
    case SyncMode::kSpeculate:
      return "speculate";
  }
  return "";
}

std::string_view to_string(NumaBinding value) {
  return value == NumaBinding::kLocal ? "local" : "remote";
}

std::string_view to_string(GradientFormat value) {
  return value == GradientFormat::kF32 ? "fp32" : "as-weights";
}
std::string_view to_string(MemoryReuse value) {
  return value == MemoryReuse::kAtOnce ? "at-once" : "apart";
}

std::string_view to_string(UndoKind value) {
  return value == UndoKind::kSnapshot ? "snapshot" : "exact";
}

std::string_view to_string(StateTransfers value) {
  return value == StateTransfers::kDirect ? "direct" : "copies";
}

std::string_view to_string(ReloadOrder value) {
  return value == ReloadOrder::kLookAhead ? "look-ahead" : "by-module";
}

std::string_view to_string(SubsequenceSplit value) {
  return value == SubsequenceSplit::kTokens ? "tokens" : "flops";
}

std::string_view to_string(ContextBalance value) {
  switch (value) {
    case ContextBalance::kZigzag:
      return "zigzag";
    case ContextBalance::kNone:
      return "none";
    case ContextBalance::kHelpers:
      return "helpers";
  }
  return "";
}

double causal_area(int64_t end, int64_t window) {
  const auto all = static_cast<double>(end);
  const auto seen = static_cast<double>(window);
  return seen > 0 && seen < all ? seen * (2 * all - seen) : all * all;
}

namespace {

// FLOPs of a layer's forward over the first tokens of a sequence.
class LayerFlops {
 public:
  explicit LayerFlops(const Model& model)
      : widths_(static_cast<double>(model.heads * model.head_size + model.attention_width())),
        window_(model.window_of(0)) {
    for (const ModuleKind kind :
         {ModuleKind::kQkv, ModuleKind::kAttentionOut, ModuleKind::kFc1, ModuleKind::kFc2}) {
      for (const Product& product : products_of(model, kind, 0)) {
        weights_ += static_cast<double>(product.in * product.out * product.active);
      }
    }
  }

  double up_to(int64_t end) const {
    return 2 * weights_ * static_cast<double>(end) + widths_ * causal_area(end, window_);
  }

 private:
  double weights_ = 0;  // a layer has
  double widths_;       // of queries and values
  int64_t window_;
};

// The multiple of a tile of attention at which FLOPs come nearest to `share` of the sequence's.
int64_t cut_at(const LayerFlops& flops, int64_t length, double share) {
  const double wanted = share * flops.up_to(length);
  int64_t least = 0;
  int64_t most = length / kAttentionTile;
  while (most - least > 1) {
    const int64_t middle = (least + most) / 2;
    (flops.up_to(middle * kAttentionTile) <= wanted ? least : most) = middle;
  }
  const double below = wanted - flops.up_to(least * kAttentionTile);
  const double above = flops.up_to(most * kAttentionTile) - wanted;
  return (below <= above ? least : most) * kAttentionTile;
}

}  // namespace

std::vector<Subsequence> subsequences_of(const Plan& plan, const Model& model) {
  const int64_t count = plan.subsequences;
  const bool by_flops = count > 1 && plan.subsequence_split == SubsequenceSplit::kFlops;
  std::optional<LayerFlops> flops;
  if (by_flops) flops.emplace(model);
  std::vector<Subsequence> parts;
  parts.reserve(static_cast<size_t>(count));
  int64_t begin = 0;
  for (int64_t i = 1; i <= count; ++i) {
    int64_t end = plan.sequence_length / count * i;
    if (by_flops && i < count) {
      end =
          cut_at(*flops, plan.sequence_length, static_cast<double>(i) / static_cast<double>(count));
    } else if (i == count) {
      end = plan.sequence_length;
    }
    parts.push_back({begin, end - begin});
    begin = end;
  }
  return parts;
}

SharedParts shared_parts(const Plan& plan, int64_t stage) {
  if (!plan.multiplex) return {0, plan.subsequences};
  return {plan.pipeline - 1 - stage, plan.subsequences - stage};
}

Plan spread_over_stages(Plan plan) {
  plan.sequence *= plan.pipeline;
  plan.pipeline = 1;
  plan.multiplex = false;
  return plan;
}

LossChunk loss_chunk_of(const Plan& plan, int64_t tokens, int64_t chunk) {
  if (chunk < 0 || plan.loss_chunks == 1) return {0, tokens};
  const int64_t begin = tokens * chunk / plan.loss_chunks;
  return {begin, tokens * (chunk + 1) / plan.loss_chunks - begin};
}

bool saves_output(ModuleKind kind) {
  // The router's few scores a token are always kept: fc1 and fc2 choose their experts by them.
  return kind >= ModuleKind::kNorm1 && kind <= ModuleKind::kFc2 && kind != ModuleKind::kRouter;
}

std::optional<KnobRefusal> refusal_of_multiplex(const Plan& plan, const Model& model) {
  const int64_t ranks = plan.sequence * plan.pipeline;
  if (plan.pipeline == 1) return KnobRefusal{"pipeline", "there is one stage", "set pipeline"};
  if (plan.subsequences < plan.pipeline) {
    return KnobRefusal{
        "subsequences",
        fmt::format("{} stages share more than {} parts have", plan.pipeline, plan.subsequences),
        "use at least as many as stages"};
  }
  if (plan.virtual_pipeline > 1) {
    return KnobRefusal{"virtual_pipeline", "a stage has one chunk", "use 1"};
  }
  if (plan.data > 1 || (plan.micro_batch && *plan.micro_batch != plan.global_batch)) {
    return KnobRefusal{plan.data > 1 ? "data" : "micro_batch", "all devices share one micro-batch",
                       "use data 1 and a micro_batch of all sequences"};
  }
  if (plan.context > 1) {
    return KnobRefusal{"context", "stages share parts by heads, not round a ring", "use 1"};
  }
  if (model.heads % (ranks * plan.tensor) != 0) {
    return KnobRefusal{
        "pipeline",
        fmt::format("{} ranks of all stages share {} heads", ranks * plan.tensor, model.heads),
        "use fewer stages or sequence ranks"};
  }
  for (const Subsequence& part : subsequences_of(plan, model)) {
    if (part.length % ranks == 0) continue;
    return KnobRefusal{
        "subsequences",
        fmt::format("{} ranks of all stages do not divide a part of {} tokens", ranks, part.length),
        "use parts that they divide"};
  }
  return std::nullopt;
}

namespace {

[[noreturn]] void refuse(const std::string& knob, const std::string& what,
                         const std::string& remedy) {
  throw Error("plan, " + knob, what, remedy);
}

void require_at_least(const std::string& knob, int64_t value, int64_t least) {
  if (value < least) {
    refuse(knob, fmt::format("it is {}", value), fmt::format("use at least {}", least));
  }
}

void require_choice(const Knob& knob, int64_t value) {
  if (std::find(knob.choices.begin(), knob.choices.end(), value) != knob.choices.end()) return;
  std::string names;
  for (const int64_t choice : knob.choices) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", knob.name_of(choice));
  }
  refuse(std::string(knob.path), fmt::format("it is {}", knob.name_of(value)), "use " + names);
}

// A number or a choice that the table of knobs does not have.
void require_in_domain(const Knob& knob, const Plan& plan) {
  if (knob.type == KnobType::kText) return;
  const KnobValue value = knob.get(plan);
  const std::string path(knob.path);
  if (const int64_t* whole = std::get_if<int64_t>(&value)) {
    if (knob.type == KnobType::kChoice) return require_choice(knob, *whole);
    require_at_least(path, *whole, knob.least);
    if (*whole > knob.most) {
      refuse(path, fmt::format("it is {}", *whole), fmt::format("use at most {}", knob.most));
    }
  } else if (const double* share = std::get_if<double>(&value)) {
    if (*share >= 0.0 && *share <= 1.0) return;
    refuse(path, fmt::format("it is {}", *share), "use a share from 0 to 1");
  } else if (const Fates* fates = std::get_if<Fates>(&value)) {
    for (const ModuleKind kind : saving_kinds()) {
      require_choice(knob, static_cast<int64_t>((*fates)[static_cast<size_t>(kind)]));
    }
  }
}

void require_divides(const std::string& knob, int64_t degree, int64_t count,
                     const std::string& counted) {
  if (count % degree != 0) {
    refuse(knob, fmt::format("{} does not divide the {} {}", degree, count, counted),
           "use a divisor");
  }
}

void check_batch(const Plan& plan) {
  // 0 stands for a default in a file, which is gone by now.
  require_at_least("global_batch", plan.global_batch, 1);
  require_at_least("sequence_length", plan.sequence_length, 1);
  if (plan.global_batch % plan.data != 0) {
    refuse("global_batch",
           fmt::format("{} sequences do not divide over {} data-parallel ranks", plan.global_batch,
                       plan.data),
           "use a multiple of `data`");
  }
  if (plan.micro_batch) {
    const int64_t local = plan.global_batch / plan.data;
    if (local % *plan.micro_batch != 0) {
      refuse("micro_batch",
             fmt::format("{} does not divide the {} sequences of a rank", *plan.micro_batch, local),
             "use a divisor of it");
    }
    if (local / *plan.micro_batch > kMostAccumulation) {
      refuse("micro_batch",
             fmt::format("{} micro-batches of a step on one device", local / *plan.micro_batch),
             fmt::format("use a larger micro_batch, more devices or a smaller global_batch: at "
                         "most {}",
                         kMostAccumulation));
    }
    if (plan.pipeline > 1 && plan.virtual_pipeline > 1) {
      require_divides("pipeline", plan.pipeline, local / *plan.micro_batch,
                      "micro-batches, as interleaving needs");
    }
  }
}

}  // namespace

int64_t parameters_in_buckets(const Plan& plan, const Model& model) {
  const int64_t sharers = plan.zero_stage == 3 ? plan.sharing() : 1;
  return parameter_count(model) / (plan.tensor * sharers);
}

namespace {

// Each bucket is a dozen operations of the graph, which has the buckets of all stages: many small
// ones take minutes to predict, and none is faster than a large one. Of large ones a model may have
// as many as it is large.
void check_buckets(const Plan& plan, const Model& model) {
  constexpr Bytes kLargeBucket{32 << 20};
  constexpr Bytes kSmallestBucket{256 << 10};  // one segment of 65,536 values
  const Bytes bucket = std::max(plan.optimizer.bucket_bytes, kSmallestBucket);
  if (bucket >= kLargeBucket) return;
  const Bytes values = bytes_of(parameters_in_buckets(plan, model), DType::kF32);
  const int64_t count = values.count / bucket.count;
  if (count <= kMostBucketsOfRank) return;
  const Bytes least = std::min(kLargeBucket, Bytes{div_ceil(values.count, kMostBucketsOfRank)});
  refuse("optimizer.bucket_bytes",
         fmt::format("{} buckets of {} bytes on {}", count, bucket.count,
                     plan.pipeline > 1 ? "the stages of a pipeline" : "a rank"),
         fmt::format("use buckets of {} bytes or more", least.count));
}

void check_pipeline(const Plan& plan, const Model& model) {
  const int64_t chunks = plan.pipeline * plan.virtual_pipeline;
  if (chunks > model.layers && !ends_count_as_layers(chunks, model.layers)) {
    refuse(
        plan.virtual_pipeline > 1 ? "virtual_pipeline" : "pipeline",
        fmt::format("{} chunks for {} layers", chunks, model.layers),
        fmt::format("use fewer chunks, or {}: the first has the embedding alone, the last the head",
                    model.layers + 2));
  }
  if (plan.pipeline == 1) {
    if (plan.virtual_pipeline > 1) refuse("virtual_pipeline", "there is one stage", "set pipeline");
    return;
  }
  if (plan.optimizer.placement == OptimizerPlacement::kNvme || plan.optimizer.stream_share > 0) {
    refuse("optimizer.placement", "a pipeline's stages step where their state lives",
           "use gpu or cpu, and stream_share 0");
  }
  if (plan.zero_stage == 3) {
    refuse("zero_stage", "stage 3 gathers weights that a pipeline keeps apart", "use at most 2");
  }
}

void check_degrees(const Plan& plan, const Model& model) {
  // The product of degrees that are no greater than the devices overflows no double.
  const double product = static_cast<double>(plan.data) * static_cast<double>(plan.tensor) *
                         static_cast<double>(plan.pipeline) * static_cast<double>(plan.sequence) *
                         static_cast<double>(plan.context);
  if (product != static_cast<double>(plan.devices)) {
    refuse("data",
           fmt::format("data {} x tensor {} x pipeline {} x sequence {} x context {} is {} "
                       "ranks for {} devices",
                       plan.data, plan.tensor, plan.pipeline, plan.sequence, plan.context, product,
                       plan.devices),
           "make the product equal to devices");
  }
  require_divides("tensor", plan.tensor, model.heads, "attention heads");
  require_divides("tensor", plan.tensor, model.ffn, "feed-forward columns");
  require_divides("sequence", plan.sequence * plan.tensor, model.heads,
                  "attention heads (times tensor)");
  require_divides("sequence", plan.sequence * plan.context, plan.sequence_length,
                  "tokens of a sequence (times context)");
  // Beyond the ranks that see other sequences those that share them have different experts too.
  if (plan.data % plan.expert != 0 && plan.replicas() > plan.data) {
    require_divides("expert", plan.expert, plan.replicas(), "ranks with the same dense weights");
  } else {
    require_divides("expert", plan.expert, plan.data, "data-parallel ranks");
  }
  if (model.experts > 0) {
    require_divides("tensor", plan.tensor, model.expert_ffn, "columns of an expert");
    require_divides("expert", plan.expert, model.experts, "experts");
  } else if (plan.expert > 1) {
    refuse("expert", "the model has no experts", "use 1");
  }
  check_pipeline(plan, model);
  if (plan.zero_group > 0) {
    require_divides("zero_group", plan.zero_group, plan.replicas(), "ranks with the same weights");
    if (plan.zero_group == 1 && plan.zero_stage > 0 && plan.replicas() > 1) {
      refuse("zero_group", "one rank shares nothing", "use zero_stage 0, or more ranks");
    }
  }
}

// Attention of a part reads the keys of all parts before it: more pairs of parts than these, over
// the layers and micro-batches of a step, take minutes to predict.
constexpr int64_t kMostPairsOfParts = int64_t{1} << 22;

void check_subsequences(const Plan& plan, const Model& model) {
  const int64_t parts = plan.subsequences;
  if (parts == 1) return;
  if (parts > plan.sequence_length) {
    refuse("subsequences",
           fmt::format("{} parts of a sequence of {} tokens", parts, plan.sequence_length),
           "use fewer");
  }
  const bool by_tokens = plan.subsequence_split == SubsequenceSplit::kTokens;
  for (int64_t layer = 1; layer < model.layers && !by_tokens; ++layer) {
    if (model.window_of(layer) == model.window_of(0)) continue;
    refuse("subsequence_split", "layers that see windows of several sizes have several FLOPs",
           "use tokens");
  }
  int64_t shortest = plan.sequence_length;
  for (const Subsequence& part : subsequences_of(plan, model)) {
    require_divides("subsequences", plan.sequence * plan.context, part.length,
                    "tokens of a part (ranks that share it)");
    shortest = std::min(shortest, part.length);
  }
  if (shortest < kAttentionTile) {
    refuse("subsequences",
           fmt::format("parts of {} tokens are shorter than a tile of attention, {}", shortest,
                       kAttentionTile),
           by_tokens ? fmt::format("use at most {}",
                                   std::max<int64_t>(1, plan.sequence_length / kAttentionTile))
                     : "use fewer, or subsequence_split tokens");
  }
  if (by_tokens) {
    require_divides("subsequences", parts, plan.sequence_length, "tokens of a sequence");
  }
  if (model.experts > 0) {
    refuse("subsequences", "experts are balanced over whole sequences", "use 1");
  }
  if (model.is_latent()) {
    refuse("subsequences", "latent attention takes whole sequences", "use 1");
  }
  if (plan.ffn_tiles > 1) {
    refuse("ffn_tiles", "the parts of a sequence pass a feed-forward one after another already",
           "use 1, or more subsequences");
  }
  if (plan.loss_chunks > 1) {
    refuse("loss_chunks", "the parts of a sequence have their logits one after another already",
           "use 1, or more subsequences");
  }
  const int64_t pairs = parts * parts * model.layers * (plan.micro_batch ? plan.accumulation() : 1);
  if (pairs > kMostPairsOfParts) {
    refuse("subsequences", fmt::format("{} parts in {} layers", parts, model.layers),
           "use fewer, or fewer micro-batches");
  }
}

// What a plan may have to say, or to leave open, for parts to pass all stages' devices.
void check_multiplex(const Plan& plan, const Model& model) {
  if (!plan.multiplex) return;
  if (const auto refusal = refusal_of_multiplex(plan, model)) {
    refuse(refusal->knob, "with multiplex " + refusal->what, refusal->remedy);
  }
  if (plan.weights.flow_share.value_or(0) > 0) {
    refuse("weights.flow_share", "with multiplex a stage sends its weights from where they stay",
           "use 0, or multiplex false");
  }
  if (plan.optimizer.sync != SyncMode::kWait) {
    refuse("optimizer.sync", "with multiplex stages send weights that are stepped",
           "use wait, or multiplex false");
  }
  if (plan.activations && !keys_values_stay(*plan.activations)) {
    refuse("activations.qkv", "with multiplex keys and values stay, for stages to send them",
           "use keep, or offload with offload_per_mflop");
  }
}

void check_ring(const Plan& plan, const Model& model) {
  if (const auto refusal = refusal_of_ring(plan, model)) {
    refuse(refusal->knob, refusal->what, refusal->remedy);
  }
}

// Tensor cores take 8-bit factors by 16 in every direction (cuBLAS documentation, cublasLtMatmul,
// "To use FP8 kernels").
constexpr int64_t kFp8Multiple = 16;

void check_fp8(const Plan& plan, const Model& model) {
  if (plan.dtype != DType::kBf16) {
    refuse("products", fmt::format("fp8 of a dtype {}", to_string(plan.dtype)),
           "use dtype bf16, or products as-stored");
  }
  const std::pair<const char*, int64_t> widths[] = {
      {"columns of the queries' latents", model.query_rank},
      {"columns of the keys' latents", model.is_latent() ? model.kv_rank + model.rope_size : 0},
      {"columns of the hidden state", model.hidden},
      {"feed-forward columns of a rank", div_ceil(model.ffn, plan.tensor)},
      {"columns of an expert", div_ceil(model.expert_ffn, plan.tensor)},
      {"columns of a rank's query heads", div_ceil(model.heads, plan.tensor) * model.head_size},
      {"columns of a rank's key heads", div_ceil(model.kv_heads, plan.tensor) * model.head_size},
      {"tokens of a rank's sequence", div_ceil(plan.sequence_length, plan.sequence * plan.context)},
      {"tokens of a part of a rank's sequence",
       div_ceil(subsequences_of(plan, model).back().length, plan.sequence * plan.context)}};
  for (const auto& [what, width] : widths) {
    if (width % kFp8Multiple == 0) continue;
    refuse("products", fmt::format("fp8 multiplies by sixteens, and there are {} {}", width, what),
           "use as-stored");
  }
}

void check_kept_codes(const Plan& plan) {
  if (!plan.weights.keep_codes) return;
  if (plan.products != ProductFormat::kFp8) {
    refuse("weights.keep_codes", "products as stored have no codes",
           "use false, or set plan.products=fp8");
  }
  if (plan.pipeline > 1) {
    refuse("weights.keep_codes", "stages of a pipeline make them before each product",
           "use false, or a pipeline of 1");
  }
}

// Every piece has a token, of a micro-batch that is still open as well: it may come to be of one
// sequence.
void check_loss_chunks(const Plan& plan) {
  if (plan.loss_chunks == 1) return;
  Plan smallest = plan;
  smallest.micro_batch = plan.micro_batch.value_or(1);
  const int64_t tokens = smallest.tokens_per_micro_batch();
  if (plan.loss_chunks <= tokens) return;
  refuse("loss_chunks", fmt::format("{} pieces of {} tokens", plan.loss_chunks, tokens),
         fmt::format("use at most {}{}", tokens, plan.micro_batch ? "" : ", or name micro_batch"));
}

bool recomputes_feed_forward(const ActivationPlan& plan) {
  return plan.recompute_share == 1 &&
         plan.fate[static_cast<size_t>(ModuleKind::kFc1)] == ActivationFate::kRecompute &&
         plan.fate[static_cast<size_t>(ModuleKind::kActivation)] == ActivationFate::kRecompute;
}

}  // namespace

void check(const Plan& plan, const Model& model) {
  check(model);
  for (const Knob& knob : knobs()) require_in_domain(knob, plan);
  check_degrees(plan, model);
  check_batch(plan);
  check_subsequences(plan, model);
  check_multiplex(plan, model);
  check_ring(plan, model);
  check_loss_chunks(plan);
  check_buckets(plan, model);
  if (model.position == PositionKind::kLearned && plan.sequence_length > model.max_positions) {
    refuse("sequence_length",
           fmt::format("{} tokens exceed the model's {} learned positions", plan.sequence_length,
                       model.max_positions),
           "use a shorter sequence");
  }
  if (plan.products == ProductFormat::kFp8) check_fp8(plan, model);
  check_kept_codes(plan);
  if (plan.optimizer.placement == OptimizerPlacement::kNvme &&
      plan.optimizer.sync != SyncMode::kWait) {
    refuse("optimizer.sync", "a step whose state passes through from NVMe cannot be undone",
           "use wait");
  }
  if (plan.optimizer.placement != OptimizerPlacement::kGpu && plan.zero_stage == 0 &&
      plan.replicas() > 1) {
    refuse("zero_stage", "ranks that step on their CPUs share the state", "use 1, 2 or 3");
  }
  if (plan.activations) {
    if (plan.activations->fate[static_cast<size_t>(ModuleKind::kFc2)] ==
        ActivationFate::kRecompute) {
      refuse("activations.fc2", "its output is the layer input that recomputation starts from",
             "keep or offload it");
    }
    if (plan.ffn_tiles > 1 && !recomputes_feed_forward(*plan.activations)) {
      refuse("ffn_tiles", "the whole of fc1 or activation is kept for the backward",
             "recompute both, or use 1");
    }
  }
}

}  // namespace ballast
