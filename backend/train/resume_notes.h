// What a run is continued with that is not what it was begun with: said, so that nobody wonders.
//
// Will not do: refuse (trainer: only another model is refused), or print (cli).
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "backend/train/checkpoint.h"
#include "backend/train/trainer.h"

namespace ballast {

// A number of the optimizer that a checkpoint records.
struct OptimizerSetting {
  const char* key;   // in the checkpoint's metadata
  const char* flag;  // of `ballast train`
  double (*get)(const OptimizerOptions&);
  void (*set)(OptimizerOptions&, double);
};
std::span<const OptimizerSetting> optimizer_settings();

// The knobs of a plan that change what a step learns, and their values; the others change only what
// it takes.
std::map<std::string, std::string> learning_knobs(const Plan& plan);

// One line each: other data, other knobs of those, other numbers of the optimizer.
std::vector<std::string> changes_since(const CheckpointHeader& then, const CheckpointHeader& now);

// The same, and what of its options a run that goes on does not use.
std::vector<std::string> notes_of_resumed(const CheckpointHeader& then, const CheckpointHeader& now,
                                          const TrainerOptions& options);

// The first line in which two records of a model differ, as "there LINE, here LINE"; empty where
// they are equal or one is not known.
std::string first_difference(const std::string& there, const std::string& here);

}  // namespace ballast
