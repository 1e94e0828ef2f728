// Plans as the configuration of other frameworks, and back: DeepSpeed's JSON, Megatron-LM's command
// line, torchtitan's TOML.
//
// Which options a framework has, and where its source says so, is data: profiles/frameworks/*.json.
// Nothing else is ever written. What a framework cannot say is found by reading the configuration
// back: every knob that does not return is listed, with the reason.
// Will not do: launch a framework, or write what is no part of a plan (data, learning rates,
// paths).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

enum class Framework : uint8_t { kDeepSpeed, kMegatron, kTorchtitan };
inline constexpr int kFrameworks = 3;
// "deepspeed", "megatron", "torchtitan": the names of the files and of the flags.
std::string_view to_string(Framework framework);

// An option as the framework's source has it: a dotted key ("zero_optimization.stage",
// "parallelism.tensor_parallel_degree") or a flag with its dashes.
struct FrameworkOption {
  std::string name;
  std::string type;  // int, float, bool, text, list; flag: no value
  std::string version;
  std::string source;  // repository and file, or page
};

// Why a knob cannot be said. A name that ends in '.' stands for every knob below it.
struct MissingKnob {
  std::string knob;
  std::string reason;
};

struct FrameworkFacts {
  std::string name;
  std::string version;
  std::string description;
  std::string source;
  std::vector<FrameworkOption> options;
  std::vector<MissingKnob> missing;
};
// The shipped file. Throws Error where it is missing or broken.
FrameworkFacts framework_facts(Framework framework);

// A knob whose value the configuration does not carry, values as JSON.
struct NotExpressed {
  std::string knob;     // dotted: "optimizer.sync"
  std::string value;    // of the plan
  std::string instead;  // what reading the configuration gives
  std::string reason;
};

struct ExportedPlan {
  std::string text;                  // the file's content; for Megatron one flag a line
  std::vector<std::string> options;  // names of the options in it, in order
  std::vector<NotExpressed> not_expressed;
  std::vector<std::string> notes;  // what to do besides: the launcher, the environment
};

// Knobs without an effect in this plan (the undo of a plan that waits) are neither written nor
// listed. Requires a plan that passes check(); throws Error for one with a knob that is "auto".
ExportedPlan export_plan(const Plan& plan, const Model& model, Framework framework);

// What no such configuration holds, from a command line.
struct ImportRequest {
  std::string model;  // names, for the plan
  std::string machine;
  int64_t devices = 1;  // of the launcher
  // Where DeepSpeed's code or data loader says them; Megatron's flags say their own.
  std::optional<int64_t> sequence_length;  // else 2048, or what the model allows
  std::optional<int64_t> global_batch;
  std::optional<int64_t> micro_batch;
  std::optional<int64_t> pipeline;
  std::optional<int64_t> context;
  std::optional<int64_t> expert;
  std::optional<DType> dtype;  // where a configuration leaves it to a script, else bf16
};

// A value that a script fills in ("auto"), and what was taken for it.
struct AssumedOption {
  std::string option;
  std::string value;   // as JSON
  std::string reason;  // whose value it is, and what says otherwise
};

struct IgnoredOption {
  std::string option;
  std::string value;  // as JSON
  std::string reason;
};

struct ImportedPlan {
  Plan plan;  // not yet checked against the model
  std::vector<AssumedOption> assumed;
  std::vector<IgnoredOption> ignored;
};

// The text of a configuration file. Throws Error where it cannot be read, or is larger than any.
std::string read_configuration(const std::string& path);

// `source` names the text in messages. Options that a plan has no knob for, and unknown ones, are
// returned as ignored. Throws Error for values of the wrong type, for options that contradict one
// another, the request, or (Megatron) the shape of the model, and for "auto" where a plan needs a
// value and no script is known to have one of its own.
ImportedPlan import_deepspeed(std::string_view text, const std::string& source, const Model& model,
                              const ImportRequest& request);
// The text is a command line or a file of flags: quotes, backslashes at ends of lines and comments
// from '#' are understood, and words before the first flag are skipped.
ImportedPlan import_megatron(std::string_view text, const std::string& source, const Model& model,
                             const ImportRequest& request);

}  // namespace ballast
