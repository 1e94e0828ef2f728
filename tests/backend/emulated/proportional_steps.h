// Options of a training that tells gradients apart by its parameters.
#pragma once

#include "tests/backend/tiny_training.h"

namespace ballast::tiny {

// SGD-like: with a large epsilon Adam's step is proportional to the gradient, so parameters tell
// gradients apart, which a step of Adam's usual sign would not.
inline TrainerOptions proportional_steps() {
  TrainerOptions options = options_for(10);
  options.optimizer.learning_rate = {3, 3, 0, 10};
  options.optimizer.epsilon = 10;
  options.optimizer.weight_decay = 0;
  options.optimizer.clip_norm = 0;
  return options;
}

}  // namespace ballast::tiny
