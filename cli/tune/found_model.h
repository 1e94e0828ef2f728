// The answer of a search for a size, as files that other verbs take: the plan, and beside it the
// config.json of its model where no shipped or named one is that large.
//
// Will not do: search, or change what was found.
#pragma once

#include <string>
#include <vector>

#include "cli/flags/inputs.h"

namespace ballast {

struct FoundFiles {
  std::string plan;
  std::string model;    // empty: the plan's own name says it
  std::string predict;  // the command that predicts what was found
};

// Where the plan goes, and the flags by which it was found and is predicted again.
struct FoundBy {
  std::string plan_file;
  std::vector<std::string> set;
  StoreFlag store;
  StackFlag stack{};
};

// Names the model's file in of.plan, and writes both. The folder is that of the plan; a plan that
// goes to no file (a pipe) has its model in the current folder.
FoundFiles write_found(Setting& setting, const FoundBy& by);

// "wrote plan.json and gpt-1.3b.json\nask what it does with ballast predict ...\n"
std::string text_of(const FoundFiles& files);

}  // namespace ballast
