// What changes from step to step by rule: the learning rate, and the loss scale of fp16 training.
//
// Will not do: know the optimizer, or decide that a step overflowed (the trainer tells it).
#pragma once

#include <cstdint>
#include <string>

#include "sim/base/error.h"

namespace ballast {

// Linear warm-up to `peak`, then half a cosine down to `floor` (Loshchilov and Hutter, "SGDR",
// ICLR 2017, eq. 5, one period), then `floor`.
struct LearningRateSchedule {
  double peak = 6e-4;
  double floor = 6e-5;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;  // the rate is `floor` from this step on

  // Rate of step 0, 1, ...: peak * (step+1) / warmup_steps during warm-up, so that no step is lost
  // with rate 0, and peak at step warmup_steps. Requires check(*this).
  double at(int64_t step) const;
};

// Throws Error that names the field: rates finite, 0 <= floor <= peak, 0 <= warm-up <= total.
void check(const LearningRateSchedule& schedule);

// The factor that keeps small fp16 gradients from vanishing (Micikevicius et al., "Mixed precision
// training", ICLR 2018, section 3.2, with the dynamic rule of NVIDIA's Apex and torch GradScaler):
// doubled after `growth_interval` good steps in a row, halved on each overflow, within [1, 2^24].
// The scale is a power of two, so scaling and unscaling are exact.
class LossScale {
 public:
  // Requires initial: a power of two in [1, 2^24]; growth_interval > 0. Throws Error otherwise.
  LossScale(double initial, int64_t growth_interval);
  LossScale() : LossScale(65536.0, 2000) {}

  double value() const { return value_; }
  int64_t good_steps() const { return good_steps_; }  // since the last change
  int64_t skipped_steps() const { return skipped_; }  // overflows since the beginning

  void step_was_good();
  void step_overflowed();

  // The whole state as one line, and back exactly. parse throws Error; where: file and key.
  std::string to_text() const;
  static LossScale parse(const std::string& text, const std::string& where);

  bool operator==(const LossScale&) const = default;

 private:
  double value_;
  int64_t growth_interval_;
  int64_t good_steps_ = 0;
  int64_t skipped_ = 0;
};

}  // namespace ballast
