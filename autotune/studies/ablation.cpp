#include "autotune/studies/ablation.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>

#include "autotune/studies/explain.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

void copy_layout(Plan& to, const Plan& from) {
  to.data = from.data;
  to.tensor = from.tensor;
  to.pipeline = from.pipeline;
  to.virtual_pipeline = from.virtual_pipeline;
  to.sequence = from.sequence;
  to.context = from.context;
  to.expert = from.expert;
  to.tensor_sequence = from.tensor_sequence;
  to.zero_stage = from.zero_stage;
  to.numa = from.numa;
}
void copy_placement(Plan& to, const Plan& from) {
  to.optimizer.placement = from.optimizer.placement;
  to.optimizer.stream_share = from.optimizer.stream_share;
  to.optimizer.moments = from.optimizer.moments;
}
void copy_sync(Plan& to, const Plan& from) {
  to.optimizer.sync = from.optimizer.sync;
  to.optimizer.undo = from.optimizer.undo;
}

struct Knob {
  const char* name;
  std::string (*text)(const Plan& plan);
  void (*copy)(Plan& to, const Plan& from);
};

// The text that explain gives a knob.
template <int kIndex>
std::string text_at(const Plan& plan) {
  return knob_texts(plan)[static_cast<size_t>(kIndex)].second;
}
std::string sync_text(const Plan& plan) {
  const std::string sync(to_string(plan.optimizer.sync));
  if (plan.optimizer.sync != SyncMode::kSpeculate) return sync;
  return fmt::format("{}, undone by {}", sync, to_string(plan.optimizer.undo));
}

constexpr std::array<Knob, 10> kKnobs = {{
    {"layout", text_at<0>, copy_layout},
    {"optimizer.placement", text_at<1>, copy_placement},
    {"micro_batch", text_at<2>,
     [](Plan& to, const Plan& from) { to.micro_batch = from.micro_batch; }},
    {"activations", text_at<3>,
     [](Plan& to, const Plan& from) { to.activations = from.activations; }},
    {"optimizer.bucket_bytes", text_at<4>,
     [](Plan& to, const Plan& from) { to.optimizer.bucket_bytes = from.optimizer.bucket_bytes; }},
    {"optimizer.gpu_buckets", text_at<5>,
     [](Plan& to, const Plan& from) { to.optimizer.gpu_buckets = from.optimizer.gpu_buckets; }},
    {"optimizer.cast", text_at<6>,
     [](Plan& to, const Plan& from) { to.optimizer.cast = from.optimizer.cast; }},
    {"optimizer.sync", sync_text, copy_sync},
    {"weights.flow_share", text_at<9>,
     [](Plan& to, const Plan& from) { to.weights = from.weights; }},
    {"memory_reuse", text_at<10>,
     [](Plan& to, const Plan& from) { to.memory_reuse = from.memory_reuse; }},
}};
constexpr size_t kGpuBuckets = 5;

using Taken = std::array<bool, kKnobs.size()>;

// The start with the knobs that are taken from the best.
Plan mixture(const AblationEnds& ends, const Taken& taken) {
  if (std::all_of(taken.begin(), taken.end(), [](bool each) { return each; })) return ends.best;
  Plan plan = ends.start;
  for (size_t i = 0; i < kKnobs.size(); ++i) {
    if (taken[i]) kKnobs[i].copy(plan, ends.best);
  }
  // As many bytes on the GPU as where the count comes from.
  const OptimizerPlan& counted = (taken[kGpuBuckets] ? ends.best : ends.start).optimizer;
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

}  // namespace

Ablation ablate(const AblationEnds& ends, const StepTime& step_time,
                const std::function<bool()>& interrupted) {
  const auto must_stop = [&] { return interrupted && interrupted(); };
  Taken taken{};
  size_t left = 0;
  for (size_t i = 0; i < kKnobs.size(); ++i) {
    taken[i] = kKnobs[i].text(ends.start) == kKnobs[i].text(ends.best);
    left += !taken[i];
  }
  Ablation result;
  result.start = time_of(ends.start, step_time);
  std::optional<Duration> now = result.start;
  for (; left > 0; --left) {
    std::optional<Move> next;
    for (size_t i = 0; i < kKnobs.size(); ++i) {
      if (taken[i]) continue;
      if (must_stop()) {
        result.whole = false;
        return result;
      }
      Taken with = taken;
      with[i] = true;
      const Move move{i, time_of(mixture(ends, with), step_time)};
      if (!next || is_faster(move, *next)) next = move;
    }
    taken[next->knob] = true;
    const Knob& knob = kKnobs[next->knob];
    AblationStep step{knob.name, knob.text(ends.start), knob.text(ends.best), next->time, {}};
    if (now && next->time) step.gain = *now - *next->time;
    now = next->time;
    result.steps.push_back(std::move(step));
  }
  return result;
}

}  // namespace ballast
