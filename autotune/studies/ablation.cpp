#include "autotune/studies/ablation.h"

#include <algorithm>
#include <fmt/format.h>

#include "autotune/studies/studied_knobs.h"
#include "sim/base/error.h"
#include "sim/base/stop.h"

namespace ballast {
namespace {

std::string sync_text(const Plan& plan) {
  const std::string sync(to_string(plan.optimizer.sync));
  if (plan.optimizer.sync != SyncMode::kSpeculate) return sync;
  return fmt::format("{}, undone by {}", sync, to_string(plan.optimizer.undo));
}

// How a step is undone changes with the way it is synchronised.
std::vector<StudiedKnob> steps_of_table() {
  std::vector<StudiedKnob> steps = studied_knobs();
  const std::string_view undo = knob_of(KnobId::kUndo).path;
  std::erase_if(steps, [&](const StudiedKnob& step) { return step.name == undo; });
  for (StudiedKnob& step : steps) {
    if (!step.knobs.has(KnobId::kSync)) continue;
    step.knobs.add(KnobId::kUndo);
    step.special = sync_text;
  }
  return steps;
}
const std::vector<StudiedKnob>& steps() {
  static const std::vector<StudiedKnob> all = steps_of_table();
  return all;
}

using Taken = std::vector<bool>;  // by step

// The start with the knobs that are taken from the best.
Plan mixture(const AblationEnds& ends, const Taken& taken) {
  if (std::all_of(taken.begin(), taken.end(), [](bool each) { return each; })) return ends.best;
  Plan plan = ends.start;
  bool counts_as_best = false;
  for (size_t i = 0; i < taken.size(); ++i) {
    if (!taken[i]) continue;
    copy_knobs(plan, ends.best, steps()[i].knobs);
    counts_as_best = counts_as_best || steps()[i].knobs.has(KnobId::kGpuBuckets);
  }
  // As many bytes on the GPU as where the count comes from.
  const OptimizerPlan& counted = (counts_as_best ? ends.best : ends.start).optimizer;
  plan.optimizer.gpu_buckets =
      *counted.gpu_buckets * counted.bucket_bytes.count / plan.optimizer.bucket_bytes.count;
  return plan;
}

// One that is not legal has none, as one that does not fit.
std::optional<Duration> time_of(const Plan& plan, const StepTime& step_time) {
  try {
    return step_time(plan);
  } catch (const Error&) {
    return std::nullopt;
  }
}

struct Move {
  size_t knob = 0;
  std::optional<Duration> time;
};

// A plan with a time is ahead of one without; of equals the first knob.
bool is_faster(const Move& one, const Move& other) {
  if (!one.time) return false;
  return !other.time || *one.time < *other.time;
}

// What is in `result` counts also where it is stopped.
void run(const AblationEnds& ends, const StepTime& step_time, Ablation& result) {
  Taken taken;
  size_t left = 0;
  for (const StudiedKnob& step : steps()) {
    taken.push_back(step.text(ends.start) == step.text(ends.best));
    left += !taken.back();
  }
  result.start = time_of(ends.start, step_time);
  std::optional<Duration> now = result.start;
  for (; left > 0; --left) {
    std::optional<Move> next;
    for (size_t i = 0; i < taken.size(); ++i) {
      if (taken[i]) continue;
      stop_point();
      Taken with = taken;
      with[i] = true;
      const Move move{i, time_of(mixture(ends, with), step_time)};
      if (!next || is_faster(move, *next)) next = move;
    }
    taken[next->knob] = true;
    const StudiedKnob& knob = steps()[next->knob];
    AblationStep step{
        std::string(knob.name), knob.text(ends.start), knob.text(ends.best), next->time, {}};
    if (now && next->time) step.gain = *now - *next->time;
    now = next->time;
    result.steps.push_back(std::move(step));
  }
}

}  // namespace

Ablation ablate(const AblationEnds& ends, const StepTime& step_time,
                const std::function<bool()>& interrupted) {
  Ablation result;
  const auto whole = unless_stopped(interrupted, [&] {
    run(ends, step_time, result);
    return true;
  });
  result.whole = whole.has_value();
  return result;
}

}  // namespace ballast
