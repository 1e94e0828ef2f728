// Our plan JSON, schema "ballast.plan/1": every knob of sim/spec/plan.h under its own name.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "profiles/json_reader.h"
#include "profiles/json_records.h"
#include "profiles/load.h"
#include "sim/base/atomic_file.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

constexpr const char* kSchema = "ballast.plan/1";
constexpr const char* kAuto = "auto";
constexpr WholeRange kCount{1, 1 << 30};
constexpr WholeRange kCountOrNone{0, 1 << 30};
constexpr WholeRange kBytes{1, int64_t{1} << 40};
constexpr NumberRange kShare{0, 1};

bool is_auto(JsonReader& reader, const std::string& key) { return reader.raw(key) == kAuto; }

DType read_moments(JsonReader& reader) {
  return reader.choice("moments", {"fp32", "bf16"}) == 0 ? DType::kF32 : DType::kBf16;
}

OptimizerPlan read_optimizer(JsonReader reader) {
  OptimizerPlan plan;
  plan.placement = read_choice<OptimizerPlacement>(reader, "placement", 3);
  plan.bucket_bytes = {reader.whole("bucket_bytes", kBytes)};
  if (!is_auto(reader, "gpu_buckets")) {
    plan.gpu_buckets = reader.whole("gpu_buckets", kCountOrNone);
  }
  plan.cast = read_choice<CastPlacement>(reader, "cast", 2);
  plan.sync = read_choice<SyncMode>(reader, "sync", 3);
  plan.undo = read_choice<UndoKind>(reader, "undo", 2);
  plan.adam = reader.text("adam");
  if (reader.has("stream_share")) plan.stream_share = reader.number("stream_share", kShare);
  if (reader.has("moments")) plan.moments = read_moments(reader);
  reader.finish();
  return plan;
}

WeightsPlan read_weights(JsonReader reader) {
  WeightsPlan plan;
  if (!is_auto(reader, "flow_share")) plan.flow_share = reader.number("flow_share", kShare);
  plan.look_ahead = reader.whole("look_ahead", kCountOrNone);
  reader.finish();
  return plan;
}

ActivationPlan read_activations(JsonReader reader) {
  ActivationPlan plan;
  for (const ModuleKind kind : saving_kinds()) {
    plan.fate[static_cast<size_t>(kind)] =
        read_choice<ActivationFate>(reader, std::string(to_string(kind)), 3);
  }
  plan.offload_share = reader.number("offload_share", kShare);
  plan.look_ahead = reader.whole("look_ahead", kCountOrNone);
  if (reader.has("scores")) plan.scores = read_choice<ActivationFate>(reader, "scores", 2);
  reader.finish();
  return plan;
}

OrderedJson write_activations(const ActivationPlan& plan) {
  OrderedJson out = OrderedJson::object();
  for (const ModuleKind kind : saving_kinds()) {
    out[std::string(to_string(kind))] = to_string(plan.fate[static_cast<size_t>(kind)]);
  }
  out["offload_share"] = plan.offload_share;
  out["look_ahead"] = plan.look_ahead;
  out["scores"] = to_string(plan.scores);
  return out;
}

// An absent value is "auto".
template <class Value>
OrderedJson or_auto(const std::optional<Value>& value) {
  return value ? OrderedJson(*value) : OrderedJson(kAuto);
}

DType read_dtype(JsonReader& reader) {
  const std::vector<DType> types = {DType::kF32, DType::kBf16, DType::kF16};
  std::vector<std::string> names;
  for (const DType type : types) names.emplace_back(to_string(type));
  return types[reader.choice("dtype", names)];
}

// Turns the short form of a group of knobs into what is merged key by key.
Json expanded(const std::string& key, const Json& change) {
  if (key == "weights" && change.is_string()) {
    if (change == "stationary") return {{"flow_share", 0.0}};
    if (change == "flow") return {{"flow_share", 1.0}};
    if (change == kAuto) return {{"flow_share", kAuto}};
  }
  if (key == "activations" && change.is_string() && change != kAuto) {
    Json all = Json::object();
    for (const ModuleKind kind : saving_kinds()) all[std::string(to_string(kind))] = change;
    // The layer's input is what recomputing it starts from.
    if (change == "recompute") all["fc2"] = "keep";
    return all;
  }
  return change;
}

// Absent from plans that were written before there were several degrees: one of each.
void read_degrees(JsonReader& reader, Plan& plan) {
  const std::pair<const char*, int64_t*> degrees[] = {
      {"tensor", &plan.tensor},     {"pipeline", &plan.pipeline},
      {"sequence", &plan.sequence}, {"virtual_pipeline", &plan.virtual_pipeline},
      {"context", &plan.context},   {"expert", &plan.expert}};
  for (const auto& [key, degree] : degrees) {
    if (reader.has(key)) *degree = reader.whole(key, kCount);
  }
  if (reader.has("tensor_sequence")) plan.tensor_sequence = reader.boolean("tensor_sequence");
  if (reader.has("numa")) plan.numa = read_choice<NumaBinding>(reader, "numa", 2);
}

}  // namespace

std::vector<ModuleKind> saving_kinds() {
  std::vector<ModuleKind> kinds;
  for (int i = 0; i < kModuleKinds; ++i) {
    if (saves_output(static_cast<ModuleKind>(i))) kinds.push_back(static_cast<ModuleKind>(i));
  }
  return kinds;
}

Plan plan_from_json(const Json& document, const std::string& source) {
  JsonReader reader(document, source, "");
  reader.choice("schema", {kSchema});
  Plan plan;
  plan.model = reader.text("model");
  plan.machine = reader.text("machine");
  plan.strategy = reader.text("strategy");
  plan.devices = reader.whole("devices", kCount);
  plan.data = reader.whole("data", kCount);
  read_degrees(reader, plan);
  plan.zero_stage = reader.whole("zero_stage", {0, 3});
  plan.global_batch = reader.whole("global_batch", kCountOrNone);
  if (!is_auto(reader, "micro_batch")) plan.micro_batch = reader.whole("micro_batch", kCount);
  plan.sequence_length = reader.whole("sequence_length", kCountOrNone);
  plan.dtype = read_dtype(reader);
  if (reader.has("products")) plan.products = read_choice<ProductFormat>(reader, "products", 2);
  plan.weights = read_weights(reader.object("weights"));
  plan.optimizer = read_optimizer(reader.object("optimizer"));
  if (!is_auto(reader, "activations")) {
    plan.activations = read_activations(reader.object("activations"));
  }
  // Absent from plans that were written before there was a choice.
  if (reader.has("memory_reuse") && !is_auto(reader, "memory_reuse")) {
    plan.memory_reuse = read_choice<MemoryReuse>(reader, "memory_reuse", 2);
  }
  plan.checkpoint_period_steps = reader.whole("checkpoint_period_steps", kCountOrNone);
  reader.finish();
  return plan;
}

OrderedJson to_json(const Plan& plan) {
  return {
      {"schema", kSchema},
      {"model", plan.model},
      {"machine", plan.machine},
      {"strategy", plan.strategy},
      {"devices", plan.devices},
      {"data", plan.data},
      {"tensor", plan.tensor},
      {"pipeline", plan.pipeline},
      {"virtual_pipeline", plan.virtual_pipeline},
      {"sequence", plan.sequence},
      {"context", plan.context},
      {"expert", plan.expert},
      {"tensor_sequence", plan.tensor_sequence},
      {"numa", to_string(plan.numa)},
      {"zero_stage", plan.zero_stage},
      {"global_batch", plan.global_batch},
      {"micro_batch", or_auto(plan.micro_batch)},
      {"sequence_length", plan.sequence_length},
      {"dtype", to_string(plan.dtype)},
      {"products", to_string(plan.products)},
      {"weights",
       {{"flow_share", or_auto(plan.weights.flow_share)}, {"look_ahead", plan.weights.look_ahead}}},
      {"optimizer",
       {{"placement", to_string(plan.optimizer.placement)},
        {"bucket_bytes", plan.optimizer.bucket_bytes.count},
        {"gpu_buckets", or_auto(plan.optimizer.gpu_buckets)},
        {"cast", to_string(plan.optimizer.cast)},
        {"sync", to_string(plan.optimizer.sync)},
        {"undo", to_string(plan.optimizer.undo)},
        {"adam", plan.optimizer.adam},
        {"stream_share", plan.optimizer.stream_share},
        {"moments", to_string(plan.optimizer.moments)}}},
      {"memory_reuse",
       plan.memory_reuse ? std::string(to_string(*plan.memory_reuse)) : std::string(kAuto)},
      {"activations", plan.activations ? write_activations(*plan.activations) : OrderedJson(kAuto)},
      {"checkpoint_period_steps", plan.checkpoint_period_steps}};
}

void merge_plan(Json& plan, const Json& changes, const std::string& source) {
  // Reading every key that exists makes finish() refuse the others, with the nearest.
  const auto merge_object = [&](Json& target, const Json& change, const std::string& path,
                                const auto& self) -> void {
    JsonReader reader(change, source, path);
    for (const auto& item : target.items()) reader.has(item.key());
    reader.finish();
    for (const auto& item : change.items()) {
      const Json value = path.empty() ? expanded(item.key(), item.value()) : item.value();
      Json& old = target[item.key()];
      if (item.key() == "activations" && value.is_object() && !old.is_object()) {
        old = write_activations(ActivationPlan{});
      }
      if (old.is_object() && value.is_object()) {
        self(old, value, path.empty() ? item.key() : path + "." + item.key(), self);
      } else {
        old = value;
      }
    }
  };
  merge_object(plan, changes, "", merge_object);
}

Plan parse_plan(std::string_view text, const std::string& source) {
  return plan_from_json(parse_json(text, source), source);
}

Plan load_plan(const std::string& path) { return parse_plan(read_text_file(path), path); }

std::string plan_json(const Plan& plan) { return to_text(to_json(plan)); }

void save_plan(const Plan& plan, const std::string& path) {
  atomic_write(path, plan_json(plan) + "\n");
}

}  // namespace ballast
