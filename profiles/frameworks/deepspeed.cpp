// DeepSpeed's JSON. The names and what they do are those of deepspeed/runtime: config.py,
// zero/config.py, zero/offload_config.py, superoffload/superoffload_stage3.py.
#include <cmath>
#include <fmt/format.h>

#include "profiles/frameworks/options.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

// Defaults of deepspeed/runtime/zero/config.py, in elements.
constexpr int64_t kReduceBucket = 500'000'000;
constexpr int64_t kSubGroup = 1'000'000'000;
constexpr int64_t kPrefetchBucket = 50'000'000;
// What Hugging Face's Trainer fills in for "auto" (transformers/integrations/deepspeed.py).
constexpr int64_t kTrainerAccumulation = 1;
constexpr double kTrainerPrefetch = 0.9;  // of hidden x hidden elements
// Modules of a layer that the GPU visits: what a look-ahead of operations counts, on average.
constexpr int64_t kOpsOfLayer = 8;

const std::string kZero = "zero_optimization.";
const std::string kOptimizer = "zero_optimization.offload_optimizer.";
const std::string kWeights = "zero_optimization.offload_param.";

// Weights that `look_ahead` operations need, on average.
int64_t prefetch_elements(int64_t look_ahead, const Model& model) {
  const double layer =
      static_cast<double>(parameter_count(model)) / static_cast<double>(model.layers);
  return std::llround(layer * static_cast<double>(look_ahead) / kOpsOfLayer);
}

int64_t look_ahead_of(int64_t elements, const Model& model) {
  const double one =
      static_cast<double>(parameter_count(model)) / static_cast<double>(model.layers) / kOpsOfLayer;
  constexpr double kMost = 1 << 20;
  return std::llround(std::min(kMost, static_cast<double>(elements) / one));
}

bool speculates_on_cpu(const Plan& plan) {
  return plan.optimizer.placement == OptimizerPlacement::kCpu &&
         plan.optimizer.sync == SyncMode::kSpeculate;
}

// The stage that runs what the plan asks for: super_offload is stage 3's, and so is the offloading
// of weights; the CPU's optimizer steps a shard, of stage 1 at least.
int64_t stage_of(const Plan& plan) {
  if (speculates_on_cpu(plan)) return 3;
  const bool flows = plan.weights.flow_share.value_or(0) >= 0.5;
  if (flows && plan.replicas() == 1) return 3;
  const bool on_gpu = plan.optimizer.placement == OptimizerPlacement::kGpu;
  return on_gpu ? plan.zero_stage : std::max<int64_t>(1, plan.zero_stage);
}

void write_optimizer(OrderedJson& out, const Plan& plan, const Model& model) {
  const OptimizerPlan& optimizer = plan.optimizer;
  if (optimizer.placement == OptimizerPlacement::kGpu) return;
  const bool nvme = optimizer.placement == OptimizerPlacement::kNvme;
  out[kOptimizer + "device"] = nvme ? "nvme" : "cpu";
  out[kOptimizer + "pin_memory"] = true;
  if (nvme) {
    out[kOptimizer + "nvme_path"] = "/local_nvme";
    out[kOptimizer + "pipeline_read"] = true;
    out[kOptimizer + "pipeline_write"] = true;
  }
  if (stage_of(plan) == 3 && !nvme && optimizer.gpu_buckets.value_or(0) > 0) {
    Plan sharded = plan;
    sharded.zero_stage = 3;
    out[kOptimizer + "ratio"] = offloaded_share(sharded, model);
  }
  if (speculates_on_cpu(plan)) {
    out[kOptimizer + "super_offload"] = true;
    out[kOptimizer + "cpuadam_cores_perc"] = 0.9;
  } else {
    out[kOptimizer + "convert_grad_on_cpu"] = optimizer.cast == CastPlacement::kCpu;
  }
}

void write_zero(OrderedJson& out, const Plan& plan, const Model& model) {
  const int64_t stage = stage_of(plan);
  out[kZero + "stage"] = stage;
  if (stage > 0) out[kZero + "overlap_comm"] = true;
  const int64_t elements = elements_of_bucket(plan);
  out[kZero + "reduce_bucket_size"] = elements;
  const bool flows = plan.weights.flow_share.value_or(0) >= 0.5;
  if (stage == 1 || stage == 2) out[kZero + "allgather_bucket_size"] = elements;
  if (stage == 3) {
    out[kZero + "sub_group_size"] = elements;
    if (flows) {
      out[kZero + "stage3_prefetch_bucket_size"] =
          prefetch_elements(plan.weights.look_ahead, model);
      out[kWeights + "device"] = "cpu";
      out[kWeights + "pin_memory"] = true;
    }
  }
  write_optimizer(out, plan, model);
}

// Whole layers, with their inputs in CPU memory or not. What asks for less recomputation than that
// gets all of it: what was to leave the GPU would not fit there.
void write_activations(OrderedJson& out, const ActivationPlan& activations, const Model& model) {
  if (same_fates(activations, ActivationPlan{})) return;
  const bool offloads = fate_of(activations, ModuleKind::kFc2) == ActivationFate::kOffload;
  const std::string section = "activation_checkpointing.";
  out[section + "partition_activations"] = false;
  out[section + "cpu_checkpointing"] = offloads;
  out[section + "number_checkpoints"] = model.layers;
}

void write_adam(OrderedJson& out, const Plan& plan) {
  const std::string& adam = plan.optimizer.adam;
  if (plan.optimizer.placement == OptimizerPlacement::kGpu) return;
  if (adam != "pt-cpu" && adam != "cpu-adam") return;
  out["optimizer.type"] = "AdamW";
  out["optimizer.params.torch_adam"] = adam == "pt-cpu";
  if (adam == "pt-cpu") out["zero_force_ds_cpu_optimizer"] = false;
}

// --- Reading --------------------------------------------------------------------------------

// A size that the file says, or else the flag. "auto" is the flag's to say.
std::optional<int64_t> read_size(OptionReader& reader, const std::string& name,
                                 const std::string& flag, std::optional<int64_t> said) {
  if (reader.is_auto(name)) return said;
  const auto size = reader.whole_if_present(name, kOptionCount);
  if (size) check_said_once(reader, name, *size, flag, said);
  return size ? size : said;
}

// train_batch_size = micro-batch x accumulation x ranks with other data; any two give the third.
void read_batch(OptionReader& reader, Plan& plan, const ImportRequest& request) {
  auto total = read_size(reader, "train_batch_size", "--global-batch", request.global_batch);
  const auto micro =
      read_size(reader, "train_micro_batch_size_per_gpu", "--micro-batch", request.micro_batch);
  auto steps = read_size(reader, "gradient_accumulation_steps", "", std::nullopt);
  if (!steps && total.has_value() != micro.has_value() &&
      reader.is_auto("gradient_accumulation_steps")) {
    steps = kTrainerAccumulation;
    reader.assume("gradient_accumulation_steps", "1",
                  "the Trainer's --gradient_accumulation_steps decides, whose default it is; give "
                  "both --global-batch and --micro-batch for another");
  }
  // Each factor is at most 2^20.
  if (total && micro && steps) {
    if (*micro * *steps * plan.data != *total) {
      reader.fail("train_batch_size",
                  fmt::format("{} is not micro-batch {} x accumulation {} x {} data-parallel ranks",
                              *total, *micro, *steps, plan.data),
                  "correct one of them, or --devices");
    }
  } else if (micro && !total) {
    total = *micro * steps.value_or(1) * plan.data;
  } else if (!total) {
    reader.fail("train_batch_size",
                "neither it nor train_micro_batch_size_per_gpu is given as a number",
                "give --global-batch and --micro-batch");
  }
  const int64_t pieces = micro ? *micro : steps.value_or(1);
  if (*total > kOptionCount.most || *total % (pieces * plan.data) != 0) {
    reader.fail("train_batch_size",
                fmt::format("{} sequences do not divide into {} x {} data-parallel ranks", *total,
                            pieces, plan.data),
                "correct the batch sizes, or --devices");
  }
  plan.global_batch = *total;
  plan.micro_batch = micro ? *micro : *total / (pieces * plan.data);
}

void read_dtype(OptionReader& reader, Plan& plan, std::optional<DType> said) {
  const bool open_bf16 = reader.is_auto("bf16.enabled");
  const bool open_fp16 = reader.is_auto("fp16.enabled");
  const bool bf16 = !open_bf16 && reader.flag("bf16.enabled");
  const bool fp16 = !open_fp16 && reader.flag("fp16.enabled");
  if (bf16 && fp16) {
    reader.fail("bf16.enabled", "fp16 is enabled too", "enable one of them");
  }
  const std::string open = open_bf16 ? "bf16.enabled" : "fp16.enabled";
  if (bf16 || fp16 || !(open_bf16 || open_fp16)) {
    plan.dtype = bf16 ? DType::kBf16 : fp16 ? DType::kF16 : DType::kF32;
    if (said && *said != plan.dtype) {
      reader.fail(bf16 ? "bf16.enabled" : "fp16.enabled",
                  fmt::format("the configuration trains in {}, --dtype says {}",
                              to_string(plan.dtype), to_string(*said)),
                  "leave out --dtype, or correct the option");
    }
    return;
  }
  plan.dtype = said.value_or(open_bf16 ? DType::kBf16 : DType::kF16);
  if (said) return;
  reader.assume(open, "true",
                fmt::format("the Trainer's --bf16 and --fp16 decide; give --dtype, here or to "
                            "predict, for another than {}",
                            to_string(plan.dtype)));
}

// Elements of a bucket; `filled` is what the Trainer writes for "auto".
int64_t read_elements(OptionReader& reader, const std::string& name, int64_t otherwise,
                      double filled) {
  constexpr WholeRange kRange{0, kOptionElements.most};
  if (!reader.is_auto(name)) return reader.whole(name, kRange, otherwise);
  const auto elements = static_cast<int64_t>(filled);
  reader.assume(name, std::to_string(elements),
                "the Trainer takes it from the width of the hidden state");
  return elements;
}

void read_buckets(OptionReader& reader, Plan& plan, const Model& model) {
  const double square = static_cast<double>(model.hidden) * static_cast<double>(model.hidden);
  const std::string reduce = kZero + "reduce_bucket_size";
  const std::string step = kZero + "sub_group_size";
  const int64_t reduced = read_elements(reader, reduce, kReduceBucket, square);
  int64_t stepped = reader.whole(step, {0, kOptionElements.most}, kSubGroup);
  const bool by_sub_group =
      plan.zero_stage == 3 && plan.optimizer.placement != OptimizerPlacement::kGpu;
  if (by_sub_group && stepped == 0) {
    stepped = static_cast<int64_t>(square);
    reader.assume(step, std::to_string(stepped),
                  "0 steps every parameter tensor by itself, a plan buckets of one size");
  }
  if (!by_sub_group && reduced == 0) {
    reader.fail(reduce, "0 elements are no bucket", "write a whole number from 1");
  }
  plan.optimizer.bucket_bytes = {kOptionElementBytes * (by_sub_group ? stepped : reduced)};
}

OptimizerPlacement read_placement(OptionReader& reader) {
  const std::vector<std::string> devices = {"none", "cpu", "nvme"};
  switch (reader.choice(kOptimizer + "device", devices, 0)) {
    case 1:
      return OptimizerPlacement::kCpu;
    case 2:
      return OptimizerPlacement::kNvme;
    default:
      return OptimizerPlacement::kGpu;
  }
}

void read_steps(OptionReader& reader, Plan& plan, const Model& model) {
  OptimizerPlan& optimizer = plan.optimizer;
  const bool on_cpu = optimizer.placement == OptimizerPlacement::kCpu;
  const bool super = reader.flag(kOptimizer + "super_offload");
  if (super && (plan.zero_stage != 3 || !on_cpu)) {
    reader.fail(kOptimizer + "super_offload", "works with stage 3 and device cpu only",
                "set zero_optimization.stage to 3 and offload_optimizer.device to cpu");
  }
  if (optimizer.placement != OptimizerPlacement::kGpu && plan.zero_stage == 0) {
    reader.fail(kOptimizer + "device", "the optimizer is offloaded by stages 1, 2 and 3",
                "set zero_optimization.stage");
  }
  const bool converts = reader.flag(kOptimizer + "convert_grad_on_cpu", true);
  optimizer.cast = super || !converts ? CastPlacement::kGpu : CastPlacement::kCpu;
  // With a norm to clip by, its super_offload waits for it; whether one is set is the trainer's.
  optimizer.sync = super ? SyncMode::kSpeculate : SyncMode::kWait;
  optimizer.undo = UndoKind::kExact;
  const double ratio = reader.number(kOptimizer + "ratio", {0, 1}, 1);
  if (on_cpu && plan.zero_stage == 3) optimizer.gpu_buckets = gpu_buckets_of(plan, model, ratio);
  if (ratio < 1 && !(on_cpu && plan.zero_stage == 3)) {
    reader.ignore(kOptimizer + "ratio", "only stage 3 with device cpu obeys it");
  }
  if (!reader.is_auto("optimizer.params.torch_adam") && reader.has("optimizer.params.torch_adam")) {
    optimizer.adam = reader.flag("optimizer.params.torch_adam") ? "pt-cpu" : "cpu-adam";
  }
}

void read_weights(OptionReader& reader, Plan& plan, const Model& model) {
  const size_t device = reader.choice(kWeights + "device", {"none", "cpu", "nvme"}, 0);
  if (device > 0 && plan.zero_stage != 3) {
    reader.fail(kWeights + "device", "weights are offloaded by stage 3 only",
                "set zero_optimization.stage to 3");
  }
  if (device == 2) {
    reader.ignore(kWeights + "device", "a plan's weights flow from CPU memory, not from NVMe");
  }
  plan.weights.flow_share = device > 0 ? 1 : 0;
  const double square = static_cast<double>(model.hidden) * static_cast<double>(model.hidden);
  const int64_t ahead = read_elements(reader, kZero + "stage3_prefetch_bucket_size",
                                      kPrefetchBucket, kTrainerPrefetch * square);
  if (device > 0) plan.weights.look_ahead = look_ahead_of(ahead, model);
}

void read_activations(OptionReader& reader, Plan& plan) {
  const std::string section = "activation_checkpointing.";
  const bool on_cpu = reader.flag(section + "cpu_checkpointing");
  const bool split = reader.flag(section + "partition_activations");
  const int64_t count = reader.whole(section + "number_checkpoints", {0, 1 << 20}, 0);
  if (!on_cpu && !split && count == 0) return;
  plan.activations = all_recomputed();
  if (on_cpu) set_fate(*plan.activations, ModuleKind::kFc2, ActivationFate::kOffload);
  if (split) reader.ignore(section + "partition_activations", "a plan has no such knob");
}

}  // namespace

OrderedJson write_deepspeed(const Plan& plan, const Model& model) {
  OrderedJson out = OrderedJson::object();
  out["train_batch_size"] = plan.global_batch;
  out["train_micro_batch_size_per_gpu"] = *plan.micro_batch;
  out["gradient_accumulation_steps"] = plan.accumulation();
  if (plan.dtype == DType::kBf16) out["bf16.enabled"] = true;
  if (plan.dtype == DType::kF16) out["fp16.enabled"] = true;
  // superoffload_stage3.py steps during the backward only where no norm is clipped by.
  out["gradient_clipping"] = speculates_on_cpu(plan) ? 0.0 : 1.0;
  if (plan.sequence > 1) out["sequence_parallel_size"] = plan.sequence;
  if (plan.tensor > 1) out["tensor_parallel.autotp_size"] = plan.tensor;
  write_zero(out, plan, model);
  write_adam(out, plan);
  write_activations(out, *plan.activations, model);
  return out;
}

Plan read_deepspeed(OptionReader& reader, const Model& model, const ImportRequest& request) {
  Plan plan = plan_of_request(request, model, Framework::kDeepSpeed);
  for (const std::string section : {"bf16", "fp16", "zero_optimization", "activation_checkpointing",
                                    "zero_optimization.offload_optimizer",
                                    "zero_optimization.offload_param", "tensor_parallel"}) {
    if (reader.has(section)) {
      reader.fail(section, "is a value, and DeepSpeed has a section there",
                  "write it as {\"...\": ...}");
    }
  }
  plan.sequence = reader.whole("sequence_parallel_size", kOptionCount, 1);
  plan.tensor =
      std::max<int64_t>(1, reader.whole("tensor_parallel.autotp_size", {0, kOptionCount.most}, 0));
  set_data_ranks(plan, reader, "sequence_parallel_size, tensor_parallel.autotp_size");
  read_batch(reader, plan, request);
  read_dtype(reader, plan, request.dtype);
  plan.zero_stage = reader.whole(kZero + "stage", {0, 3}, 0);
  plan.optimizer.placement = read_placement(reader);
  read_buckets(reader, plan, model);
  read_steps(reader, plan, model);
  read_weights(reader, plan, model);
  read_activations(reader, plan);
  // Hyperparameters, and what a prediction takes for granted.
  reader.accept(
      {"gradient_clipping", "zero_force_ds_cpu_optimizer", "optimizer.type", kZero + "overlap_comm",
       kZero + "allgather_bucket_size", kZero + "contiguous_gradients", kZero + "reduce_scatter",
       kZero + "allgather_partitions", kOptimizer + "pin_memory", kOptimizer + "nvme_path",
       kOptimizer + "pipeline_read", kOptimizer + "pipeline_write",
       kOptimizer + "cpuadam_cores_perc", kWeights + "pin_memory", kWeights + "nvme_path"});
  return plan;
}

}  // namespace ballast
