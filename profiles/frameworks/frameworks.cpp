#include "profiles/frameworks/frameworks.h"

#include <algorithm>
#include <fmt/format.h>

#include "profiles/frameworks/options.h"
#include "profiles/json_records.h"
#include "profiles/shipped.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

constexpr const char* kFrameworkSchema = "ballast.framework/1";

// One framework's half of this file: how its options are made, written and understood.
struct Dialect {
  OrderedJson (*write)(const Plan& plan, const Model& model);
  Plan (*read)(OptionReader& reader, const Model& model, const ImportRequest& request);
  std::string (*text)(const OrderedJson& options);
};

Dialect dialect_of(Framework framework) {
  switch (framework) {
    case Framework::kDeepSpeed:
      return {write_deepspeed, read_deepspeed, deepspeed_text};
    case Framework::kMegatron:
      return {write_megatron, read_megatron, megatron_text};
    case Framework::kTorchtitan:
      return {write_torchtitan, read_torchtitan, torchtitan_text};
  }
  CHECK(false);
}

// The list under `key`, each element read by `read`.
template <class Value, class Read>
std::vector<Value> read_list(JsonReader& reader, const std::string& key, const Read& read) {
  std::vector<Value> values;
  for (JsonReader& element : reader.objects(key)) {
    values.push_back(read(element));
    element.finish();
  }
  return values;
}

// Whether the knob changes anything in this plan that a framework could do otherwise.
bool matters(const Plan& plan, const std::string& path) {
  const Knob* knob = find_knob(path);
  CHECK(knob != nullptr);
  if (knob->group == KnobGroup::kNames) return false;
  // Apart is what "auto" is.
  if (knob->id == KnobId::kMemoryReuse) return plan.memory_reuse == MemoryReuse::kAtOnce;
  return knob->matters_to(plan);
}

std::string reason_of(const FrameworkFacts& facts, const std::string& knob) {
  for (const MissingKnob& missing : facts.missing) {
    const bool below = missing.knob.ends_with('.') && knob.starts_with(missing.knob);
    if (missing.knob == knob || below) return missing.reason;
  }
  return "it has no option for it";
}

// Knobs of `plan` that are others in `back`.
void compare(const OrderedJson& plan, const OrderedJson& back, const std::string& path,
             std::vector<NotExpressed>& list) {
  for (const auto& item : plan.items()) {
    const std::string knob = path.empty() ? item.key() : path + "." + item.key();
    const OrderedJson& other = back.at(item.key());
    if (item.value().is_object() && other.is_object()) {
      compare(item.value(), other, knob, list);
    } else if (item.value() != other) {
      list.push_back({knob, item.value().dump(), other.dump(), ""});
    }
  }
}

// What is left to the launcher or the code of a framework whose configuration cannot say it, so
// that reading back does not take it for a contradiction.
ImportRequest beside(const Plan& plan, Framework framework) {
  ImportRequest request;
  request.model = plan.model;
  request.machine = plan.machine;
  request.devices = plan.devices;
  if (framework == Framework::kDeepSpeed) {
    request.sequence_length = plan.sequence_length;
    request.pipeline = plan.pipeline;
    request.context = plan.context;
    request.expert = plan.expert;
  }
  return request;
}

// Those of beside() that a plan sets.
void add_beside(const Plan& plan, Framework framework, std::vector<NotExpressed>& list) {
  if (framework != Framework::kDeepSpeed) return;
  const auto add = [&](const char* knob, int64_t value, const std::string& instead) {
    list.push_back({knob, std::to_string(value), instead, ""});
  };
  add("sequence_length", plan.sequence_length, "\"given beside\"");
  if (plan.pipeline > 1) add("pipeline", plan.pipeline, "\"given beside\"");
  if (plan.context > 1) add("context", plan.context, "\"given beside\"");
  if (plan.expert > 1) add("expert", plan.expert, "\"given beside\"");
}

std::vector<std::string> notes_of(const Plan& plan, const Model& model, Framework framework) {
  std::vector<std::string> notes = {
      fmt::format("launch it on {} device{}", plan.devices, plan.devices == 1 ? "" : "s")};
  if (framework == Framework::kDeepSpeed) {
    if (plan.optimizer.placement == OptimizerPlacement::kCpu &&
        plan.optimizer.sync == SyncMode::kSpeculate) {
      notes.emplace_back(
          "gradient_clipping is 0: with a norm to clip by, super_offload waits for "
          "all gradients before it steps");
    }
    if (plan.optimizer.placement == OptimizerPlacement::kNvme) {
      notes.emplace_back("nvme_path is the folder of DeepSpeed's examples: name your own");
    }
    if (!same_fates(*plan.activations, ActivationPlan{})) {
      notes.emplace_back(
          "recomputation happens where the model's code calls "
          "deepspeed.checkpointing.checkpoint");
    }
  }
  if (framework == Framework::kMegatron) {
    if (plan.tensor * plan.sequence * plan.context > 1) {
      notes.emplace_back(
          "export CUDA_DEVICE_MAX_CONNECTIONS=1 before Blackwell, but not with "
          "--use-megatron-fsdp");
    }
    if (plan.products == ProductFormat::kFp8) {
      notes.emplace_back(
          "--fp8-recipe tensorwise needs a Transformer Engine that has Float8CurrentScaling");
    }
    const bool has_window = model.sliding_window > 0 && plan.sequence_length > model.sliding_window;
    if (has_window || model.attention_sinks) {
      notes.emplace_back("the model's window and sinks of attention are not among the flags");
    }
    notes.emplace_back("add the data, tokenizer, learning rate and --train-iters");
  }
  if (framework == Framework::kTorchtitan) {
    notes.emplace_back(
        "add the data set, tokenizer, learning rate and steps; [model] names a "
        "flavor only where torchtitan ships one");
    if (plan.products == ProductFormat::kFp8) {
      notes.emplace_back(
          "the float8 converter needs torchao and a GPU of compute capability 8.9; set "
          "training.compile, or rounding costs more than the products gain");
    }
  }
  return notes;
}

void require_complete(const Plan& plan) {
  if (plan.micro_batch && plan.activations && plan.weights.flow_share &&
      plan.optimizer.gpu_buckets) {
    return;
  }
  throw Error("plan", "a knob is \"auto\"", "complete it with ballast tune first");
}

// Sizes on the command line that no training has would overflow products.
void check(const ImportRequest& request) {
  const std::pair<const char*, std::optional<int64_t>> sizes[] = {
      {"--devices", request.devices},         {"--global-batch", request.global_batch},
      {"--micro-batch", request.micro_batch}, {"--pipeline", request.pipeline},
      {"--context", request.context},         {"--expert", request.expert}};
  for (const auto& [flag, size] : sizes) {
    if (size && (*size < kOptionCount.least || *size > kOptionCount.most)) {
      throw Error(flag, fmt::format("{} is not possible", *size),
                  fmt::format("use 1 to {}", kOptionCount.most));
    }
  }
}

ImportedPlan import_options(const OrderedJson& options, const std::string& source,
                            const Model& model, const ImportRequest& request, Framework framework) {
  check(request);
  OptionReader reader(options, source);
  ImportedPlan imported;
  imported.plan = dialect_of(framework).read(reader, model, request);
  imported.assumed = reader.assumed();
  imported.ignored = reader.ignored(framework_facts(framework));
  return imported;
}

}  // namespace

std::string_view to_string(Framework framework) {
  switch (framework) {
    case Framework::kDeepSpeed:
      return "deepspeed";
    case Framework::kMegatron:
      return "megatron";
    case Framework::kTorchtitan:
      return "torchtitan";
  }
  return "";
}

FrameworkFacts framework_facts(Framework framework) {
  const Found found = find_file(std::string(to_string(framework)), "frameworks");
  const Json document = parse_json(read_text_file(found.path), found.path);
  JsonReader reader(document, found.path, "");
  reader.choice("schema", {kFrameworkSchema});
  FrameworkFacts facts;
  facts.name = reader.text("name");
  facts.version = reader.text("version");
  facts.description = reader.text("description");
  facts.source = reader.text("source");
  facts.options = read_list<FrameworkOption>(reader, "options", [](JsonReader& one) {
    return FrameworkOption{one.text("name"), one.text("type"), one.text("version"),
                           one.text("source")};
  });
  facts.missing = read_list<MissingKnob>(reader, "missing", [](JsonReader& one) {
    return MissingKnob{one.text("knob"), one.text("reason")};
  });
  reader.finish();
  return facts;
}

ExportedPlan export_plan(const Plan& plan, const Model& model, Framework framework) {
  require_complete(plan);
  const FrameworkFacts facts = framework_facts(framework);
  const Dialect dialect = dialect_of(framework);
  const OrderedJson options = dialect.write(plan, model);
  ExportedPlan exported;
  exported.text = dialect.text(options);
  for (const auto& item : options.items()) {
    const bool real =
        std::any_of(facts.options.begin(), facts.options.end(),
                    [&](const FrameworkOption& one) { return one.name == item.key(); });
    CHECK(real);
    exported.options.push_back(item.key());
  }
  const ImportedPlan back =
      import_options(options, facts.name, model, beside(plan, framework), framework);
  add_beside(plan, framework, exported.not_expressed);
  compare(to_json(plan), to_json(back.plan), "", exported.not_expressed);
  std::erase_if(exported.not_expressed,
                [&](const NotExpressed& one) { return !matters(plan, one.knob); });
  for (NotExpressed& one : exported.not_expressed) one.reason = reason_of(facts, one.knob);
  exported.notes = notes_of(plan, model, framework);
  return exported;
}

std::string read_configuration(const std::string& path) { return read_text_file(path); }

ImportedPlan import_deepspeed(std::string_view text, const std::string& source, const Model& model,
                              const ImportRequest& request) {
  const OrderedJson options = deepspeed_options(text, source);
  return import_options(options, source, model, request, Framework::kDeepSpeed);
}

ImportedPlan import_megatron(std::string_view text, const std::string& source, const Model& model,
                             const ImportRequest& request) {
  const OrderedJson options = megatron_options(text, source);
  return import_options(options, source, model, request, Framework::kMegatron);
}

}  // namespace ballast
