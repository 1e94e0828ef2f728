#include "backend/checkpoint/checkpoint_schedule.h"

#include <algorithm>
#include <vector>

namespace ballast {

namespace {

// One that meets a write is tried again after such a part of the period.
constexpr int64_t kPutOffShare = 8;

using Seconds = std::chrono::duration<double>;

}  // namespace

CheckpointSchedule::CheckpointSchedule(const Options& options, Communicator* ranks,
                                       const HostClock& clock)
    : options_(options),
      ranks_(ranks),
      clock_(clock),
      period_(options.overhead, options.period_steps) {
  if (keeps_any() && options.in_background) write_ = std::make_unique<BackgroundWrite>(clock);
}

double CheckpointSchedule::seconds_since(std::chrono::nanoseconds begin) const {
  return Seconds(clock_.now() - begin).count();
}

int64_t CheckpointSchedule::told(int64_t value) const {
  return ranks_ == nullptr ? value : std::stoll(told_by_first(*ranks_, std::to_string(value)));
}

int64_t CheckpointSchedule::boundary(int64_t next_step) {
  if (!options_.overhead) return (next_step / options_.period_steps + 1) * options_.period_steps;
  if (boundary_ <= next_step) boundary_ = next_step + told(period_.steps());
  return boundary_;
}

int64_t CheckpointSchedule::most_until(int64_t next_step, int64_t steps) const {
  if (next_step >= steps) return 0;
  if (!keeps_any()) return 1;
  const int64_t period = options_.overhead ? 1 : options_.period_steps;
  return (steps - 1) / period - next_step / period + 1;
}

void CheckpointSchedule::add(const RunResult& run, const std::set<int32_t>& rolled_back,
                             std::chrono::nanoseconds began, std::chrono::nanoseconds ended) {
  if (!keeps_any()) return;
  const bool wrote = write_ && !is_noted_;
  const std::chrono::nanoseconds written = wrote ? write_->times().end : began;
  std::vector<CheckpointPeriod::Step> steps;
  std::chrono::nanoseconds at = began;
  auto step = run.last_step - static_cast<int32_t>(run.step_times.size()) + 1;
  for (const Duration time : run.step_times) {
    // The last step of the run before was repaired as that run ended; without an end, this one
    // would have done it.
    const bool repairs = rolled_back.contains(step - 1) || (steps.empty() && ended_rolled_back_);
    steps.push_back({time.seconds(), at < written, steps.empty(), repairs});
    at += std::chrono::duration_cast<std::chrono::nanoseconds>(Seconds(time.seconds()));
    ++step;
  }
  ended_rolled_back_ = rolled_back.contains(run.last_step);
  period_.add(steps, std::max(Seconds(ended - at).count(), 0.0));
  note_written();
}

void CheckpointSchedule::note_written() {
  if (!write_ || is_noted_ || write_->is_under_way()) return;
  const BackgroundWrite::Times times = write_->times();
  period_.add_written(Seconds(times.end - times.begin).count());
  is_noted_ = true;
}

bool CheckpointSchedule::is_due(int64_t next_step) {
  if (!keeps_any()) return false;
  if (!options_.overhead) return next_step % options_.period_steps == 0;
  if (next_step < boundary_) return false;
  if (told(write_ && write_->is_under_way() ? 1 : 0) == 0) return true;
  ++report_.put_off;
  boundary_ = next_step + std::max<int64_t>(told(period_.steps()) / kPutOffShare, 1);
  return false;
}

std::optional<std::string> CheckpointSchedule::keep(
    const std::function<std::optional<std::string>()>& take, std::function<void()> write) {
  const std::chrono::nanoseconds begin = clock_.now();
  wait();
  if (write_) report_.waiting_seconds += seconds_since(begin);
  if (auto why = take()) return why;
  if (write_) {
    write_->begin(std::move(write));
    is_noted_ = false;
  } else {
    write();
  }
  ++report_.kept;
  const double rested = seconds_since(begin);
  report_.resting_seconds += rested;
  period_.add_checkpoint(rested);
  return std::nullopt;
}

void CheckpointSchedule::wait() {
  if (!write_) return;
  write_->wait();
  note_written();
}

CheckpointSchedule::Report CheckpointSchedule::report() const {
  Report report = report_;
  report.period_steps = period_.steps();
  report.writing_seconds = period_.written();
  report.undisturbed_step = period_.undisturbed_step();
  report.overhead = period_.measured_overhead();
  return report;
}

}  // namespace ballast
