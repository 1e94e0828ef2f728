#include "backend/train/finite_watch.h"

#include <cmath>
#include <fmt/format.h>

namespace ballast {

namespace {

// Without the sign that a processor gives to a number that is none.
std::string text_of(double value) {
  return std::isnan(value) ? "nan" : fmt::format("{:.4g}", value);
}

}  // namespace

void FiniteWatch::add(const StepRecord& record) {
  const bool scale_can_fall = record.loss_scale > 1;
  const bool finite =
      std::isfinite(record.loss) && (std::isfinite(record.gradient_norm) || scale_can_fall);
  if (finite) {
    steps_ = 0;
    return;
  }
  if (++steps_ == 1) {
    first_ = {record.step, fmt::format("loss {}, gradient norm {}", text_of(record.loss),
                                       text_of(record.gradient_norm))};
  }
  if (steps_ == kMostSteps) give_up();
}

void FiniteWatch::state_broke(int32_t step, const std::string& tensor) {
  if (steps_ == 0) first_ = {step, tensor + " has values that are not finite"};
  give_up();
}

void FiniteWatch::give_up() {
  if (!divergence_) divergence_ = first_;
}

}  // namespace ballast
