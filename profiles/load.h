// Models, machines, plans, strategies and stacks from JSON, and back; the list of the shipped ones.
//
// Formats: a model is a Hugging Face config.json; machine, plan, strategy and stack are ours, with
// the unit in every key, and strict: an unknown or a missing key is an Error that names the file,
// the key and the nearest known one. A name means a shipped file; anything with a '/' or ending in
// ".json", and any existing folder, is a path.
// Will not do: measure anything, look into the store (profiles/store.h), or check a plan against
// its model (check() in sim/spec/plan.h, once the plan is complete).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sim/spec/knobs.h"
#include "sim/spec/machine.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"
#include "sim/spec/stack.h"

namespace ballast {

// --- Models ---------------------------------------------------------------------------------

// name_or_path: a shipped name, a config.json, or the folder of one. Unknown keys are fine here,
// for they are Hugging Face's; a missing, ill-typed or impossible one that we need is an Error.
// Keys that Hugging Face's configuration classes let a file omit take the default of that class.
Model load_model(const std::string& name_or_path);
// source: names the text in messages. name: of the model.
Model parse_model(std::string_view text, const std::string& source, const std::string& name);
// Our record of it, one key a field (for --json; not a config.json).
std::string model_json(const Model& model);
// The config.json of `name_or_path` with the sizes of `model` in place of its own: layers, widths,
// heads, vocabulary and positions. Every other key stays as it is.
std::string config_like(const std::string& name_or_path, const Model& model);
// The keys of model_json() but the name in which `to` is another than `from`, as --set model. takes
// them: "position=rope".
std::vector<std::string> differences(const Model& from, const Model& to);

// --- Machines -------------------------------------------------------------------------------

Machine load_machine(const std::string& name_or_path);
Machine parse_machine(std::string_view text, const std::string& source);
std::string machine_json(const Machine& machine);
void save_machine(const Machine& machine, const std::string& path);

// --- Plans ----------------------------------------------------------------------------------

// A plan file holds every knob; "auto" stands for one that autotune chooses.
Plan load_plan(const std::string& path);
Plan parse_plan(std::string_view text, const std::string& source);
std::string plan_json(const Plan& plan);
void save_plan(const Plan& plan, const std::string& path);

// A strategy is a partial plan with a description and a source.
struct Strategy {
  std::string name;
  std::string description;
  std::string source;
  std::string plan;  // JSON text of the knobs that it sets
  // The implementation of Adam that the system brings, for machines that know its rate; empty
  // where the plan says it, or any will do.
  std::string adam;
  // Knobs that it sets only by default: its users choose them (a published case that does not name
  // one leaves it to be chosen).
  std::vector<std::string> open;
  // Knobs of the layout that are chosen where a plan that follows the strategy does not name them:
  // what makes it this strategy is not among them.
  std::vector<std::string> layout;
};
Strategy load_strategy(const std::string& name_or_path);
// Of the knobs to which a strategy gives values, those that have others in a plan.
std::vector<const Knob*> departures(const Strategy& strategy, const Plan& plan);
Strategy parse_strategy(std::string_view text, const std::string& file, const std::string& name);
std::string strategy_json(const Strategy& strategy);

// --- Stacks ---------------------------------------------------------------------------------

// Schema "ballast.stack/1": facts by the names of StackFacts (an absent one has its default), the
// six constants by constant_name(), and which of them were fitted on which published cases. Every
// Stack that is returned has passed its check.
Stack load_stack(const std::string& name_or_path);
// The shipped stack that a published source ran where its cases name `named`: one of that family
// that is known as something the source says (Stack::known_as), else `named`.
std::string framework_of(const std::string& named, const std::string& source);
Stack parse_stack(std::string_view text, const std::string& file, const std::string& name);
std::string stack_json(const Stack& stack);
void save_stack(const Stack& stack, const std::string& path);

// --- Overrides ------------------------------------------------------------------------------

// "optimizer.cast" = "cpu": a dotted path inside one record, and its new value: JSON where it
// parses as JSON, else a text.
struct Override {
  std::string key;
  std::string value;
};

// Every `--set key=value`, sorted by the record that its first word names; keys without that word.
struct Overrides {
  std::vector<Override> machine;
  std::vector<Override> model;
  std::vector<Override> plan;
};
// Throws Error for one without '=' or without machine., model. or plan. in front.
Overrides parse_overrides(const std::vector<std::string>& arguments);

// Each throws Error for a key that the record does not have, or an impossible value. The flag
// that the user wrote is named in the message.
//
// A number given for a sourced quantity replaces its value, and its source becomes the override. A
// number given for a curve becomes the rate of its largest size, and the others scale with it; a
// curve may be named with its unit ("link.host_to_device_gb_per_s"). "link.gb_per_s" is the link as
// a whole: the curve to the device so, the one back and both_total_gb_per_s in proportion.
Machine apply_override(const Machine& machine, const Override& change);
// hidden and heads keep head_size = hidden / heads, and kv_heads = heads, where that held before.
Model apply_override(const Model& model, const Override& change);
// "activations" = "recompute" (keep, offload) sets every module, and one module under "auto" makes
// the others "keep"; "weights" = "stationary", "flow" or "auto" sets weights.flow_share.
Plan apply_override(const Plan& plan, const Override& change);

// Knobs that a command line gives, as a plan file would hold them: a whole number, or the text of a
// name or a choice.
using GivenKnobs = std::map<KnobId, std::variant<int64_t, std::string>>;
// Those of `set` as `plan` has them. Requires whole numbers, names and choices that have values.
GivenKnobs given_by(const Plan& plan, const KnobSet& set);

// What a command line says about a plan. Later wins: defaults (or `plan_file`), strategy, the
// flags, the overrides.
struct PlanRequest {
  std::optional<std::string> plan_file;  // every knob starts from it instead of the defaults
  std::optional<std::string> strategy;   // a name or a path
  // Where devices or a degree is given and `data` is not, data = devices / the other degrees.
  GivenKnobs knobs;
  std::vector<Override> overrides;  // Overrides::plan
};
// Throws Error for flags that contradict one another, or name what is not there.
Plan resolve_plan(const PlanRequest& request);

// --- What is shipped ------------------------------------------------------------------------

// The folder of shipped data: $BALLAST_DATA, or else that of the sources built from.
std::string data_folder();

struct Shipped {
  std::string name;
  std::string description;
};
// Sorted by name.
std::vector<Shipped> shipped_machines();
std::vector<Shipped> shipped_models();
std::vector<Shipped> shipped_strategies();
std::vector<Shipped> shipped_stacks();

}  // namespace ballast
