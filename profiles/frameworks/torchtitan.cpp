// torchtitan's TOML: torchtitan/config/job_config.py.
#include <fmt/format.h>
#include <map>

#include "profiles/frameworks/options.h"
#include "sim/spec/stack.h"

namespace ballast {
namespace {

const std::string kTraining = "training.";
const std::string kParallel = "parallelism.";

// Models that torchtitan ships under a flavor's name, by ours.
const std::map<std::string, std::string>& flavors() {
  static const std::map<std::string, std::string> names = {{"llama-3-8b", "8B"},
                                                           {"llama-3.1-8b", "8B"},
                                                           {"llama-3-70b", "70B"},
                                                           {"llama-3.1-405b", "405B"}};
  return names;
}

// The converter of Linear modules to torchao's 8-bit products.
const std::string kConverter = "float8";

// One scale for each factor, e4m3 forward and e5m2 for gradients of outputs, as a plan has it; the
// head as it is stored.
void write_products(OrderedJson& out, const Plan& plan) {
  if (plan.products != ProductFormat::kFp8) return;
  out["model.converters"] = {kConverter};
  out["float8.recipe_name"] = "tensorwise";
  out["float8.filter_fqns"] = {"output"};
}

bool offloads(const Plan& plan) { return plan.optimizer.placement != OptimizerPlacement::kGpu; }

// Ranks that share the sequence always shard the state, and so does enable_cpu_offload.
bool shards(const Plan& plan) {
  return plan.zero_stage > 0 || plan.sequence * plan.context > 1 || offloads(plan);
}

// Of torch.distributed.pipelining.schedules, by chunks: one a stage, or several.
std::string schedule_name(const Plan& plan) {
  const bool several = plan.virtual_pipeline > 1;
  if (plan.pipeline_schedule == PipelineSchedule::kGpipe) return several ? "LoopedBFS" : "GPipe";
  return several ? "Interleaved1F1B" : "1F1B";
}

void read_schedule(OptionReader& reader, Plan& plan) {
  const std::string option = kParallel + "pipeline_parallel_schedule";
  const std::string name = reader.text(option, schedule_name(plan));
  if (name == "GPipe" || name == "LoopedBFS") plan.pipeline_schedule = PipelineSchedule::kGpipe;
  if (name != schedule_name(plan)) {
    reader.ignore(option, "stages run " + schedule_name(plan) + " in the plan");
  }
}

}  // namespace

OrderedJson write_torchtitan(const Plan& plan, const Model& model) {
  OrderedJson out = OrderedJson::object();
  const auto flavor = flavors().find(model.name);
  if (flavor != flavors().end()) {
    out["model.name"] = "llama3";
    out["model.flavor"] = flavor->second;
  }
  write_products(out, plan);
  const bool stages = plan.pipeline > 1;
  out[kTraining + "local_batch_size"] = stages ? plan.global_batch / plan.data : *plan.micro_batch;
  out[kTraining + "global_batch_size"] = plan.global_batch;
  out[kTraining + "seq_len"] = plan.sequence_length;
  out[kTraining + "max_norm"] = 1.0;
  out[kTraining + "mixed_precision_param"] = plan.dtype == DType::kF32 ? "float32" : "bfloat16";
  out[kTraining + "mixed_precision_reduce"] = "float32";
  out[kTraining + "enable_cpu_offload"] = offloads(plan);
  out[kParallel + "data_parallel_replicate_degree"] = shards(plan) ? 1 : plan.data;
  out[kParallel + "data_parallel_shard_degree"] = shards(plan) ? plan.data : 1;
  if (shards(plan)) {
    const bool gathers_again = plan.zero_stage == 3 || offloads(plan);
    out[kParallel + "fsdp_reshard_after_forward"] = gathers_again ? "always" : "never";
  }
  out[kParallel + "tensor_parallel_degree"] = plan.tensor;
  out[kParallel + "pipeline_parallel_degree"] = plan.pipeline;
  if (stages) {
    const int64_t less =
        ends_count_as_layers(plan.pipeline * plan.virtual_pipeline, model.layers) ? 1 : 0;
    out[kParallel + "pipeline_parallel_layers_per_stage"] =
        (model.layers + 2 * less) / (plan.pipeline * plan.virtual_pipeline);
    out[kParallel + "pipeline_parallel_first_stage_less_layers"] = less;
    out[kParallel + "pipeline_parallel_last_stage_less_layers"] = less;
    out[kParallel + "pipeline_parallel_schedule"] = schedule_name(plan);
    out[kParallel + "pipeline_parallel_microbatch_size"] = *plan.micro_batch;
  }
  out[kParallel + "context_parallel_degree"] = plan.context * plan.sequence;
  if (plan.expert > 1) out[kParallel + "expert_parallel_degree"] = plan.expert;
  // What was to leave the GPU would not fit there.
  const bool recomputes = !same_fates(*plan.activations, ActivationPlan{});
  out["activation_checkpoint.mode"] = recomputes ? "full" : "none";
  return out;
}

Plan read_torchtitan(OptionReader& reader, const Model& model, const ImportRequest& request) {
  Plan plan = plan_of_request(request, model, Framework::kTorchtitan);
  const auto degree = [&](const std::string& name) {
    return reader.whole(kParallel + name, kOptionCount, 1);
  };
  plan.tensor = degree("tensor_parallel_degree");
  plan.tensor_sequence = plan.tensor > 1;
  plan.pipeline = degree("pipeline_parallel_degree");
  plan.context = degree("context_parallel_degree");
  plan.expert = degree("expert_parallel_degree");
  set_data_ranks(plan, reader, "parallelism");
  const bool sharded = degree("data_parallel_shard_degree") > 1 || plan.context > 1 ||
                       reader.has(kParallel + "fsdp_reshard_after_forward");
  const bool keeps = reader.text(kParallel + "fsdp_reshard_after_forward", "always") == "never";
  plan.zero_stage = !sharded ? 0 : keeps ? 2 : 3;
  plan.global_batch = reader.whole(kTraining + "global_batch_size", kOptionCount, 1);
  plan.micro_batch = reader.whole(kTraining + "local_batch_size", kOptionCount, 1);
  plan.sequence_length = reader.whole(kTraining + "seq_len", {1, 1 << 30}, plan.sequence_length);
  if (plan.pipeline > 1) {
    plan.micro_batch = degree("pipeline_parallel_microbatch_size");
    const int64_t chunk = degree("pipeline_parallel_layers_per_stage");
    // A stage of its own is what it calls a chunk; the ends of the model count as a layer each
    // where it is not told otherwise (pipeline_module_split of layers and both weights).
    const auto less = [&](const std::string& end) {
      return reader.whole(kParallel + "pipeline_parallel_" + end + "_stage_less_layers",
                          {0, kOptionCount.most}, 1);
    };
    const int64_t counted = model.layers + less("first") + less("last");
    plan.virtual_pipeline = std::max<int64_t>(1, counted / (chunk * plan.pipeline));
    read_schedule(reader, plan);
  }
  const bool wide = reader.text(kTraining + "mixed_precision_param", "bfloat16") == "float32";
  plan.dtype = wide ? DType::kF32 : DType::kBf16;
  if (reader.flag(kTraining + "enable_cpu_offload")) {
    plan.weights.flow_share = 1;
    plan.optimizer.placement = OptimizerPlacement::kCpu;
    plan.optimizer.cast = CastPlacement::kGpu;
    plan.optimizer.adam = std::string(kTorchAdam);
  }
  for (const std::string& converter : reader.list("model.converters")) {
    if (converter == kConverter) plan.products = ProductFormat::kFp8;
  }
  if (reader.text("activation_checkpoint.mode", "none") == "full") {
    plan.activations = all_recomputed();
  }
  return plan;
}

}  // namespace ballast
