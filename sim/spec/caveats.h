// Where a prediction or a training run departs from what the model's configuration says: each is
// told, and `train` refuses those by which it would train another model.
//
// Will not do: know what a device carries out (sim/graph/core/capabilities.h), or read the
// configuration (profiles/model.cpp).
#pragma once

#include <string>
#include <vector>

#include "sim/base/error.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"
#include "sim/spec/stack.h"

namespace ballast {

struct Caveat {
  std::string note;    // one line, of a prediction
  std::string key;     // "model.dropout"
  std::string what;    // the same of a training run
  std::string remedy;  // how to say that it is meant
  // Else it is predicted as it is, and a device that does not train it so refuses it by name.
  bool trains_another = true;
  Error error() const { return Error(key, what, remedy); }
};

// In the order of the record's fields; empty for a model that is predicted and trained as its
// configuration says. Requires a plan with a sequence length.
std::vector<Caveat> caveats_of(const Model& model, const Plan& plan, const StackFacts& facts);

// Their notes.
std::vector<std::string> notes_of(const Model& model, const Plan& plan, const StackFacts& facts);

}  // namespace ballast
