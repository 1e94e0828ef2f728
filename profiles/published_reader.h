// The parts of a published case, read: its model, its run, and what was measured.
//
// Only sources of this folder include this header.
// Will not do: know files or lists of cases (published.cpp).
#pragma once

#include <string>

#include "profiles/json_reader.h"
#include "profiles/published.h"

namespace ballast {

// Fills in of.model, of.attention. `id` becomes the model's name.
void read_model(JsonReader reader, PublishedCase& published);
// Fills in of.plan, of.facts and what else a run says. `source` names the run in messages.
void read_run(JsonReader reader, PublishedCase& published, const std::string& source);
// Fills in of.measured and how it was counted.
void read_measured(JsonReader reader, PublishedCase& published);

}  // namespace ballast
