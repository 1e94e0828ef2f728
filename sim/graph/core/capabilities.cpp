#include "sim/graph/core/capabilities.h"

#include <fmt/format.h>

#include "sim/graph/core/edit.h"
#include "sim/spec/knobs.h"

namespace ballast {

namespace {

// How a kind of thing reads in "the host device does not carry out ...", which knob asks for it,
// and what to do without it.
struct Asked {
  std::string_view what;
  std::string_view knob;
  std::string_view remedy;
};

constexpr std::array<Asked, kWorkVariants> kVariantAsked = {
    {{"attention that stores its scores (eager)", "stack", "run the plan as stack ballast"},
     {"matrix products in fp8", "plan.products",
      "train on a GPU of compute capability 8.9 or newer (--device cuda:0), or set "
      "plan.products=as-stored"},
     {"the exact undo of a step", "plan.optimizer.undo", "set plan.optimizer.undo=snapshot"},
     {"optimizer state that is streamed in for its step", "plan.optimizer.stream_share",
      "set plan.optimizer.stream_share=0"},
     {"a rollback of optimizer state that rests elsewhere between steps", "plan.optimizer.sync",
      "set plan.optimizer.sync=wait"},
     {"the exact undo of optimizer state that rests elsewhere between steps", "plan.optimizer.undo",
      "set plan.optimizer.sync=wait"},
     {"the exact undo of moments in 16 bits", "plan.optimizer.undo",
      "set plan.optimizer.undo=snapshot"},
     {"copies of pageable memory", "stack", "run the plan as stack ballast"},
     {"copies tensor by tensor", "stack", "run the plan as stack ballast"},
     {"a step without a 32-bit master", "stack", "run the plan as stack ballast"},
     {"exchanges between ranks", "plan.devices", "set plan.devices=1"},
     {"messages between stages", "plan.pipeline", "set plan.pipeline=1"},
     {"kernels that read and write CPU memory", "plan.optimizer.transfers",
      "set plan.optimizer.transfers=copies"}}};

constexpr std::array<Asked, kModelFeatures> kModelAsked = {
    {{"heads that normalise q and k (qwen3)", "model", "train a model without"},
     {"tokens that are routed to experts", "model", "train a model without"},
     {"latent attention (deepseek_v3)", "model", "train a model without"},
     {"attention sinks (gpt_oss)", "model", "train a model without"},
     {"layers that see a window only", "model.sliding_window",
      "train sequences that it covers, or full attention: --set model.sliding_window=0"},
     {"scaled rotary positions (rope_scaling)", "model", "train a model without"},
     {"a router of sigmoids and groups (deepseek_v3)", "model", "train a model without"},
     {"a clamped SwiGLU (gpt_oss)", "model", "train a model without"},
     {"a loss that balances experts over the stages of a pipeline", "plan.pipeline",
      "set plan.pipeline=1, or --set model.balance_loss=0"},
     {"experts that tensor-parallel ranks split", "plan.tensor",
      "set plan.tensor=1, and plan.devices to match"},
     {"latent attention that tensor-parallel ranks split", "plan.tensor",
      "set plan.tensor=1, and plan.devices to match"},
     {"heads of keys and values that several ranks share", "plan.tensor",
      "set plan.tensor and plan.sequence so that their product divides the heads of keys"},
     {"attention sinks of sequences that ranks share", "plan.sequence",
      "set plan.sequence=1, and plan.devices to match"},
     {"a loss that balances experts over ranks that share sequences", "plan.sequence",
      "set plan.sequence=1 and plan.context=1, or --set model.balance_loss=0"},
     {"latent attention over a ring of ranks", "plan.context",
      "set plan.context=1, and plan.devices to match"}}};

constexpr std::array<Asked, kPlanFeatures> kPlanAsked = {
    {{"several ranks of data parallelism", "plan.data",
      "set plan.data=1, and plan.devices to match"},
     {"several ranks of tensor parallelism", "plan.tensor",
      "set plan.tensor=1, and plan.devices to match"},
     {"several ranks of sequence parallelism (Ulysses)", "plan.sequence",
      "set plan.sequence=1, and plan.devices to match"},
     {"several ranks of context parallelism (ring)", "plan.context",
      "set plan.context=1, and plan.devices to match"},
     {"several ranks of expert parallelism", "plan.expert",
      "set plan.expert=1, and plan.devices to match"},
     {"the stages of a pipeline", "plan.pipeline",
      "set plan.pipeline=1, and plan.devices to match"},
     {"the memory of another chip (numa remote)", "plan.numa", "set plan.numa=local"},
     {"sequences that pass the layers in parts", "plan.subsequences", "set plan.subsequences=1"},
     {"several ranks of data parallelism beside the stages of a pipeline", "plan.data",
      "set plan.data=1 or plan.pipeline=1, and plan.devices to match"},
     {"weights that are split over ranks (ZeRO stage 3)", "plan.zero_stage",
      "set plan.zero_stage=2"},
     {"weights that flow in to ranks that share what is stepped (ZeRO stages 1 and 2)",
      "plan.weights.flow_share", "set plan.weights.flow_share=0"},
     {"weights that flow in to ranks that split them", "plan.weights.flow_share",
      "set plan.weights.flow_share=0"},
     {"shares that several groups of expert ranks have", "plan.zero_group",
      "set plan.zero_group=0"},
     {"optimizer state that is streamed in to ranks that share it", "plan.optimizer.stream_share",
      "set plan.optimizer.stream_share=0"},
     {"parts of sequences that ranks share", "plan.subsequences", "set plan.subsequences=1"},
     {"norms over tokens that tensor-parallel ranks do not divide", "plan.tensor_sequence",
      "set plan.tensor_sequence=false"},
     {"a ring whose ranks attend for one another (helpers)", "plan.context_balance",
      "set plan.context_balance=zigzag"},
     {"a ring of more than two ranks, or beside sequence ranks", "plan.context",
      "set plan.context=2 and plan.sequence=1, and plan.devices to match"},
     {"expert ranks beside ranks that share sequences", "plan.expert",
      "set plan.expert=1, or plan.sequence=1 and plan.context=1 and plan.devices to match"},
     {"matrix products in fp8 of tensor-parallel ranks", "plan.products",
      "set plan.products=as-stored"}}};

// As far as a plan shows it: a window that covers the sequence is none.
bool has_feature(const Model& model, const Plan& plan, ModelFeature feature) {
  switch (feature) {
    case ModelFeature::kQkNorm:
      return model.qk_norm;
    case ModelFeature::kExperts:
      return model.experts > 0;
    case ModelFeature::kLatentAttention:
      return model.is_latent();
    case ModelFeature::kAttentionSinks:
      return model.attention_sinks;
    case ModelFeature::kSlidingWindow:
      return model.sliding_window > 0 && model.full_attention_period != 1 &&
             plan.sequence_length > model.sliding_window;
    case ModelFeature::kScaledRope:
      return model.scaled_rope;
    case ModelFeature::kSigmoidRouter:
      return model.experts > 0 && model.router == RouterKind::kSigmoid;
    case ModelFeature::kClampedSwiGlu:
      return model.activation == ActivationKind::kClampedSwiGlu;
    case ModelFeature::kBalanceOverStages:
      return model.balance_loss > 0 && plan.pipeline > 1;
    case ModelFeature::kTensorExperts:
      return model.experts > 0 && plan.tensor > 1;
    case ModelFeature::kTensorLatents:
      return model.is_latent() && plan.tensor > 1;
    case ModelFeature::kSharedKeyHeads:
      return model.kv_heads % (plan.tensor * plan.sequence) != 0;
    case ModelFeature::kSequenceSinks:
      return model.attention_sinks && plan.sequence > 1;
    case ModelFeature::kSequenceBalance:
      return model.balance_loss > 0 && plan.sequence * plan.context > 1;
    case ModelFeature::kContextLatents:
      return model.is_latent() && plan.context > 1;
  }
  return false;
}

bool has_feature(const Plan& plan, PlanFeature feature) {
  switch (feature) {
    case PlanFeature::kDataRanks:
      return plan.data > 1;
    case PlanFeature::kTensorRanks:
      return plan.tensor > 1;
    case PlanFeature::kSequenceRanks:
      return plan.sequence > 1;
    case PlanFeature::kContextRanks:
      return plan.context > 1;
    case PlanFeature::kExpertRanks:
      return plan.expert > 1;
    case PlanFeature::kPipeline:
      return plan.pipeline > 1;
    case PlanFeature::kRemoteMemory:
      return plan.numa == NumaBinding::kRemote;
    case PlanFeature::kSubsequences:
      return plan.subsequences > 1;
    case PlanFeature::kRanksOfPipelines:
      return plan.data > 1 && plan.pipeline > 1;
    case PlanFeature::kSplitWeights:
      return plan.replicas() > 1 && plan.zero_stage == 3;
    case PlanFeature::kFlowOfShares:
      return plan.replicas() > 1 && (plan.zero_stage == 1 || plan.zero_stage == 2) &&
             plan.weights.flow_share.value_or(0) > 0;
    case PlanFeature::kFlowOfSplitWeights:
      return plan.replicas() > 1 && plan.zero_stage == 3 && plan.weights.flow_share.value_or(0) > 0;
    case PlanFeature::kCopiesOfShares:
      return plan.sharing() < plan.replicas() && plan.zero_stage > 0 && plan.expert > 1;
    case PlanFeature::kStreamsOfShares:
      return plan.replicas() > 1 && plan.zero_stage > 0 && plan.optimizer.stream_share > 0;
    case PlanFeature::kSequenceParts:
      return plan.subsequences > 1 && plan.sequence * plan.context > 1;
    case PlanFeature::kUnevenRows:
      return plan.tensor_sequence && plan.tensor > 1 && plan.micro_batch &&
             plan.tokens_per_micro_batch() / plan.subsequences % plan.tensor != 0;
    case PlanFeature::kHelpedRings:
      return plan.context > 1 && plan.context_balance == ContextBalance::kHelpers;
    case PlanFeature::kLongRings:
      return plan.context > 2 || (plan.context > 1 && plan.sequence > 1);
    case PlanFeature::kExpertsOfSequences:
      return plan.expert > 1 && plan.sequence * plan.context > 1;
    case PlanFeature::kFp8OfTensorRanks:
      return plan.tensor > 1 && plan.products == ProductFormat::kFp8;
  }
  return false;
}

Missing missing(const Capabilities& capabilities, std::string_view what, std::string_view knob,
                std::string_view remedy) {
  return {fmt::format("{}, which {} does not carry out", what, capabilities.in_words()),
          std::string(knob), std::string(remedy)};
}

// Kinds that only one knob brings into a graph.
Asked asked_by(OpKind kind) {
  switch (kind) {
    case OpKind::kIo:
      return {"state on NVMe", "plan.optimizer.placement", "set plan.optimizer.placement=cpu"};
    case OpKind::kCollective:
      return kVariantAsked[static_cast<size_t>(WorkVariant::kSeveralRanks)];
    case OpKind::kBlock:
      return {"a pipeline of so many operations that its turns are folded", "plan.pipeline",
              "set fewer micro-batches, layers or stages"};
    case OpKind::kSnapshot:
    case OpKind::kUndo:
    case OpKind::kCommit:
      return {"speculative steps", "plan.optimizer.sync", "set plan.optimizer.sync=wait"};
    case OpKind::kCast:
      return {"casts on the CPU", "plan.optimizer.cast", "set plan.optimizer.cast=gpu"};
    default:
      return {"", "stack", "run the plan as stack ballast"};
  }
}

// The knob by which a tensor got its type.
Asked typed_by(Role role) {
  switch (role) {
    case Role::kMoment1:
    case Role::kMoment2:
      return {"", "plan.optimizer.moments", "set plan.optimizer.moments=fp32"};
    case Role::kMaster:
      return {"", "stack", "run the plan as stack ballast"};
    default:
      return {"", "plan.dtype", "set plan.dtype=bf16"};
  }
}

const Tensor& tensor_of(const Graph& graph, const Access& access) {
  return graph.tensors[static_cast<size_t>(access.tensor)];
}

bool copies_state(const Op& op, const Graph& graph) {
  for (const Access& access : op.accesses) {
    if (tensor_of(graph, access).kind == TensorKind::kState) return true;
  }
  return false;
}

// Whether the graph has the tensors of all who take part.
bool between_stages(const Op& op, const Graph& graph) {
  for (const Access& access : op.accesses) {
    if (tensor_of(graph, access).device != tensor_of(graph, op.accesses.front()).device)
      return true;
  }
  return false;
}

bool state_rests(const Graph& graph) {
  for (const Bucket& bucket : graph.buckets) {
    if (bucket.rest >= 0) return true;
  }
  return false;
}

std::optional<Missing> first_missing(const Op& op, const Graph& graph,
                                     const Capabilities& capabilities) {
  if (!capabilities.declares(op.kind)) {
    const Asked asked = asked_by(op.kind);
    const std::string what =
        asked.what.empty() ? fmt::format("'{}'", describe(op)) : std::string(asked.what);
    return missing(capabilities, what, asked.knob, asked.remedy);
  }
  const WorkVariants variants = variants_of(op, graph);
  for (int i = 0; i < kWorkVariants; ++i) {
    const auto variant = static_cast<WorkVariant>(i);
    if (!variants.has(variant) || capabilities.declares(op.kind, variant)) continue;
    const Asked& asked = kVariantAsked[static_cast<size_t>(i)];
    return missing(capabilities, asked.what, asked.knob, asked.remedy);
  }
  for (const Access& access : op.accesses) {
    const Tensor& tensor = tensor_of(graph, access);
    if (is_token(tensor) || capabilities.declares(op.kind, access.role, tensor.dtype)) continue;
    const bool takes_role = capabilities.declares(op.kind, access.role);
    const Asked asked =
        takes_role ? typed_by(access.role) : Asked{"", "stack", "run the plan as stack ballast"};
    return missing(capabilities,
                   fmt::format("'{}' with a {} in {}", describe(op), to_string(access.role),
                               to_string(tensor.dtype)),
                   asked.knob, asked.remedy);
  }
  return std::nullopt;
}

}  // namespace

std::string_view to_string(Role role) {
  constexpr std::array<std::string_view, kRoles> kNames = {"tokens",
                                                           "input",
                                                           "weight",
                                                           "residual",
                                                           "statistics",
                                                           "output",
                                                           "output gradient",
                                                           "input gradient",
                                                           "residual gradient",
                                                           "parameter gradient",
                                                           "source",
                                                           "destination",
                                                           "master",
                                                           "first moment",
                                                           "second moment",
                                                           "gradient",
                                                           "undo record",
                                                           "norm partials",
                                                           "decision",
                                                           "scratch",
                                                           "codes",
                                                           "codes of an output gradient",
                                                           "routing",
                                                           "balance of experts",
                                                           "keys and values",
                                                           "gradient of keys and values"};
  return kNames[static_cast<size_t>(role)];
}

Capabilities& Capabilities::carries_out(OpKind kind, std::initializer_list<RoleTypes> takes,
                                        WorkVariants variants) {
  operations_[static_cast<size_t>(kind)] = {};
  operations_[static_cast<size_t>(kind)].declared = true;
  return also(kind, takes, variants);
}

Capabilities& Capabilities::also(OpKind kind, std::initializer_list<RoleTypes> takes,
                                 WorkVariants variants) {
  Operation& operation = operations_[static_cast<size_t>(kind)];
  CHECK(operation.declared);
  operation.variants = operation.variants | variants;
  for (const RoleTypes& some : takes) {
    for (const Role role : some.roles) {
      DTypes& types = operation.types[static_cast<size_t>(role)];
      types = types | some.types;
    }
  }
  return *this;
}

Capabilities& Capabilities::does_without(WorkVariant variant) {
  for (Operation& operation : operations_) {
    operation.variants = operation.variants.without(variant);
  }
  return *this;
}

Capabilities& Capabilities::has(SetOf<ModelFeature> features) {
  model_features_ = model_features_ | features;
  return *this;
}

Capabilities& Capabilities::has(SetOf<PlanFeature> features) {
  plan_features_ = plan_features_ | features;
  return *this;
}

Capabilities& Capabilities::carries_out_everything() {
  takes_what_is_predicted_ = true;
  for (Operation& operation : operations_) {
    operation.declared = true;
    operation.variants = WorkVariants::all(kWorkVariants);
    operation.types.fill(DTypes::all(kDTypes));
  }
  return has(SetOf<ModelFeature>::all(kModelFeatures)).has(SetOf<PlanFeature>::all(kPlanFeatures));
}

Capabilities& Capabilities::knows_adams(bool (*knows)(std::string_view name)) {
  knows_ = knows;
  return *this;
}

std::string Capabilities::in_words() const {
  return described_.empty() ? "the " + device_ + " device" : described_;
}

bool Capabilities::declares(OpKind kind, Role role) const {
  for (int type = 0; type < kDTypes; ++type) {
    if (declares(kind, role, static_cast<DType>(type))) return true;
  }
  return false;
}

bool Capabilities::carry_out(const Op& op, const Graph& graph) const {
  return !first_missing(op, graph, *this);
}

WorkVariants variants_of(const Op& op, const Graph& graph) {
  WorkVariants variants;
  const auto add = [&](bool applies, WorkVariant variant) {
    if (applies) variants = variants | WorkVariants{variant};
  };
  if (const auto* work = std::get_if<AttentionWork>(&op.work)) {
    add(work->kind == AttentionKind::kEager, WorkVariant::kEagerAttention);
  }
  if (const auto* work = std::get_if<GemmWork>(&op.work)) {
    add(work->format == ProductFormat::kFp8, WorkVariant::kFp8Product);
  }
  if (const auto* work = std::get_if<BucketWork>(&op.work)) {
    add(work->exact_undo, WorkVariant::kExactUndo);
    add(crosses_link(*work), WorkVariant::kDirectAccess);
  }
  if (const auto* work = std::get_if<CopyWork>(&op.work)) {
    add(copies_state(op, graph), WorkVariant::kStateStream);
    add(work->host == HostMemory::kPageable, WorkVariant::kPageableCopy);
    add(work->calls > 1, WorkVariant::kCopyInPieces);
  }
  if (const auto* work = std::get_if<CollectiveWork>(&op.work)) {
    const bool between = between_stages(op, graph);
    add(between, WorkVariant::kBetweenStages);
    add(work->ranks > 1 && !between, WorkVariant::kSeveralRanks);
  }
  if (op.kind == OpKind::kCommit) add(state_rests(graph), WorkVariant::kRestingRollback);
  if (op.label.bucket >= 0 && (op.kind == OpKind::kAdam || op.kind == OpKind::kUndo)) {
    const Bucket& bucket = graph.buckets[static_cast<size_t>(op.label.bucket)];
    const Tensor& master = graph.tensors[static_cast<size_t>(bucket.master)];
    const Tensor& moment = graph.tensors[static_cast<size_t>(bucket.moment1)];
    add(master.elements < moment.elements, WorkVariant::kNoMaster);
    const auto* work = std::get_if<BucketWork>(&op.work);
    const bool exact = work != nullptr && work->exact_undo;
    add(exact && bucket.rest >= 0, WorkVariant::kExactRestingUndo);
    add(exact && size_of(moment.dtype) < size_of(DType::kF32), WorkVariant::kExactNarrowUndo);
  }
  return variants;
}

std::optional<Missing> first_missing(const Model& model, const Plan& plan,
                                     const Capabilities& capabilities) {
  for (int i = 0; i < kPlanFeatures; ++i) {
    const auto feature = static_cast<PlanFeature>(i);
    if (!has_feature(plan, feature) || capabilities.declares(feature)) continue;
    const Asked& asked = kPlanAsked[static_cast<size_t>(i)];
    return missing(capabilities, asked.what, asked.knob, asked.remedy);
  }
  for (const Knob& knob : knobs()) {
    if (knob.only_predicted.empty() || capabilities.takes_what_is_predicted()) continue;
    if (!knob.matters_to(plan)) continue;
    const KnobValue value = knob.get(plan);
    const bool is_open = std::holds_alternative<std::monostate>(value);
    if (is_open || value == default_of(knob)) continue;
    const std::string path = "plan." + std::string(knob.path);
    return missing(capabilities, knob.only_predicted, path,
                   fmt::format("set {}={}", path, text_of(knob, default_of(knob))));
  }
  for (int i = 0; i < kModelFeatures; ++i) {
    const auto feature = static_cast<ModelFeature>(i);
    if (!has_feature(model, plan, feature) || capabilities.declares(feature)) continue;
    const Asked& asked = kModelAsked[static_cast<size_t>(i)];
    return missing(capabilities, fmt::format("{} has {}", model.name, asked.what), asked.knob,
                   asked.remedy);
  }
  if (!capabilities.knows_adam(plan.optimizer.adam)) {
    return missing(capabilities, fmt::format("an Adam named '{}'", plan.optimizer.adam),
                   "plan.optimizer.adam", "set plan.optimizer.adam=best");
  }
  return std::nullopt;
}

std::optional<Missing> first_missing(const Graph& graph, const Model& model, const Plan& plan,
                                     const Capabilities& capabilities) {
  if (auto found = first_missing(model, plan, capabilities)) return found;
  for (const Program* program : {&graph.step, &graph.repair}) {
    for (const Op& op : program->ops) {
      if (auto found = first_missing(op, graph, capabilities)) return found;
    }
  }
  return std::nullopt;
}

}  // namespace ballast
