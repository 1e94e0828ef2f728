#include "backend/train/training_schedule.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numbers>
#include <sstream>

namespace ballast {
namespace {

constexpr double kMaxScale = 16777216.0;  // 2^24

bool is_scale(int64_t value) {
  return value >= 1 && value <= static_cast<int64_t>(kMaxScale) && (value & (value - 1)) == 0;
}

}  // namespace

double LearningRateSchedule::at(int64_t step) const {
  CHECK(step >= 0);
  if (step < warmup_steps) {
    return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  }
  if (step >= total_steps) return floor;
  const double progress =
      static_cast<double>(step - warmup_steps) / static_cast<double>(total_steps - warmup_steps);
  return floor + (peak - floor) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

void check(const LearningRateSchedule& schedule) {
  const auto require = [](bool condition, const char* field, const char* what, const char* remedy) {
    if (!condition) throw Error(std::string("learning rate schedule: ") + field, what, remedy);
  };
  require(std::isfinite(schedule.peak) && schedule.peak > 0, "peak", "not a positive number",
          "use for instance 6e-4");
  require(std::isfinite(schedule.floor) && schedule.floor >= 0 && schedule.floor <= schedule.peak,
          "floor", "not between 0 and the peak", "use for instance a tenth of the peak");
  require(schedule.total_steps > 0, "total_steps", "not positive", "use the number of steps");
  require(schedule.warmup_steps >= 0 && schedule.warmup_steps <= schedule.total_steps,
          "warmup_steps", "not between 0 and the number of steps", "use fewer warm-up steps");
}

LossScale::LossScale(double initial, int64_t growth_interval)
    : value_(initial), growth_interval_(growth_interval) {
  const bool whole = initial >= 1 && initial <= kMaxScale && initial == std::floor(initial);
  if (!whole || !is_scale(static_cast<int64_t>(initial))) {
    throw Error("loss scale", "not a power of two between 1 and 2^24", "use for instance 65536");
  }
  if (growth_interval <= 0) {
    throw Error("loss scale", "the growth interval is not positive", "use for instance 2000");
  }
}

void LossScale::step_was_good() {
  if (++good_steps_ < growth_interval_) return;
  good_steps_ = 0;
  value_ = std::min(value_ * 2, kMaxScale);
}

void LossScale::step_overflowed() {
  ++skipped_;
  good_steps_ = 0;
  value_ = std::max(value_ / 2, 1.0);
}

std::string LossScale::to_text() const {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text << static_cast<int64_t>(value_) << ' ' << growth_interval_ << ' ' << good_steps_ << ' '
       << skipped_;
  return text.str();
}

LossScale LossScale::parse(const std::string& text, const std::string& where) {
  std::array<int64_t, 4> numbers = {};
  const char* at = text.data();
  const char* const end = at + text.size();
  bool good = true;
  for (size_t i = 0; i < numbers.size() && good; ++i) {
    if (i > 0) good = at != end && *at++ == ' ';
    const auto [next, code] = std::from_chars(at, end, numbers[i]);
    good = good && code == std::errc() && numbers[i] >= 0;
    at = next;
  }
  const auto& [scale, interval, good_steps, skipped] = numbers;
  if (!good || at != end || !is_scale(scale) || interval == 0 || good_steps >= interval) {
    throw Error(where, "not a loss scale state: \"" + text + "\"",
                "the checkpoint is damaged; use an earlier one");
  }
  LossScale result(static_cast<double>(scale), interval);
  result.good_steps_ = good_steps;
  result.skipped_ = skipped;
  return result;
}

}  // namespace ballast
