// Running plans on the machine at hand: what train, verify and tune share.
//
// Will not do: train (backend/trainer), or choose plans (autotune).
#pragma once

#include <string>

#include "backend/trainer.h"
#include "cli/inputs.h"

namespace ballast {

// The flags of a training run.
struct TrainingFlags {
  std::string data;
  uint64_t seed = 1;
  double learning_rate = 1e-3;
  int64_t warmup_steps = 20;
  double clip_norm = 1.0;
  double weight_decay = 0.1;
  std::optional<std::string> import_file;
};
void add_training_flags(VerbParser& parser, TrainingFlags& flags);

// `steps`: length of the learning-rate schedule.
TrainerOptions trainer_options(const TrainingFlags& flags, const Machine& machine, int64_t steps);

// The one case of `flags`, for this machine; "here" is the default. Throws Error for others.
Case load_case_here(PlanFlags flags, const StoreFlag& store);

// Whether every operation of the plan's graph has been timed.
bool is_measured(const Case& of, const Measurements& measurements);
// Times the plan's operations, appends them to the store and to `measurements`.
void measure_plan(const Case& of, double seconds, const StoreFlag& store,
                  Measurements& measurements);

}  // namespace ballast
