#include "sim/engine/repetition.h"

#include <algorithm>
#include <memory>
#include <tuple>

#include "sim/base/parallel.h"
#include "sim/graph/core/stages.h"
#include "sim/graph/schedules/pipeline.h"

namespace ballast {
namespace {

bool may_be_spread(const Plan& plan) {
  return plan.pipeline > 1 && !plan.multiplex && overlaps_inside(plan);
}

// Layers times micro-batches: steps of fewer are simulated in less than a second, and those of more
// than the second take minutes and gigabytes. A layer of a pipeline whose turns may be spread has
// 20 to 100 operations for each part of a sequence: of a step that is not long fewer than
// kMostSpreadOperations, so that it is spread whole.
constexpr int64_t kLong = 3000;
constexpr int64_t kTooLong = 60000;
// Of a step that is not three times as long as what is looked at first, the look saves little.
constexpr int64_t kWorthIt = 3;
// Periods of the shorter steps that are tried, beyond what fills a pipeline: once where its stages
// are in step at once, twice where a slow one holds up the others for as long.
constexpr int64_t kPeriods[] = {4, 12, 48};
// Of a pipeline that shows none of them, for it is spread.
constexpr int64_t kPeriodsOfMean = 48;

// What runs, as one stretch of a timeline is compared with the next.
struct Activity {
  LaneId lane = 0;
  int64_t begin_ps = 0, end_ps = 0;  // from the stretch's begin
  OpKind kind{};
  Phase phase{};
  Label label;  // micro-batches counted from the stretch's first
  auto key() const {
    return std::tuple(lane, begin_ps, end_ps, kind, phase, label.layer, label.module,
                      label.micro_batch, label.bucket, label.part, label.subsequence,
                      label.loss_chunk);
  }
};

class PeriodSearch {
 public:
  PeriodSearch(const Prediction& step, int64_t micro_batches, const ShorterSteps& steps,
               Duration time)
      : graph_(step.graph),
        timeline_(step.timeline),
        count_(micro_batches),
        steps_(steps),
        time_(time) {}

  // The first operations of three micro-batches that are a period apart. Nothing where a recorded
  // step shows none: of its predecessor the first one lacks what is late, and of its successor the
  // last one what is early.
  std::vector<OpId> found() const {
    std::vector<OpId> apart;
    for (int32_t s = 0; s < timeline_.steps; ++s) {
      apart = found_in(timeline_.first_step + s);
      if (apart.empty()) break;
    }
    return apart;
  }

 private:
  // The first computation of each micro-batch.
  std::vector<Span> firsts_in(int32_t step) const {
    std::vector<Span> first(static_cast<size_t>(count_));
    for (const Span& span : timeline_.spans) {
      const Op& op = graph_.op(span.op);
      const int64_t micro_batch = op.label.micro_batch;
      const bool computes = kind_of(op.lane) == LaneKind::kCompute && device_of(op.lane) == 0;
      if (span.step != step || !computes || micro_batch < 0 || micro_batch >= count_) continue;
      Span& known = first[static_cast<size_t>(micro_batch)];
      if (known.op < 0) known = span;
    }
    const bool all =
        std::all_of(first.begin(), first.end(), [](const Span& s) { return s.op >= 0; });
    return all ? first : std::vector<Span>{};
  }

  std::vector<OpId> found_in(int32_t step) const {
    const std::vector<Span> firsts = firsts_in(step);
    const int64_t last = std::ssize(firsts) - 1 - 2 * steps_.period;
    for (int64_t i = 1; i < last; ++i) {
      const Span& one = firsts[static_cast<size_t>(i)];
      const Span& two = firsts[static_cast<size_t>(i + steps_.period)];
      const Span& three = firsts[static_cast<size_t>(i + 2 * steps_.period)];
      if (two.begin - one.begin != time_ || three.begin - two.begin != time_) continue;
      const auto activity_of_one = activity(one.begin, i);
      if (activity_of_one && activity_of_one == activity(two.begin, i + steps_.period)) {
        return {one.op, two.op, three.op};
      }
    }
    return {};
  }

  using Activities = std::vector<decltype(Activity{}.key())>;

  // All that runs within a period from `begin` on; nothing where it is of a micro-batch that may be
  // unlike the others.
  std::optional<Activities> activity(Instant begin, int64_t micro_batch) const {
    const Instant end = begin + time_;
    Activities all;
    for (const Span& span : timeline_.spans) {
      if (span.begin >= end) break;  // they are in the order of their begins
      const bool runs = span.end > begin || (span.end == begin && span.begin == begin);
      if (!runs) continue;
      const Op& op = graph_.op(span.op);
      Activity one{op.lane, (span.begin - begin).ps, (span.end - begin).ps, op.kind, op.phase,
                   op.label};
      if (one.label.micro_batch == 0 || one.label.micro_batch == count_ - 1) return std::nullopt;
      if (one.label.micro_batch > 0) {
        one.label.micro_batch = static_cast<int16_t>(one.label.micro_batch - micro_batch);
      }
      all.push_back(one.key());
    }
    std::sort(all.begin(), all.end());
    return all;
  }

  const Graph& graph_;
  const Timeline& timeline_;
  int64_t count_;
  const ShorterSteps& steps_;
  Duration time_;
};

bool is_same_memory(const std::vector<PlacePeak>& a, const std::vector<PlacePeak>& b) {
  const auto same = [](const PlacePeak& one, const PlacePeak& other) {
    const auto held = [](const Holder& x, const Holder& y) {
      return x.category == y.category && x.bytes == y.bytes;
    };
    return one.place == other.place && one.live == other.live &&
           std::equal(one.holders.begin(), one.holders.end(), other.holders.begin(),
                      other.holders.end(), held);
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
}

// Lines through two steps that differ by `apart` micro-batches: what the longer one has, and what
// `beyond` micro-batches more have.
class Line {
 public:
  Line(int64_t beyond, int64_t apart) : beyond_(beyond), apart_(apart) {}
  Duration operator()(Duration shorter, Duration longer) const {
    return {(*this)(shorter.ps, longer.ps)};
  }
  int64_t operator()(int64_t shorter, int64_t longer) const {
    const int64_t more = longer - shorter;
    return longer + beyond_ / apart_ * more + beyond_ % apart_ * more / apart_;
  }
  double operator()(double shorter, double longer) const {
    return longer + static_cast<double>(beyond_) / static_cast<double>(apart_) * (longer - shorter);
  }

  // Sorted by time as they are. Nothing where the two have other kinds.
  std::optional<std::vector<KindTime>> operator()(const std::vector<KindTime>& shorter,
                                                  std::vector<KindTime> longer) const {
    if (shorter.size() != longer.size()) return std::nullopt;
    for (KindTime& kind : longer) {
      const auto found = std::find_if(shorter.begin(), shorter.end(), [&](const KindTime& one) {
        return one.kind == kind.kind && one.phase == kind.phase;
      });
      if (found == shorter.end()) return std::nullopt;
      kind.time = (*this)(found->time, kind.time);
      kind.operations = (*this)(found->operations, kind.operations);
    }
    std::stable_sort(longer.begin(), longer.end(),
                     [](const KindTime& a, const KindTime& b) { return a.time > b.time; });
    return longer;
  }

 private:
  int64_t beyond_;
  int64_t apart_;
};

// What the operations of a step take the thread that enqueues them, by device.
std::vector<Duration> host_times(const Prediction& step) {
  std::vector<Duration> times(static_cast<size_t>(devices_of(step.graph)));
  for (size_t i = 0; i < step.graph.step.ops.size(); ++i) {
    times[static_cast<size_t>(device_of(step.graph.step.ops[i].lane))] += step.costs.ops[i].host;
  }
  return times;
}

// Whether the hosts take no longer for a period than it lasts. What a host gained while a step's
// end was waited for may last for all of a short step, and not for a long one.
bool hosts_keep_up(const Prediction& shorter, const Prediction& longer, Duration period) {
  const std::vector<Duration> less = host_times(shorter);
  const std::vector<Duration> more = host_times(longer);
  for (size_t i = 0; i < more.size(); ++i) {
    if (more[i] - less[i] > period) return false;
  }
  return true;
}

Duration compute_time(const Prediction& step) {
  Duration time;
  for (const LaneUse& use : step.lanes) {
    if (kind_of(use.lane) == LaneKind::kCompute) time += use.busy;
  }
  return time;
}

// The longest path of a step `times` as long.
void lengthen_in_proportion(LongestPath& path, double times) {
  const auto longer = [&](int64_t value) {
    return static_cast<int64_t>(static_cast<double>(value) * times);
  };
  path.waiting.ps = longer(path.waiting.ps);
  for (KindTime& kind : path.by_kind) {
    kind.time.ps = longer(kind.time.ps);
    kind.operations = longer(kind.operations);
  }
}

// The longest path of a step that shows a period goes through the same kinds in each.
bool lengthen_path(Prediction& longer, const Prediction& shorter, const Line& line) {
  LongestPath& path = longer.longest_path;
  auto kinds = line(shorter.longest_path.by_kind, path.by_kind);
  if (!kinds) return false;
  path.by_kind = *std::move(kinds);
  path.waiting = line(shorter.longest_path.waiting, path.waiting);
  return true;
}

// Everything of `longer` that grows with its micro-batches.
bool lengthen(Prediction& longer, const Prediction& shorter, const Line& line) {
  auto kinds = line(shorter.kinds, longer.kinds);
  if (!kinds || shorter.lanes.size() != longer.lanes.size()) return false;
  Duration step_time = line(shorter.step_time, longer.step_time);
  const std::vector<Duration> less = host_times(shorter);
  const std::vector<Duration> more = host_times(longer);
  for (size_t i = 0; i < more.size(); ++i) step_time = std::max(step_time, line(less[i], more[i]));
  // Nor may a lane catch up in a long step on what it put off beside a short one's optimizer.
  for (size_t i = 0; i < longer.lanes.size(); ++i) {
    step_time = std::max(step_time, line(shorter.lanes[i].busy, longer.lanes[i].busy));
  }
  if (!longer.settled) {
    lengthen_in_proportion(longer.longest_path, step_time.seconds() / longer.step_time.seconds());
  } else if (!lengthen_path(longer, shorter, line)) {
    return false;
  }
  const double before = compute_time(shorter).seconds();
  const double after = compute_time(longer).seconds();
  longer.kinds = *std::move(kinds);
  longer.step_time = step_time;
  longer.gpu_work.count = line(shorter.gpu_work.count, longer.gpu_work.count);
  for (size_t i = 0; i < longer.lanes.size(); ++i) {
    LaneUse& use = longer.lanes[i];
    use.busy = line(shorter.lanes[i].busy, use.busy);
    use.share = use.busy.seconds() / longer.step_time.seconds();
  }
  const double total = line(before, after);
  for (size_t p = 0; p < longer.provenance.size() && total > 0; ++p) {
    longer.provenance[p] =
        line(shorter.provenance[p] * before, longer.provenance[p] * after) / total;
  }
  if (longer.rollback_time) {
    longer.rollback_time = line(shorter.rollback_time.value_or(Duration{}), *longer.rollback_time);
  }
  return true;
}

}  // namespace

Duration Repetition::lengthen(Duration shorter, Duration longer) const {
  return Line(all - simulated, micro_batches)(shorter, longer);
}

namespace {

// Micro-batches that fill a pipeline, and those of a period.
struct Rhythm {
  int64_t fill = 0;
  int64_t period = 1;
};

Rhythm rhythm_of(const Plan& plan) {
  const int64_t round = plan.virtual_pipeline > 1 ? plan.pipeline : 1;
  // Buffers come in pairs.
  return {plan.pipeline > 1 ? plan.pipeline : 0, round % 2 == 0 ? round : 2 * round};
}

// The fewest from `least` on that the plan has a whole number of periods more of.
int64_t in_whole_periods(const Plan& plan, int64_t least, int64_t period) {
  return least + (plan.accumulation() - least) % period;
}

}  // namespace

std::vector<ShorterSteps> shorter_steps(const Plan& plan) {
  const auto [fill, period] = rhythm_of(plan);
  std::vector<ShorterSteps> steps;
  const auto add = [&, period = period](int64_t least) {
    const int64_t count = in_whole_periods(plan, least, period);
    if (kWorthIt * (count + period) <= plan.accumulation()) steps.push_back({count, period});
  };
  if (fill > 0) add(fill + kPeriods[0] * period);
  for (const int64_t periods : kPeriods) add(2 * fill + periods * period);
  // Where the second is not worth it: a little longer than the first, in which a host that falls
  // behind had not used its lead up.
  if (fill == 0 && steps.size() == 1) add(kPeriods[0] * 3 / 2 * period);
  return steps;
}

bool is_long(const Model& model, const Plan& plan) {
  const int64_t parts = may_be_spread(plan) ? plan.subsequences : 1;
  return model.layers * plan.accumulation() * parts > kLong;
}

Plan with_micro_batches(const Plan& plan, int64_t count) {
  Plan other = plan;
  other.global_batch = plan.global_batch / plan.accumulation() * count;
  return other;
}

namespace {

// Of what is no pipeline nothing is ever folded.
bool is_spread(const Prediction& step) { return step.graph.blocks.empty(); }

// By the two steps, whether or not they show a period.
std::optional<Prediction> lengthened(std::shared_ptr<const Prediction> shorter, Prediction longer,
                                     Repetition repetition) {
  const Line line(repetition.all - repetition.simulated, repetition.micro_batches);
  if (!lengthen(longer, *shorter, line)) return std::nullopt;
  longer.repetition = std::move(repetition);
  longer.shorter = std::move(shorter);
  return longer;
}

using PredictShorter = std::function<Prediction(const Plan& shorter)>;

// Of a step that shows no period: the mean of the micro-batches that `many` are more than the
// shorter step has.
std::optional<Prediction> averaged(const Plan& plan, std::shared_ptr<const Prediction> shorter,
                                   int64_t few, int64_t many, const PredictShorter& predicted) {
  Prediction longer = predicted(with_micro_batches(plan, many));
  const Duration time = longer.step_time - shorter->step_time;
  if (!shorter->fits || !longer.fits || time.ps <= 0) return std::nullopt;
  if (is_spread(*shorter) != is_spread(longer)) return std::nullopt;
  longer.settled = false;
  return lengthened(std::move(shorter), std::move(longer),
                    {many, plan.accumulation(), many - few, time, {}});
}

std::optional<Prediction> averaged(const Plan& plan, const std::vector<ShorterSteps>& steps,
                                   const PredictShorter& predicted) {
  const int64_t few = steps.front().micro_batches;
  const int64_t many = steps.back().micro_batches;
  if (few == many) return std::nullopt;
  auto shorter = std::make_shared<const Prediction>(predicted(with_micro_batches(plan, few)));
  return averaged(plan, std::move(shorter), few, many, predicted);
}

// Micro-batches of the shortest step that is looked at.
int64_t fewest_spread(const Plan& plan) {
  const auto [fill, period] = rhythm_of(plan);
  return in_whole_periods(plan, fill + period, period);
}

// Of a pipeline whose turns are spread in a short step, and would be folded in the whole one only
// because they are so many: a folded turn overlaps with nothing, and may take far longer. The mean
// of some periods; nothing where all of the whole step, or not even one period more is spread.
// `shorter`: a spread step of `few`.
std::optional<Prediction> averaged_spread(const Plan& plan,
                                          std::shared_ptr<const Prediction> shorter, int64_t few,
                                          const PredictShorter& predicted) {
  if (!shorter->fits) return *shorter;
  const int64_t period = rhythm_of(plan).period;
  const auto operations = std::ssize(shorter->graph.step.ops) / few;
  const int64_t spread = kMostSpreadOperations / operations;
  if (spread >= plan.accumulation()) return std::nullopt;
  const int64_t fewest = fewest_spread(plan);
  if (spread < few + kPeriods[0] * period && fewest < few) {
    auto shortest = std::make_shared<const Prediction>(predicted(with_micro_batches(plan, fewest)));
    return averaged_spread(plan, std::move(shortest), fewest, predicted);
  }
  const int64_t more = std::min((spread - few) / period, kPeriodsOfMean) * period;
  if (more <= 0) return std::nullopt;
  return averaged(plan, std::move(shorter), few, few + more, predicted);
}

struct TwoSteps {
  std::shared_ptr<const Prediction> shorter;
  Prediction longer;  // by a period
};

// Nothing where the longer one does not show a period. Its prediction is moved from.
std::optional<Prediction> by_period(const Plan& plan, const ShorterSteps& steps, TwoSteps& two) {
  auto& [shorter, longer] = two;
  if (!is_same_memory(shorter->peaks, longer.peaks)) return std::nullopt;
  if (!longer.fits) return std::move(longer);
  const Duration time = longer.step_time - shorter->step_time;
  if (!shorter->settled || !longer.settled || time.ps <= 0) return std::nullopt;
  if (shorter->rollback_time.has_value() != longer.rollback_time.has_value()) return std::nullopt;
  if (is_spread(*shorter) != is_spread(longer)) return std::nullopt;
  if (!hosts_keep_up(*shorter, longer, time)) return std::nullopt;
  const int64_t count = steps.micro_batches + steps.period;
  std::vector<OpId> apart = PeriodSearch(longer, count, steps, time).found();
  if (apart.empty()) return std::nullopt;
  return lengthened(shorter, std::move(longer),
                    {count, plan.accumulation(), steps.period, time, std::move(apart)});
}

}  // namespace

std::optional<Prediction> repeated(const Model& model, const Plan& plan,
                                   const PredictShorter& predicted) {
  const std::vector<ShorterSteps> all = shorter_steps(plan);
  const auto predicted_of = [&](int64_t count) {
    return predicted(with_micro_batches(plan, count));
  };
  for (const ShorterSteps& steps : all) {
    TwoSteps two;
    run_all({[&] { two.longer = predicted_of(steps.micro_batches + steps.period); },
             [&] {
               two.shorter = std::make_shared<const Prediction>(predicted_of(steps.micro_batches));
             }},
            hardware_threads());
    if (auto found = by_period(plan, steps, two)) return found;
    // Copies that have time to spare meet others elsewhere in every period, however many there are.
    if (may_be_spread(plan) && is_spread(*two.shorter)) {
      return averaged_spread(plan, std::move(two.shorter), steps.micro_batches, predicted);
    }
  }
  if (all.empty() && may_be_spread(plan)) {
    const int64_t few = fewest_spread(plan);
    if (few >= plan.accumulation()) return std::nullopt;
    auto shorter = std::make_shared<const Prediction>(predicted_of(few));
    if (!is_spread(*shorter)) return std::nullopt;
    return averaged_spread(plan, std::move(shorter), few, predicted);
  }
  const bool too_long = model.layers * plan.accumulation() > kTooLong;
  return too_long && !all.empty() ? averaged(plan, all, predicted) : std::nullopt;
}

}  // namespace ballast
