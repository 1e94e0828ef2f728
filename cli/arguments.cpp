#include "cli/arguments.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "sim/base/error.h"

namespace ballast {
namespace {

std::string summary_of(const std::string& name) {
  for (const Verb& verb : verbs()) {
    if (verb.name == name) return std::string(verb.summary);
  }
  CHECK(false);
}

// `is_good` of a finite number; else "VALUE WHAT".
CLI::Validator number_check(bool (*is_good)(double), const char* what) {
  return {[is_good, what](const std::string& text) {
            double value = 0;
            const bool is_number = CLI::detail::lexical_cast(text, value);
            if (is_number && std::isfinite(value) && is_good(value)) return std::string();
            return fmt::format("{} {}", text, what);
          },
          ""};
}

}  // namespace

CLI::Validator above_zero() {
  return number_check([](double value) { return value > 0; }, "is no finite number above 0");
}

CLI::Validator zero_or_more() {
  return number_check([](double value) { return value >= 0; }, "is no finite number from 0 on");
}

VerbParser::VerbParser(const std::string& name)
    : name_(name), app_("ballast " + name + ": " + summary_of(name), "ballast " + name) {
  app_.set_help_flag("--help", "Print this and stop");
  app_.get_formatter()->column_width(36);
  app_.get_formatter()->label("OPTIONS", "flags");
}

void VerbParser::add(OutputFlags& flags, const std::string& out_help) {
  app_.add_flag("--json", flags.json, "Print JSON instead of text");
  if (!out_help.empty()) app_.add_option("--out", flags.out, out_help)->type_name("FILE");
}

void VerbParser::add(PlanFlags& flags, Lists lists) {
  const bool many = lists == Lists::kYes;
  const std::string several = many ? "; several with commas" : "";
  const auto limit = [&](CLI::Option* option) {
    option->delimiter(many ? ',' : '\0')->allow_extra_args(false)->group("The plan");
    if (!many) option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    return option;
  };
  limit(
      app_.add_option("--model", flags.models, "Shipped name, config.json or its folder" + several))
      ->type_name("NAME");
  limit(
      app_.add_option("--machine", flags.machines,
                      "Shipped name, file, or 'here' (the last profile of this machine)" + several))
      ->type_name("NAME");
  limit(app_.add_option("--strategy", flags.strategies,
                        "Shipped name or file [superoffload]" + several))
      ->type_name("NAME");
  limit(app_.add_option("--devices", flags.devices, "GPUs that train together [1]" + several))
      ->check(above_zero())
      ->type_name("COUNT");
  const auto size = [&](const char* name, std::optional<int64_t>& value, const char* help) {
    app_.add_option(name, value, help)->check(above_zero())->type_name("COUNT")->group("The plan");
  };
  // --data is the text that train and verify read.
  size("--data-parallel", flags.degrees.data,
       "Devices that see other sequences [devices / the other degrees]");
  size("--tensor", flags.degrees.tensor, "Devices that share every matrix [1]");
  size("--pipeline", flags.degrees.pipeline, "Stages of consecutive layers [1]");
  size("--virtual-pipeline", flags.degrees.virtual_pipeline,
       "Chunks of layers a stage, interleaved [1]");
  size("--sequence", flags.degrees.sequence, "Devices that share every sequence (Ulysses) [1]");
  size("--context", flags.degrees.context, "The same by ring attention [1]");
  size("--expert", flags.degrees.expert, "Data-parallel devices that share the experts [1]");
  app_.add_option("--zero-stage", flags.degrees.zero_stage,
                  "What is split over devices with the same weights: 0 nothing, 1 optimizer, "
                  "2 gradients too, 3 weights too [the strategy's, or 2]")
      ->check(CLI::Range(0, 3))
      ->type_name("STAGE")
      ->group("The plan");
  size("--sequence-length", flags.sequence_length,
       "Tokens of a sequence [2048, or what the model allows]");
  size("--global-batch", flags.global_batch, "Sequences of a step, all devices [8 a device]");
  size("--micro-batch", flags.micro_batch, "Sequences at once on a device [chosen]");
  app_.add_option("--dtype", flags.dtype, "Of weights and activations: bf16, fp16, fp32 [bf16]")
      ->type_name("NAME")
      ->group("The plan");
  app_.add_option("--plan", flags.plan_file, "Start from this plan; the other flags change it")
      ->type_name("FILE")
      ->group("The plan");
  app_.add_option("--set", flags.set,
                  "Change one key: plan.optimizer.cast=cpu, machine.gpu.memory_gb=80, "
                  "model.layers=48; may be repeated")
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE")
      ->group("The plan");
}

void VerbParser::add(StoreFlag& flag) {
  app_.add_option("--store", flag.path,
                  "Where measurements are kept [$XDG_DATA_HOME/ballast/store.db]")
      ->type_name("FILE");
}

void VerbParser::add(StackFlag& flag) {
  app_.add_option("--stack", flag.name, "Framework: a name of profiles/stacks, or a file [ballast]")
      ->type_name("NAME");
}

bool VerbParser::parse(Words words) {
  std::vector<std::string> reversed(words.rbegin(), words.rend());
  try {
    app_.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app_.help());
    return false;
  } catch (const CLI::ParseError& error) {
    throw Error("ballast " + name_, one_line(error.what()),
                "ballast " + name_ + " --help lists the flags");
  }
  return true;
}

}  // namespace ballast
