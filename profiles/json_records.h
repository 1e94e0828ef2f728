// Records to and from JSON values, for the sources of this folder only (load.h has the texts).
//
// Each *_from_json is strict (unknown, missing, ill-typed keys throw Error) and the inverse of
// its to_json up to 14 decimal digits of a rate. Will not do: read files.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "profiles/json_reader.h"
#include "sim/spec/knobs.h"
#include "sim/spec/machine.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

OrderedJson to_json(const Model& model);
OrderedJson to_json(const Machine& machine);
OrderedJson to_json(const Plan& plan);

// `source` names the file, or the flag, in messages.
Model model_from_json(const Json& document, const std::string& source);
Machine machine_from_json(const Json& document, const std::string& source);
Plan plan_from_json(const Json& document, const std::string& source);

// Sets knobs of `plan` to those of the partial plan `changes` (a strategy's, or one override's),
// with the short forms that load.h describes. A key that `plan` does not have throws Error.
void merge_plan(Json& plan, const Json& changes, const std::string& source);

// The texts of an enumeration's first `count` values, in order.
template <class Enum>
std::vector<std::string> names_of(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.emplace_back(to_string(static_cast<Enum>(i)));
  return names;
}

template <class Enum>
Enum read_choice(JsonReader& reader, const std::string& key, int count) {
  return static_cast<Enum>(reader.choice(key, names_of<Enum>(count)));
}

// The nearest decimal number of 14 digits: what a file shows for a rate converted from SI units.
double rounded(double value);

}  // namespace ballast
