#include "profiles/published.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <set>

#include "profiles/json_reader.h"
#include "profiles/json_records.h"
#include "profiles/load.h"
#include "profiles/shipped.h"
#include "sim/base/error.h"
#include "sim/spec/model_family.h"

namespace ballast {
namespace {

constexpr const char* kSchema = "ballast.published/1";
constexpr WholeRange kCount{1, 1 << 30};
constexpr WholeRange kCountOrNone{0, 1 << 30};
constexpr NumberRange kShare{0, 1};
constexpr NumberRange kMeasuredRange{0, 1e12, true};
constexpr int64_t kBytesPerElement = 4;  // Plan counts buckets in 32-bit values
constexpr std::array<const char*, 7> kDegrees = {
    "data", "tensor", "pipeline", "virtual_pipeline", "sequence", "context", "expert"};

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

struct NamedModel {
  Model model;
  std::optional<AttentionKind> attention;
};

NamedModel read_model(JsonReader reader, const std::string& id) {
  NamedModel named;
  Model& model = named.model;
  model.name = id;
  const std::vector<std::string> architectures = {"gpt2", "llama"};
  model.architecture = architectures[reader.choice("architecture", architectures)];
  model.layers = reader.whole("layers", kCount);
  model.hidden = reader.whole("hidden", kCount);
  model.heads = reader.whole("heads", kCount);
  model.kv_heads = reader.has("kv_heads") ? reader.whole("kv_heads", kCount) : model.heads;
  model.ffn = reader.has("ffn") ? reader.whole("ffn", kCount) : 4 * model.hidden;
  model.vocab = reader.whole("vocab", kCount);
  if (model.hidden % model.heads != 0) {
    reader.fail("heads", fmt::format("{} do not divide a width of {}", model.heads, model.hidden),
                "give a divisor");
  }
  model.head_size = model.hidden / model.heads;
  set_architecture(model);
  model.tied_embeddings = reader.has("tied_embeddings")
                              ? reader.boolean("tied_embeddings")
                              : model_family(model.architecture).gpt2_names;
  if (reader.has("attention")) {
    const size_t kind = reader.choice("attention", {"eager", "flash2"});
    named.attention = static_cast<AttentionKind>(kind);
  }
  reader.finish();
  return named;
}

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
    if (!changes_.contains("tensor_sequence") && result_.plan.tensor == 1) {
      result_.plan.tensor_sequence = false;
    }
  }

 private:
  void copy(const char* key, const char* to) {
    if (reader_.has(key)) changes_[to] = reader_.raw(key);
  }
  void copy_to_optimizer(const char* key, const char* to) {
    if (reader_.has(key)) changes_["optimizer"][to] = reader_.raw(key);
  }

  void read_degrees() {
    const int64_t devices = reader_.whole("devices", kCount);
    changes_["devices"] = devices;
    int64_t others = 1;
    for (const char* key : kDegrees) {
      if (!reader_.has(key)) continue;
      const int64_t degree = reader_.whole(key, kCount);
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
  }

  void read_batch() {
    changes_["sequence_length"] = reader_.whole("sequence_length", kCount);
    changes_["global_batch"] = reader_.whole("global_batch", kCount);
    copy("micro_batch", "micro_batch");
    const std::string dtype = reader_.text("dtype");
    if (dtype == "fp8") {
      // Plans have products in fp8 (Plan::products), but as Ballast makes them, scaled just in
      // time; what frameworks quantise, cache and store is no fact of a stack.
      reader_.fail("dtype", "is fp8, which is not supported yet of frameworks",
                   "use cases of bf16 or fp16");
    }
    changes_["dtype"] = dtype;
    copy("zero_stage", "zero_stage");
    copy("megatron_sequence_parallel", "tensor_sequence");
  }

  // The knobs of `activations`, or null where nothing was said about them.
  Json read_activations() {
    const bool named = reader_.has("recompute");
    const std::vector<std::string> words = {"none", "selective", "full", "ffn+norm"};
    const bool checkpoints = flag("checkpoint_offload") || offloads("residual");
    const bool offload = flag("activation_offload");
    if (!named && !checkpoints && !offload) return nullptr;
    // Whoever offloads checkpoints has them: everything else is recomputed.
    const auto recompute = named ? static_cast<Recompute>(reader_.choice("recompute", words))
                           : checkpoints ? Recompute::kFull
                                         : Recompute::kNone;
    const ActivationPlan plan = activations_of(recompute);
    Json knobs = Json::object();
    for (const ModuleKind kind : saving_kinds()) {
      ActivationFate fate = plan.fate[static_cast<size_t>(kind)];
      const bool leaves = offload || (checkpoints && kind == ModuleKind::kFc2);
      if (leaves && fate == ActivationFate::kKeep) fate = ActivationFate::kOffload;
      knobs[std::string(to_string(kind))] = to_string(fate);
    }
    knobs["scores"] = to_string(plan.scores);
    return knobs;
  }

  bool flag(const char* key) { return reader_.has(key) && reader_.boolean(key); }

  bool offloads(const std::string& what) {
    if (!reader_.has("offload")) return false;
    const std::vector<std::string> known = {"m", "v", "master", "residual"};
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
    // State that lives in CPU memory and is stepped by the GPU comes and goes by bucket.
    if (offloads("m") || offloads("v") || offloads("master")) {
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
          kBytesPerElement * reader_.whole("bucket_elements", kCount);
    }
    if (reader_.has("offload_ratio")) {
      result_.optimizer_share_on_cpu = reader_.number("offload_ratio", kShare);
    }
    if (reader_.has("rollback_rate")) {
      result_.rollback_rate = reader_.number("rollback_rate", kShare);
    }
  }

  // Knobs under the names that a plan has for them.
  void read_plan_keys() {
    copy("weights", "weights");
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

  // Keys that say how the run was chosen, or what no prediction depends on.
  void read_words() {
    if (reader_.has("policy")) reader_.text("policy");
    if (reader_.has("clip")) reader_.number("clip", {0, 1e9});
  }

  JsonReader reader_;
  PublishedCase& result_;
  Json changes_ = Json::object();
  int64_t data_ = 1;
};

void read_measured(JsonReader reader, PublishedCase& result) {
  for (int i = 0; i < kMetrics; ++i) {
    const auto metric = static_cast<Metric>(i);
    const std::string key(metric_name(metric));
    if (!reader.has(key)) continue;
    const double value = metric == Metric::kFits ? static_cast<double>(reader.boolean(key))
                                                 : reader.number(key, kMeasuredRange);
    result.measured.push_back({metric, value});
  }
  const bool tflops = reader.has(std::string(metric_name(Metric::kTflopsPerDevice)));
  if (reader.has("tflops_counts_recompute") || tflops) {
    result.tflops_count_recompute = reader.boolean("tflops_counts_recompute");
  }
  reader.finish();
  if (result.measured.empty()) {
    reader.fail("", "names nothing that was measured", "add one, such as step_time_s");
  }
}

PublishedCase read_case(const Json& document, const std::string& source) {
  JsonReader reader(document, source, "");
  PublishedCase result;
  result.id = reader.text("id");
  result.machine = reader.text("machine");
  result.stack = reader.text("stack");
  NamedModel named = read_model(reader.object("model"), result.id);
  result.model = std::move(named.model);
  result.attention = named.attention;
  RunReader(reader.object("run"), result).read(source + ": run");
  result.plan.model = result.id;
  result.plan.machine = result.machine;
  result.model.max_positions = result.plan.sequence_length;
  read_measured(reader.object("measured"), result);
  result.read = std::vector<std::string>{
      "text", "figure", "derived"}[reader.choice("read", {"text", "figure", "derived"})];
  if (reader.has("note")) result.note = reader.text("note");
  reader.finish();
  check(result.plan, result.model);
  return result;
}

// The id of a case even where the rest of it is not one.
std::string id_of(const Json& document, size_t index) {
  const bool named = document.is_object() && document.contains("id") && document["id"].is_string();
  return named ? document["id"].get<std::string>() : fmt::format("case {}", index + 1);
}

PublishedEntry read_entry(const Json& document, const std::string& file, size_t index) {
  PublishedEntry entry;
  entry.id = id_of(document, index);
  try {
    entry.of = read_case(document, file + ": case " + in_quotes(entry.id));
  } catch (const Error& error) {
    entry.error = error.what();
    // A plan that cannot be run is refused without the name of its file.
    if (!entry.error.starts_with(file)) {
      entry.error = file + ": case " + in_quotes(entry.id) + ": " + entry.error;
    }
  }
  return entry;
}

}  // namespace

std::string_view metric_name(Metric metric) {
  static constexpr std::array<std::string_view, kMetrics> kNames = {
      "step_time_s",     "tokens_per_s", "tokens_per_s_per_device", "tflops_per_device",
      "mfu_percent",     "hfu_percent",  "peak_memory_gb",          "states_gib",
      "activations_gib", "fits"};
  return kNames.at(static_cast<size_t>(metric));
}

bool is_time(Metric metric) { return metric <= Metric::kHfu; }

ActivationPlan activations_of(Recompute recompute) {
  ActivationPlan plan;
  const auto redo = [&](ModuleKind kind) {
    plan.fate[static_cast<size_t>(kind)] = ActivationFate::kRecompute;
  };
  if (recompute == Recompute::kFull) {
    for (const ModuleKind kind : saving_kinds()) {
      if (kind != ModuleKind::kFc2) redo(kind);
    }
  }
  if (recompute == Recompute::kFfnAndNorms) {
    for (const ModuleKind kind :
         {ModuleKind::kNorm1, ModuleKind::kNorm2, ModuleKind::kFc1, ModuleKind::kActivation}) {
      redo(kind);
    }
  }
  const bool scores = recompute == Recompute::kFull || recompute == Recompute::kSelective;
  plan.scores = scores ? ActivationFate::kRecompute : ActivationFate::kKeep;
  return plan;
}

PublishedFile parse_published(std::string_view text, const std::string& file) {
  const Json document = parse_json(text, file);
  JsonReader reader(document, file, "");
  reader.choice("schema", {kSchema});
  PublishedFile result;
  result.path = file;
  result.title = reader.text("title");
  result.source = reader.text("source");
  const Json& cases = reader.raw("cases");
  if (!cases.is_array() || cases.empty()) {
    reader.fail("cases", "must be a list of cases", "write it as [{...}, {...}]");
  }
  reader.finish();
  std::set<std::string> ids;
  for (size_t i = 0; i < cases.size(); ++i) {
    result.entries.push_back(read_entry(cases[i], file, i));
    PublishedEntry& entry = result.entries.back();
    if (!ids.insert(entry.id).second) {
      entry.of.reset();
      entry.error = file + ": case " + in_quotes(entry.id) + ": its id is taken; rename it";
    }
  }
  return result;
}

PublishedFile load_published(const std::string& path) {
  const Found found = find_file(path, "published");
  return parse_published(read_text_file(found.path), found.path);
}

std::vector<std::string> shipped_published() {
  std::vector<std::string> paths;
  for (const std::string& name : shipped_names("published")) {
    const std::string path = find_file(name, "published").path;
    const Json document = parse_json(read_text_file(path), path);
    if (document.contains("schema") && document["schema"] == kSchema) paths.push_back(path);
  }
  return paths;
}

}  // namespace ballast
