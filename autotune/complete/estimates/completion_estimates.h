// Estimates: what ways of filling in a setting need and take, told from steps of few micro-batches.
//
// In a longer step the micro-batches repeat: they need the same memory, and each adds the same time
// again. What a completion needs and takes is remembered, for the same completions are asked about
// on machines whose memories differ, and first whether they fit, then how fast they are. Will not
// do: choose (autotune/complete/complete.h), or look at what was measured.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "autotune/calibrate/published_cases.h"
#include "autotune/complete/estimates/completion_promises.h"
#include "autotune/complete/setting.h"
#include "sim/engine/predict.h"
#include "sim/graph/report/memory.h"

namespace ballast {

class LayerProfiles;

// A plan and what its step takes, by an estimate.
struct TimedPlan {
  Plan plan;
  Duration step_time;
};

// Whether two threads time its step, where they are free: it is told from two short ones.
bool is_timed_by_two(const Completion& completion);

// Of one model, one stack and machines whose rates are the same. May be called from several
// threads.
class CompletionEstimates {
 public:
  CompletionEstimates();
  ~CompletionEstimates();

  // From now on no graph is built any more once this says so: whoever asks gets an Error instead.
  void stop_when(std::function<bool()> interrupted) { interrupted_ = std::move(interrupted); }
  const std::function<bool()>& interrupted() const { return interrupted_; }  // may be null
  // Throws Error once it is.
  void refuse_if_interrupted() const;

  // What each place of a device must hold. Throws Error where the graph knows no such plan.
  std::vector<PlacePeak> peaks(const Setting& setting, const Completion& completion);

  // Bytes of the GPU that it needs beyond what is usable, negative where there is room; of one that
  // lacks some perhaps less than it lacks.
  Bytes gpu_excess(const Setting& setting, const Completion& completion);

  // The same, where it is known without a graph.
  std::optional<Bytes> known_gpu_excess(const Setting& setting, const Completion& completion) const;

  // In ascending order, the numbers of buckets on the GPU with which the needs of a completion that
  // differs in nothing else are known already, between two.
  std::vector<int64_t> known_gpu_buckets(const Setting& setting, const Completion& completion,
                                         int64_t above, int64_t below) const;

  // Of the whole step: from two short ones, or exact where it has few micro-batches or where what
  // the optimizer does lies beside many of them. Nothing where its memory does not fit.
  std::optional<Duration> step_time_if_fits(const Setting& setting, const Completion& completion);

  // Asks for that, beside the caller where a thread is free, so that it is known when the future
  // ends. All references must outlive the future.
  std::future<void> begin_timing(const Setting& setting, const Completion& completion);

  // Layers that are profiled, by the costs of such a plan, for bounds of layouts that begin with
  // it, whatever the batch, the micro-batch and the length. For one thread at a time.
  LayerProfiles& layers_of(const Setting& setting, const Plan& start);

  // What the steps that were timed promise of others.
  const CompletionPromises& promises() const { return promises_; }

 private:
  class Known;
  struct BuiltStep;
  struct ProfiledLayers;
  std::vector<PlacePeak> remember(const Completion& few, Prediction memory);
  std::vector<BuiltStep> fitting_steps(const Setting& setting, const Completion& completion,
                                       const Completion& few, const Stack& stack,
                                       const CostModel& costs);
  TimedStep time_of_whole(const Setting& setting, const Plan& plan, const Stack& stack,
                          const CostModel& costs, std::vector<BuiltStep>& built);

  std::unique_ptr<Known> known_;
  std::vector<std::unique_ptr<ProfiledLayers>> layers_;
  CompletionPromises promises_;
  std::atomic<int> timing_{0};  // whole steps, by this many threads
  std::function<bool()> interrupted_;
};

}  // namespace ballast
