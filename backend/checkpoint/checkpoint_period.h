// How often to keep a checkpoint, by what each was measured to cost: as often as a bound on the
// slow-down allows.
//
// CheckFreq (Mohan, Phanishayee and Chidambaram, "CheckFreq: Frequent, Fine-Grained DNN
// Checkpointing", FAST 2021, section 4.4; msr-fiddle/CheckFreq, src/cf_iterator.py,
// _complete_profile): the first steps are timed without a checkpoint; then the period is the least
// number of steps in which a write ends and two pass undisturbed, and over which what a checkpoint
// costs stays within the bound. What it costs is measured on, and the period follows it.
//
// A checkpoint costs the rest, the draining of the lanes before it, their filling after it, and
// what steps take longer beside its write. A step that repairs the one before it is long of itself,
// so steps are compared with undisturbed ones of their kind.
//
// Will not do: read a clock, or write (backend/train/trainer).
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace ballast {

class CheckpointPeriod {
 public:
  // So many steps are timed before the first checkpoint, the first of them, in which memory is
  // touched for the first time, not counted.
  static constexpr int64_t kProfiledSteps = 8;

  // bound: share of the time of the steps that checkpoints may cost, above 0. Without one the
  // period is `given`, and what checkpoints cost is only measured.
  explicit CheckpointPeriod(std::optional<double> bound, int64_t given = 0);

  struct Step {
    double seconds = 0;
    bool beside_write = false;  // a checkpoint was being written during all or part of it
    bool first = false;         // of a run: lanes begin empty
    bool repairs = false;       // the step before, which was rolled back
  };
  // Of a run: its steps, and the seconds from the end of its last one until the lanes were empty
  // and the state was final.
  void add(const std::vector<Step>& steps, double drained_seconds = 0);
  // After the steps that came before it: training rested for `rest_seconds`.
  void add_checkpoint(double rest_seconds);
  // One was on disk so many seconds after its snapshot.
  void add_written(double seconds);

  // From the checkpoint before to the next, in steps, or to the first one.
  int64_t steps() const;
  // Of a step that nothing disturbs: the mean of the last ones, whatever their kind. 0 before any
  // was seen.
  double undisturbed_step() const;
  // From a checkpoint's snapshot until it was on disk, seconds: the median of the last; 0 before.
  double written() const;
  // What a checkpoint costs, seconds: the median of the last. 0 before there was one.
  double cost() const;
  // What all checkpoints so far have cost, as a share of what the steps would have taken without.
  double measured_overhead() const;

 private:
  struct Undisturbed {
    double seconds = 0;
    bool repairs = false;
  };
  double latest() const;  // what the checkpoint that came last has cost so far
  // Of undisturbed steps of that kind, or of all; 0 where there are none.
  double mean_of(std::optional<bool> repairs) const;
  // Of an undisturbed step of that kind; of any where none of that kind was seen.
  double expected(bool repairs) const;

  std::optional<double> bound_;
  int64_t given_;
  std::deque<Undisturbed> undisturbed_;
  std::deque<double> costs_;    // of past checkpoints
  std::deque<double> written_;  // seconds
  double latest_rest_ = 0;      // of the checkpoint that came last
  double latest_stretch_ = 0;   // what the steps after it took longer so far
  double drained_ = 0;          // since then, seconds: of the checkpoint that comes next
  bool any_ = false;            // checkpoint
  int64_t count_ = 0;           // of steps
  double rested_ = 0;           // all of it with the draining before, seconds
  double alone_ = 0;            // what all steps would have taken, seconds
  double stretched_ = 0;        // what disturbed steps took longer, seconds
};

}  // namespace ballast
