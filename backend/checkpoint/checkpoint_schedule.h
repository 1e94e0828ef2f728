// When a training keeps a checkpoint, and its writing beside the steps: one write at a time, on a
// thread of its own, of a copy that was taken while training rested.
//
// Where a period is given the next checkpoint is taken when it is due, and training waits for a
// write that is not over yet; where the period is chosen by what checkpoints cost, a checkpoint
// that meets a write is put off instead. Both are told of (Report).
// Of several ranks every one has a schedule, calls alike and writes; the first one decides.
// Will not do: take a copy or write a file (backend/train/checkpoint): it is handed what does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "backend/checkpoint/background_write.h"
#include "backend/checkpoint/checkpoint_period.h"
#include "backend/comm/communicator.h"
#include "backend/execute/executor.h"

namespace ballast {

class CheckpointSchedule {
 public:
  struct Options {
    int64_t period_steps = 0;        // 0: none is kept but at the end
    std::optional<double> overhead;  // share of the steps' time: chooses the period instead
    bool in_background = true;       // else training rests until a checkpoint is on disk
  };
  // ranks: null where this one is alone. Throws Error where no thread can be started.
  CheckpointSchedule(const Options& options, Communicator* ranks, const HostClock& clock);

  // Whether any checkpoint is kept before the end.
  bool keeps_any() const { return options_.overhead || options_.period_steps > 0; }
  bool in_background() const { return options_.in_background; }
  // How many a run of the steps from `next_step` to `steps` keeps at most, the one at its end among
  // them.
  int64_t most_until(int64_t next_step, int64_t steps) const;

  // The step after which the run from `next_step` on is to end, so that a checkpoint may be taken.
  int64_t boundary(int64_t next_step);
  // Of the run between these times: how long its steps took, and which of them were rolled back.
  void add(const RunResult& run, const std::set<int32_t>& rolled_back,
           std::chrono::nanoseconds began, std::chrono::nanoseconds ended);
  bool is_due(int64_t next_step);
  // Takes a checkpoint: `take` makes the copy, while training rests, and returns why it is none;
  // `write` puts it down. Rethrows what the write before threw.
  std::optional<std::string> keep(const std::function<std::optional<std::string>()>& take,
                                  std::function<void()> write);
  // The write under way, or the last one, has thrown.
  bool has_failed() const { return write_ && write_->has_failed(); }
  // Returns once nothing is being written. Rethrows what the last write threw.
  void wait();

  struct Report {
    int64_t kept = 0;             // before the end
    int64_t period_steps = 0;     // the last one
    int64_t put_off = 0;          // times that one was due beside a write, and put off
    double resting_seconds = 0;   // all of it
    double waiting_seconds = 0;   // of it: for the write before
    double writing_seconds = 0;   // of one, the median
    double undisturbed_step = 0;  // seconds; 0 where too few steps ran
    double overhead = 0;          // share of the steps' time that they cost
  };
  Report report() const;

 private:
  int64_t told(int64_t value) const;  // the first rank's
  void note_written();
  double seconds_since(std::chrono::nanoseconds begin) const;

  Options options_;
  Communicator* ranks_;
  const HostClock& clock_;
  CheckpointPeriod period_;
  int64_t boundary_ = 0;
  bool is_noted_ = true;            // how long the last write took
  bool ended_rolled_back_ = false;  // the last step of the run before
  Report report_;
  std::unique_ptr<BackgroundWrite> write_;  // where there is any in the background
};

}  // namespace ballast
