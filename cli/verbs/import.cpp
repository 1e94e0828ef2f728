#include <cstdio>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/terminal/standard_error.h"
#include "cli/text/prediction.h"
#include "profiles/frameworks/frameworks.h"
#include "sim/base/atomic_file.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

struct ImportFlags {
  OutputFlags output;
  StoreFlag store;
  std::optional<std::string> deepspeed;
  std::optional<std::string> megatron;
  std::optional<std::string> dtype;
  ImportRequest request;
};

std::optional<DType> dtype_of(const std::optional<std::string>& name) {
  if (!name) return std::nullopt;
  for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
    if (*name == to_string(dtype)) return dtype;
  }
  throw Error("--dtype", "'" + one_line(*name) + "' is not known", "use bf16, fp16 or fp32");
}

bool parse(Words words, ImportFlags& flags) {
  VerbParser parser("import");
  CLI::App& app = parser.app();
  parser.reads(app.add_option("--deepspeed", flags.deepspeed, "DeepSpeed's JSON configuration")
                   ->type_name("FILE"));
  parser.reads(app.add_option("--megatron", flags.megatron,
                              "Megatron-LM's flags: a file, or the flags themselves in quotes")
                   ->type_name("FILE"));
  ImportRequest& request = flags.request;
  parser.reads(app.add_option("--model", request.model, "Shipped name, config.json or its folder")
                   ->required()
                   ->type_name("NAME"));
  parser.reads(app.add_option("--machine", request.machine, "Shipped name, file, or 'here'")
                   ->required()
                   ->type_name("NAME"));
  app.add_option("--devices", request.devices, "GPUs that train together [1]")
      ->check(above_zero())
      ->type_name("COUNT");
  const auto size = [&](const char* name, std::optional<int64_t>& value, const char* help) {
    app.add_option(name, value, help)
        ->check(above_zero())
        ->type_name("COUNT")
        ->group("Where the configuration does not say it");
  };
  size("--sequence-length", request.sequence_length,
       "Tokens of a sequence [2048, or what the model allows]");
  size("--global-batch", request.global_batch, "Sequences of a step, all devices");
  size("--micro-batch", request.micro_batch, "Sequences at once on a device");
  size("--pipeline", request.pipeline, "Stages that DeepSpeed's code makes [1]");
  size("--context", request.context, "Devices that share every sequence by ring attention [1]");
  size("--expert", request.expert, "Devices that share the experts, by DeepSpeed's code [1]");
  app.add_option("--dtype", flags.dtype,
                 "Of weights and activations: bf16, fp16, fp32 [the one that is \"auto\"]")
      ->type_name("NAME")
      ->group("Where the configuration does not say it");
  parser.add(flags.store);
  parser.add(flags.output, "Write the plan to this file instead of the output");
  if (!parser.parse(words)) return false;
  request.model = name_meant("--model", request.model, "models");
  request.machine = name_meant("--machine", request.machine, "machines");
  request.dtype = dtype_of(flags.dtype);
  return true;
}

// The flags of Megatron-LM are written out, or stand in a file.
bool are_flags(const std::string& text) {
  return text.empty() || text.starts_with("-") || text.find(' ') != std::string::npos;
}

ImportedPlan import_plan(const ImportFlags& flags, const Model& model) {
  if (flags.deepspeed.has_value() == flags.megatron.has_value()) {
    throw Error("ballast import",
                flags.deepspeed ? "two frameworks are named" : "no framework is named",
                "give either --deepspeed FILE or --megatron FILE");
  }
  if (flags.deepspeed) {
    const std::string& path = *flags.deepspeed;
    return import_deepspeed(read_configuration(path), path, model, flags.request);
  }
  if (are_flags(*flags.megatron)) {
    return import_megatron(*flags.megatron, "--megatron", model, flags.request);
  }
  const std::string& path = *flags.megatron;
  return import_megatron(read_configuration(path), path, model, flags.request);
}

// Of assumed or ignored ones.
template <class Option>
OrderedJson options_json(const std::vector<Option>& options) {
  OrderedJson list = OrderedJson::array();
  for (const Option& one : options) {
    list.push_back(
        {{"option", one.option}, {"value", OrderedJson::parse(one.value)}, {"reason", one.reason}});
  }
  return list;
}

}  // namespace

int run_import(Words words) {
  ImportFlags flags;
  if (!parse(words, flags)) return kDone;
  const Model model = load_model(flags.request.model);
  load_machine_or_here(flags.request.machine, flags.store);
  const ImportedPlan imported = import_plan(flags, model);
  check(imported.plan, model);
  const std::string plan = plan_json(imported.plan);
  if (flags.output.out) atomic_write(*flags.output.out, plan + "\n");
  if (flags.output.json) {
    const OrderedJson json = {{"plan", OrderedJson::parse(plan)},
                              {"assumed", options_json(imported.assumed)},
                              {"ignored", options_json(imported.ignored)}};
    fmt::print("{}\n", json.dump(1));
    return kDone;
  }
  if (flags.output.out) {
    fmt::print("{}\nask what it does with ballast predict --plan {}\n", plan_text(imported.plan),
               *flags.output.out);
  } else {
    fmt::print("{}\n", plan);
  }
  std::fflush(stdout);
  for (const AssumedOption& one : imported.assumed) {
    print_to_stderr("assumed: {} {}: {}\n", one_line(one.option), one.value, one.reason);
  }
  for (const IgnoredOption& one : imported.ignored) {
    print_to_stderr("ignored: {} {}: {}\n", one_line(one.option), one_line(one.value), one.reason);
  }
  return kDone;
}

}  // namespace ballast
