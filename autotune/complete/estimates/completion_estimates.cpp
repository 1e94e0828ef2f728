#include "autotune/complete/estimates/completion_estimates.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "autotune/bounds/layer_costs.h"
#include "autotune/search/evaluate.h"
#include "sim/base/error.h"
#include "sim/base/parallel.h"
#include "sim/base/stop.h"
#include "sim/engine/predict.h"
#include "sim/engine/repetition.h"
#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"
#include "sim/graph/core/stages.h"
#include "sim/graph/same_graph.h"
#include "sim/graph/schedules/pipeline.h"

namespace ballast {
namespace {

// Micro-batches of the shorter of two steps, and how many more the longer one has. Those of a
// pipeline fill it; where a stage has several chunks they come in rounds of its stages, of which
// the longer step has two: as many are under way at once, which memory shows.
struct ShortSteps {
  int64_t first = 2;
  int64_t more = 2;
};

ShortSteps short_steps(const Plan& plan) {
  if (plan.pipeline == 1) return {};
  if (plan.virtual_pipeline > 1) return {plan.pipeline, plan.pipeline};
  return {plan.pipeline, 4};
}

Plan with_at_most(const Plan& plan, int64_t micro_batches) {
  return with_micro_batches(plan, std::min(micro_batches, plan.accumulation()));
}

Stack with_attention(Stack stack, AttentionKind attention) {
  stack.facts.attention = {attention};
  return stack;
}

// Of which predict_memory() can be asked: where memory is not planned, addresses take a quarter of
// the time of a graph and say nothing.
Graph graph_of(const Setting& setting, const Plan& plan, const Stack& stack) {
  return stack.memory_is_planned() ? build_placed(setting.model, plan, stack.facts)
                                   : build_unplaced(setting.model, plan, stack.facts);
}

// The fewest micro-batches that show what a longer step needs: the first, the last and one between.
// Planned memory is reused across micro-batches, which takes some more of them to settle.
Plan with_few_micro_batches(const Plan& plan, const Stack& stack) {
  const int64_t settled = stack.memory_is_planned() ? 8 : 3;
  const ShortSteps steps = short_steps(plan);
  const bool in_rounds = plan.virtual_pipeline > 1;
  return with_at_most(plan, std::max(settled, in_rounds ? steps.first + steps.more : steps.first));
}

// Of a stack and a completion, what their estimates are made from, and known by.
struct Asked {
  Stack stack;
  Completion few;  // micro-batches
};

Asked asked_of(const Setting& setting, const Completion& completion) {
  Asked asked{with_attention(setting.stack, completion.attention), completion};
  asked.few.plan = as_built(with_few_micro_batches(completion.plan, asked.stack));
  return asked;
}

// A graph of more operations is let go of before the next one is built, though more is timed so
// than has to be: it takes 100 MB and more.
constexpr size_t kLargeGraph = 100'000;

// Of the steps that tell of a longer one. A pipeline that is spread in so short a step, and folded
// in those that its prediction looks at, is timed in these: as it is predicted, and at less cost.
ShortSteps steps_to_time(const Setting& setting, const Plan& plan, const Stack& stack) {
  ShortSteps steps = short_steps(plan);
  if (plan.pipeline == 1) return steps;
  const std::vector<ShorterSteps> looks = shorter_steps(plan);
  if (looks.empty()) return steps;
  const StackFacts facts = facts_of(stack.facts, plan);
  const auto spread_at = [&](int64_t micro_batches) {
    return is_spread(setting.model, with_at_most(plan, micro_batches), facts);
  };
  const int64_t look = looks.front().micro_batches;
  if (spread_at(steps.first) && !spread_at(look)) steps.first = look;
  return steps;
}

}  // namespace

// What a short step takes.
struct ShortStep {
  TimedStep step;
  // By lane, then by device of its host's thread: what each is busy for. Nothing where turns of a
  // pipeline are one operation each, which are not one lane's alone.
  std::vector<Duration> busy;
};

// A step that was built, or what it takes.
struct CompletionEstimates::BuiltStep {
  Plan plan;
  Graph graph;
  std::optional<ShortStep> timed{};
};

class CompletionEstimates::Known {
 public:
  std::optional<std::vector<PlacePeak>> find(const Completion& completion) const {
    const std::lock_guard lock(mutex_);
    return find_in(all_, completion);
  }
  std::vector<int64_t> gpu_buckets(Completion completion, int64_t above, int64_t below) const {
    const std::lock_guard lock(mutex_);
    std::vector<int64_t> found;
    const auto [begin, end] = all_.equal_range(key_of(completion.plan));
    for (auto it = begin; it != end; ++it) {
      const Completion& known = it->second.first;
      const int64_t buckets = known.plan.optimizer.gpu_buckets.value_or(0);
      if (buckets <= above || buckets >= below) continue;
      completion.plan.optimizer.gpu_buckets = known.plan.optimizer.gpu_buckets;
      if (known == completion) found.push_back(buckets);
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  void keep(const Completion& completion, const std::vector<PlacePeak>& peaks) {
    const std::lock_guard lock(mutex_);
    all_.emplace(key_of(completion.plan), std::pair(completion, peaks));
  }
  std::optional<Duration> time(const Completion& completion) const {
    const std::lock_guard lock(mutex_);
    return find_in(times_, completion);
  }
  // While it lives nobody else estimates a completion of the same few micro-batches: who asks
  // meanwhile waits, and then finds what is known.
  class Turn {
   public:
    Turn(Known& known, Completion few) : known_(known), few_(std::move(few)) {
      std::unique_lock lock(known_.mutex_);
      known_.turn_ends_.wait(lock, [&] {
        const auto& taken = known_.turns_;
        return std::none_of(taken.begin(), taken.end(),
                            [&](const Completion* other) { return *other == few_; });
      });
      known_.turns_.push_back(&few_);
    }
    ~Turn() {
      const std::lock_guard lock(known_.mutex_);
      std::erase(known_.turns_, &few_);
      known_.turn_ends_.notify_all();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Known& known_;
    const Completion few_;
  };

  // Of a shorter step that does not fit, by the completion of few micro-batches.
  std::optional<std::vector<PlacePeak>> find_shorter(const Completion& few) const {
    const std::lock_guard lock(mutex_);
    return find_in(shorter_, few);
  }
  void keep_shorter(const Completion& few, const std::vector<PlacePeak>& peaks) {
    const std::lock_guard lock(mutex_);
    shorter_.emplace(key_of(few.plan), std::pair(few, peaks));
  }
  void keep_time(const Completion& completion, Duration time) {
    const std::lock_guard lock(mutex_);
    times_.emplace(key_of(completion.plan), std::pair(completion, time));
  }

 private:
  // By what most often differs between plans of one setting, but for the buckets on the GPU.
  using Key = std::tuple<std::string, std::array<int64_t, 8>, double>;
  static Key key_of(const Plan& plan) {
    return {plan.strategy,
            {plan.data, plan.tensor, plan.pipeline, plan.sequence, plan.context, plan.expert,
             plan.zero_stage, plan.micro_batch.value_or(0)},
            plan.weights.flow_share.value_or(-1)};
  }

  template <class Value>
  using Memo = std::multimap<Key, std::pair<Completion, Value>>;
  template <class Value>
  static std::optional<Value> find_in(const Memo<Value>& memo, const Completion& completion) {
    const auto [begin, end] = memo.equal_range(key_of(completion.plan));
    for (auto it = begin; it != end; ++it) {
      const auto& [known, value] = it->second;
      if (known == completion) return value;
    }
    return std::nullopt;
  }

  mutable std::mutex mutex_;
  std::condition_variable turn_ends_;
  std::vector<const Completion*> turns_;
  Memo<std::vector<PlacePeak>> all_;      // of few micro-batches
  Memo<std::vector<PlacePeak>> shorter_;  // of fewer still, which do not fit
  Memo<Duration> times_;                  // of whole steps
};

// What layers refer to lives as long as they do.
struct CompletionEstimates::ProfiledLayers {
  ProfiledLayers(const Setting& setting, const Plan& plan)
      : of(setting),
        start(plan),
        costs(of.machine, start, of.stack, nullptr),
        layers(of.model, costs, of.stack.facts) {}

  // Plans that differ in what no cost depends on.
  bool serves(Plan plan) const {
    plan.global_batch = start.global_batch;
    plan.micro_batch = start.micro_batch;
    plan.sequence_length = start.sequence_length;
    return plan == start;
  }

  const Setting of;
  const Plan start;
  const CostModel costs;
  LayerProfiles layers;
};

LayerProfiles& CompletionEstimates::layers_of(const Setting& setting, const Plan& start) {
  const auto found = std::find_if(layers_.begin(), layers_.end(),
                                  [&](const auto& one) { return one->serves(start); });
  if (found != layers_.end()) return (*found)->layers;
  return layers_.emplace_back(std::make_unique<ProfiledLayers>(setting, start))->layers;
}

CompletionEstimates::CompletionEstimates() : known_(std::make_unique<Known>()) {}
CompletionEstimates::~CompletionEstimates() = default;

std::vector<int64_t> CompletionEstimates::known_gpu_buckets(const Setting& setting,
                                                            const Completion& completion,
                                                            int64_t above, int64_t below) const {
  return known_->gpu_buckets(asked_of(setting, completion).few, above, below);
}

std::vector<PlacePeak> CompletionEstimates::peaks(const Setting& setting,
                                                  const Completion& completion) {
  const auto [stack, few] = asked_of(setting, completion);
  const Known::Turn turn(*known_, few);
  if (auto known = known_->find(few)) return *std::move(known);
  refuse_if_interrupted();
  Graph graph = graph_of(setting, few.plan, stack);
  Prediction memory = predict_memory(std::move(graph), few.plan, setting.machine, stack);
  const bool may_reuse_at_once = stack.memory_is_planned() && !few.plan.memory_reuse;
  if (memory.fits || !may_reuse_at_once) return remember(few, std::move(memory));
  // What does not fit is asked about with memory that is reused at once next. To place its tensors
  // anew takes a quarter of the time of the graph.
  graph = std::move(memory.graph);
  std::vector<PlacePeak> peaks = remember(few, std::move(memory));
  Completion reusing = completion;
  reusing.plan.memory_reuse = graph.reuse = MemoryReuse::kAtOnce;
  place(graph);
  const Completion few_reusing = asked_of(setting, reusing).few;
  remember(few_reusing, predict_memory(std::move(graph), few_reusing.plan, setting.machine, stack));
  return peaks;
}

void CompletionEstimates::refuse_if_interrupted() const {
  if (interrupted_ && interrupted_()) throw Error("an estimate", "it was interrupted", "ask again");
}

std::vector<PlacePeak> CompletionEstimates::remember(const Completion& few, Prediction memory) {
  known_->keep(few, memory.peaks);
  return std::move(memory.peaks);
}

namespace {

Bytes excess_of(const std::vector<PlacePeak>& peaks, const Machine& machine) {
  CHECK(peaks.front().place == Place::kHbm);
  return peaks.front().arena - usable(machine, Place::kHbm);
}

}  // namespace

std::optional<Bytes> CompletionEstimates::known_gpu_excess(const Setting& setting,
                                                           const Completion& completion) const {
  const Completion few = asked_of(setting, completion).few;
  if (const auto shorter = known_->find_shorter(few)) {
    if (const Bytes least = excess_of(*shorter, setting.machine); least.count > 0) return least;
  }
  const auto known = known_->find(few);
  if (!known) return std::nullopt;
  return excess_of(*known, setting.machine);
}

Bytes CompletionEstimates::gpu_excess(const Setting& setting, const Completion& completion) {
  if (const std::optional<Bytes> known = known_gpu_excess(setting, completion)) return *known;
  return excess_of(peaks(setting, completion), setting.machine);
}

std::optional<Duration> CompletionEstimates::step_time_if_fits(const Setting& setting,
                                                               const Completion& completion) {
  const auto [stack, few] = asked_of(setting, completion);
  const Completion whole = {as_built(completion.plan), completion.attention};
  const Known::Turn turn(*known_, few);
  const std::optional<std::vector<PlacePeak>> known = known_->find(few);
  if (known && !shortfalls(*known, setting.machine).empty()) return std::nullopt;
  if (known) {
    if (const std::optional<Duration> time = known_->time(whole)) return time;
  }
  const std::optional<std::vector<PlacePeak>> shorter = known_->find_shorter(few);
  if (shorter && !shortfalls(*shorter, setting.machine).empty()) return std::nullopt;
  const CostModel costs(setting.machine, completion.plan, stack, nullptr);
  std::vector<BuiltStep> built;
  refuse_if_interrupted();
  if (!known) {
    built = fitting_steps(setting, whole, few, stack, costs);
    if (built.empty()) return std::nullopt;
  }
  const TimedStep step = time_of_whole(setting, whole.plan, stack, costs, built);
  known_->keep_time(whole, step.time);
  promises_.learn(completion, step);
  return step.time;
}

std::future<void> CompletionEstimates::begin_timing(const Setting& setting,
                                                    const Completion& completion) {
  const bool is_free = timing_.load() + 1 < hardware_threads();
  const auto how = is_free ? std::launch::async : std::launch::deferred;
  return std::async(how, [&, scope = current_stop_scope()] {
    const AskedFor asks(scope);
    try {
      step_time_if_fits(setting, completion);
    } catch (const Error&) {
      // Whoever asks next is told.
    }
  });
}

namespace {

ShortStep link_and_time(Graph graph, const Plan& plan, const CostModel& costs) {
  link(graph);
  const CostTable table = costs_of(graph, costs);
  ShortStep timed{{step_time_of(graph, plan, table), {}, {}}, {}};
  if (!graph.blocks.empty()) return timed;
  TimedStep& step = timed.step;
  const auto lanes = static_cast<size_t>(graph.lanes);
  timed.busy.resize(lanes + static_cast<size_t>(devices_of(graph)));
  std::vector<Duration> bucket(graph.buckets.size());
  for (size_t i = 0; i < graph.step.ops.size(); ++i) {
    const Op& op = graph.step.ops[i];
    const Duration alone = table.ops[i].alone;
    timed.busy[static_cast<size_t>(op.lane)] += alone;
    timed.busy[lanes + static_cast<size_t>(device_of(op.lane))] += table.ops[i].host;
    if (op.label.bucket < 0 || kind_of(op.lane) == LaneKind::kCompute) continue;
    Duration& own = bucket[static_cast<size_t>(op.label.bucket)];
    own += alone;
    step.bucket = std::max(step.bucket, own);
  }
  for (size_t lane = 0; lane < lanes; ++lane) {
    const bool computes = kind_of(static_cast<LaneId>(lane)) == LaneKind::kCompute;
    if (computes) step.compute = std::max(step.compute, timed.busy[lane]);
  }
  return timed;
}

// Whether a time is told from two short steps.
bool is_told_from_shorter(const Plan& plan) {
  const ShortSteps steps = short_steps(plan);
  return plan.accumulation() > steps.first + steps.more && has_even_middle(plan);
}

}  // namespace

bool is_timed_by_two(const Completion& completion) { return is_told_from_shorter(completion.plan); }

// Steps that were built to see that they fit: those that a time is told from, where the longer one
// shows what memory is needed as well and is not longer by more than one micro-batch. None where it
// does not fit, which the shorter one shows most often, for it needs no more.
std::vector<CompletionEstimates::BuiltStep> CompletionEstimates::fitting_steps(
    const Setting& setting, const Completion& completion, const Completion& few, const Stack& stack,
    const CostModel& costs) {
  const ShortSteps steps = short_steps(completion.plan);
  const Plan timed = with_at_most(completion.plan, steps.first + steps.more);
  const bool serves = !stack.memory_is_planned() && completion.plan.pipeline == 1;
  const Plan& plan = serves ? timed : few.plan;
  const Plan shorter = with_at_most(completion.plan, steps.first);
  std::vector<BuiltStep> built;
  if (serves && shorter != plan) {
    Prediction memory =
        predict_memory(graph_of(setting, shorter, stack), shorter, setting.machine, stack);
    if (!memory.fits) {
      known_->keep_shorter(few, memory.peaks);
      return {};
    }
    built.push_back({shorter, std::move(memory.graph)});
    BuiltStep& step = built.back();
    if (step.graph.step.ops.size() > kLargeGraph && is_told_from_shorter(completion.plan)) {
      step.timed = link_and_time(std::exchange(step.graph, {}), shorter, costs);
    }
  }
  Prediction memory = predict_memory(graph_of(setting, plan, stack), plan, setting.machine, stack);
  built.push_back({plan, std::move(memory.graph)});
  if (!shortfalls(remember(few, std::move(memory)), setting.machine).empty()) return {};
  return built;
}

TimedStep CompletionEstimates::time_of_whole(const Setting& setting, const Plan& plan,
                                             const Stack& stack, const CostModel& costs,
                                             std::vector<BuiltStep>& built) {
  const auto time_of = [&](const Plan& one) {
    const auto found = std::find_if(built.begin(), built.end(),
                                    [&](const BuiltStep& step) { return step.plan == one; });
    if (found == built.end()) return link_and_time(graph_of(setting, one, stack), one, costs);
    if (found->timed) return *found->timed;
    return link_and_time(std::exchange(found->graph, {}), one, costs);
  };
  if (!is_told_from_shorter(plan)) return time_of(plan).step;
  const ShortSteps steps = steps_to_time(setting, plan, stack);
  int64_t longer = steps.first + steps.more;
  // Each takes a graph of its own: side by side as long as a thread is free, for graphs are large.
  const bool alone = timing_.fetch_add(1) + 1 < hardware_threads();
  const std::shared_ptr<void> ends(nullptr, [&](void*) { --timing_; });
  const auto how = alone ? std::launch::async : std::launch::deferred;
  std::future<ShortStep> of_longer = std::async(how, [&, scope = current_stop_scope()] {
    const AskedFor asks(scope);
    return time_of(with_at_most(plan, longer));
  });
  ShortStep first = time_of(with_at_most(plan, steps.first));
  ShortStep second = of_longer.get();
  // A pipeline that is spread in a short step may be folded in a longer one, and then in all that
  // are longer still: the two tell nothing of each other.
  if (first.busy.size() != second.busy.size()) {
    longer = std::min(longer + steps.more, plan.accumulation());
    first = std::exchange(second, time_of(with_at_most(plan, longer)));
  }
  const auto beyond = static_cast<double>(plan.accumulation() - longer);
  const auto lengthened = [&](Duration less, Duration more) {
    const auto each = static_cast<double>(more.ps - less.ps) / static_cast<double>(steps.more);
    return more + Duration{static_cast<int64_t>(each * beyond)};
  };
  TimedStep whole{lengthened(first.step.time, second.step.time),
                  lengthened(first.step.compute, second.step.compute),
                  lengthened(first.step.bucket, second.step.bucket)};
  // In a short step a lane, or the host, may catch up beside the optimizer; in a long one it is
  // what everything waits for.
  for (size_t i = 0; i < first.busy.size(); ++i) {
    whole.time = std::max(whole.time, lengthened(first.busy[i], second.busy[i]));
  }
  return whole;
}

}  // namespace ballast
