// Whether a training still computes numbers: a run whose loss or gradients stay without a finite
// value does nothing more but take time.
//
// Will not do: end the run (trainer).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "backend/execute/update_control.h"

namespace ballast {

// What ended a run early.
struct Divergence {
  int32_t step = 0;  // the first that was not finite, counted from 0
  std::string what;  // "loss nan, gradient norm inf"
};

class FiniteWatch {
 public:
  // So many steps running are no accident of one batch.
  static constexpr int32_t kMostSteps = 3;

  // In the order of the steps. An overflow under a loss scale that can still fall is how fp16
  // finds its scale, and counts as finite.
  void add(const StepRecord& record);
  // The state itself, after the steps before `step`, has a value that is not finite.
  void state_broke(int32_t step, const std::string& tensor);
  // What follows the last steps is known not to be finite either.
  void give_up();

  bool last_was_finite() const { return steps_ == 0; }
  const std::optional<Divergence>& divergence() const { return divergence_; }

 private:
  int32_t steps_ = 0;  // not finite, up to the last one
  Divergence first_;   // of them
  std::optional<Divergence> divergence_;
};

}  // namespace ballast
