#include "autotune/studies/goodput.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <fmt/format.h>
#include <random>
#include <vector>

#include "sim/base/error.h"
#include "sim/graph/report/timeline.h"

namespace ballast {
namespace {

constexpr double kSecondsOfYear = 365.25 * kSecondsOfDay;
constexpr double kMostFailures = 1e6;

// Seconds of one run, by what they were spent on.
struct Spent {
  double kept = 0, repeated = 0, checkpoints = 0, down = 0;
  int64_t failures = 0;
};

// When devices fail, and which. The library's own distributions differ from one to the next.
class RandomFailures {
 public:
  RandomFailures(double mean_time_between, uint64_t seed)
      : mean_(mean_time_between), random_(seed) {}

  double uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }  // [0, 1)
  double until_next() { return -mean_ * std::log1p(-uniform()); }

 private:
  double mean_;
  std::mt19937_64 random_;
};

// One run, from failure to failure.
class SimulatedRun {
 public:
  SimulatedRun(const LongRun& run, const Failures& failures, uint64_t seed)
      : work_(run.step_time.seconds() * static_cast<double>(run.period_steps)),
        checkpoint_(run.checkpoint.seconds()),
        recovery_((failures.detection + failures.restart).seconds()),
        end_(run.days * kSecondsOfDay),
        random_(mean_time_between(failures, run.devices), seed) {}

  Spent whole() {
    double now = 0;
    while (now < end_) {
      const double failure = now + random_.until_next();
      train(now, std::min(failure, end_), failure >= end_);
      if (failure >= end_) break;
      ++spent_.failures;
      now = recovered(failure);
    }
    return spent_;
  }

 private:
  // From a checkpoint on. What was not yet in one is lost, but for what the run ends with.
  void train(double from, double to, bool ends) {
    const double time = to - from;
    const double period = work_ + checkpoint_;
    const double whole = std::floor(time / period);
    const double rest = time - whole * period;
    const double steps = std::min(rest, work_);
    spent_.kept += whole * work_;
    spent_.checkpoints += whole * checkpoint_ + (rest - steps);
    (ends ? spent_.kept : spent_.repeated) += steps;
  }

  // When steps go on.
  double recovered(double failure) {
    double begin = failure;
    for (double next = random_.until_next(); next < recovery_ && begin + next < end_;
         next = random_.until_next()) {
      ++spent_.failures;
      begin += next;
    }
    const double now = std::min(begin + recovery_, end_);
    spent_.down += now - failure;
    return now;
  }

  double work_, checkpoint_, recovery_, end_;
  RandomFailures random_;
  Spent spent_;
};

void check(const LongRun& run, const Failures& failures) {
  CHECK(run.devices > 0 && run.step_time.ps > 0 && run.period_steps > 0 && run.days > 0);
  CHECK(failures.per_device_year > 0);
  const double count = run.days * kSecondsOfDay / mean_time_between(failures, run.devices);
  if (count <= kMostFailures) return;
  throw Error(
      "--failures-per-device-year",
      fmt::format("{} devices fail {:.3g} times in {:g} days", run.devices, count, run.days),
      "give a lower rate, or fewer days");
}

}  // namespace

double mean_time_between(const Failures& failures, int64_t devices) {
  return kSecondsOfYear / (failures.per_device_year * static_cast<double>(devices));
}

Goodput simulate_goodput(const LongRun& run, const Failures& failures, int runs, uint64_t seed) {
  CHECK(runs > 0);
  check(run, failures);
  Goodput mean;
  std::vector<double> kept;
  const double whole = run.days * kSecondsOfDay;
  const double part = 1 / (whole * runs);
  for (int i = 0; i < runs; ++i) {
    const Spent spent = SimulatedRun(run, failures, seed + static_cast<uint64_t>(i)).whole();
    mean.kept += spent.kept * part;
    mean.repeated += spent.repeated * part;
    mean.checkpoints += spent.checkpoints * part;
    mean.down += spent.down * part;
    mean.failures += static_cast<double>(spent.failures) / runs;
    kept.push_back(spent.kept / whole);
  }
  std::sort(kept.begin(), kept.end());
  const auto tenth = static_cast<size_t>(runs / 10);
  mean.low = kept[tenth];
  mean.high = kept[kept.size() - 1 - tenth];
  return mean;
}

double expected_goodput(const LongRun& run, const Failures& failures) {
  check(run, failures);
  const double mean = mean_time_between(failures, run.devices);
  const double work = run.step_time.seconds() * static_cast<double>(run.period_steps);
  const double recovery = (failures.detection + failures.restart).seconds();
  const double period = work + run.checkpoint.seconds();
  return work / (mean * std::exp(recovery / mean) * std::expm1(period / mean));
}

int64_t best_period_steps(const LongRun& run, const Failures& failures) {
  check(run, failures);
  const double mean = mean_time_between(failures, run.devices);
  const double dump = run.checkpoint.seconds();
  double work = mean;
  if (dump < 2 * mean) {
    const double ratio = dump / (2 * mean);
    work = std::sqrt(2 * dump * mean) * (1 + std::sqrt(ratio) / 3 + ratio / 9) - dump;
  }
  // Where hardly anything fails a run that is longer than its days would be best.
  work = std::min(work, run.days * kSecondsOfDay);
  return std::max<int64_t>(1, std::llround(work / run.step_time.seconds()));
}

namespace {

constexpr double kOfTwoStages = 0.5;  // of the speed, while one device does the work of two

// By stage, in seconds of a step as it was simulated.
std::vector<double> forward_seconds(const Prediction& prediction, size_t stages) {
  std::vector<double> seconds(stages, 0.0);
  for (const Span& span : prediction.timeline.spans) {
    const Op& op = prediction.graph.op(span.op);
    if (op.phase != Phase::kForward || kind_of(op.lane) != LaneKind::kCompute) continue;
    seconds[static_cast<size_t>(device_of(op.lane))] += (span.end - span.begin).seconds();
  }
  // Every micro-batch does the same forwards, those that were simulated and the others.
  double steps = prediction.timeline.steps;
  if (const auto& repetition = prediction.repetition) {
    steps *= static_cast<double>(repetition->simulated) / static_cast<double>(repetition->all);
  }
  for (double& one : seconds) one /= steps;
  return seconds;
}

std::vector<double> idle_seconds(const Prediction& prediction, size_t stages) {
  std::vector<double> seconds(stages, 0.0);
  for (const LaneUse& use : prediction.lanes) {
    if (kind_of(use.lane) != LaneKind::kCompute) continue;
    const double idle = std::max(0.0, 1 - use.share) * prediction.step_time.seconds();
    seconds[static_cast<size_t>(device_of(use.lane))] = idle;
  }
  return seconds;
}

std::vector<Bytes> weights_by_stage(const Graph& graph, size_t stages) {
  std::vector<Bytes> bytes(stages);
  for (const Tensor& tensor : graph.tensors) {
    if (tensor.kind != TensorKind::kWeight || tensor.place != Place::kHbm) continue;
    bytes[static_cast<size_t>(tensor.device)] += tensor.bytes();
  }
  return bytes;
}

// One run, from one event to the next.
class RedundantRun {
 public:
  RedundantRun(const LongRun& run, const Failures& failures, const RedundantStages& stages,
               uint64_t seed)
      : run_(run),
        failures_(failures),
        stages_(stages.stages),
        rate_(run.step_time.seconds() / (run.step_time + stages.longer).seconds()),
        work_(run.step_time.seconds() * static_cast<double>(run.period_steps)),
        end_(run.days * kSecondsOfDay),
        random_(mean_time_between(failures, run.devices), seed) {}

  RedundantGoodput whole() {
    double failure = random_.until_next();
    while (now_ < end_) {
      const double back = missing_.empty() ? end_ : missing_.front().until;
      train(std::min({failure, back, end_}));
      if (now_ >= end_) break;
      if (now_ >= back) missing_.pop_front();
      if (now_ < failure) continue;
      fail();
      failure = now_ + random_.until_next();
    }
    spent_.kept += since_checkpoint_;  // what a run ends with is not lost
    return spent_;
  }

 private:
  struct Missing {
    int64_t device = 0;
    double until = 0;
  };

  // Seconds of steps that count, at the rate of now, and checkpoints, until then.
  void train(double until) {
    const double rate = rate_ * (missing_.empty() ? 1 : kOfTwoStages);
    while (now_ < until) {
      const bool writes = since_checkpoint_ >= work_;
      const double left =
          writes ? run_.checkpoint.seconds() - written_ : (work_ - since_checkpoint_) / rate;
      const double time = std::min(until - now_, left);
      const bool is_done = time >= left;
      if (writes) {
        spent_.checkpoints += time;
        written_ += time;
        if (is_done) keep();
      } else {
        spent_.slowed += time * (1 - rate);
        since_checkpoint_ = is_done ? work_ : since_checkpoint_ + time * rate;
      }
      now_ = is_done && left > until - now_ ? until : now_ + time;
    }
    now_ = std::max(now_, until);  // a device may have come back while training rested
  }

  void keep() {
    spent_.kept += work_;
    since_checkpoint_ = 0;
    written_ = 0;
  }

  // Devices are numbered stage by stage of one pipeline after another.
  bool are_neighbours(int64_t one, int64_t other) const {
    if (one / stages_ != other / stages_) return false;
    const int64_t apart = std::abs(one - other);
    return apart == 1 || apart == stages_ - 1;
  }

  void fail() {
    const auto device = static_cast<int64_t>(random_.uniform() * static_cast<double>(run_.devices));
    const bool is_there = std::none_of(missing_.begin(), missing_.end(),
                                       [&](const Missing& one) { return one.device == device; });
    if (!is_there) return;
    ++spent_.failures;
    const bool covered = std::none_of(missing_.begin(), missing_.end(), [&](const Missing& one) {
      return are_neighbours(one.device, device);
    });
    if (covered) {
      missing_.push_back({device, now_ + failures_.restart.seconds()});
      const double step = std::min(run_.step_time.seconds(), since_checkpoint_);
      since_checkpoint_ -= step;
      spent_.repeated += step;
      rest(failures_.detection.seconds());
      return;
    }
    ++spent_.restarts;
    missing_.clear();
    spent_.repeated += since_checkpoint_;
    since_checkpoint_ = written_ = 0;
    rest((failures_.detection + failures_.restart).seconds());
  }

  void rest(double seconds) {
    const double until = std::min(now_ + seconds, end_);
    spent_.down += until - now_;
    now_ = until;
  }

  const LongRun& run_;
  const Failures& failures_;
  int64_t stages_;
  double rate_, work_, end_;
  RandomFailures random_;
  double now_ = 0;
  double since_checkpoint_ = 0;  // seconds of steps, as long as they are without redundant stages
  double written_ = 0;           // of the checkpoint under way
  std::deque<Missing> missing_;  // soonest back first
  RedundantGoodput spent_;
};

}  // namespace

RedundantStages redundant_stages(const Prediction& prediction, const Plan& plan) {
  CHECK(prediction.fits);
  if (plan.pipeline == 1) {
    throw Error("--redundant-stages", "a plan of one stage has no other that could go on for it",
                "name --pipeline");
  }
  if (plan.virtual_pipeline > 1) {
    throw Error("--redundant-stages", "interleaved stages have several successors",
                "use --virtual-pipeline 1");
  }
  const auto count = static_cast<size_t>(plan.pipeline);
  const std::vector<double> forward = forward_seconds(prediction, count);
  const std::vector<double> idle = idle_seconds(prediction, count);
  const std::vector<Bytes> weights = weights_by_stage(prediction.graph, count);
  RedundantStages result;
  result.stages = plan.pipeline;
  result.memory = result.traffic = *std::max_element(weights.begin(), weights.end());
  result.forward = Duration::from_seconds(*std::max_element(forward.begin(), forward.end()));
  result.idle = Duration::from_seconds(*std::min_element(idle.begin(), idle.end()));
  double longer = 0;
  for (size_t s = 0; s < count; ++s) {
    longer = std::max(longer, forward[(s + 1) % count] - idle[s]);
  }
  result.longer = Duration::from_seconds(longer);
  return result;
}

RedundantGoodput simulate_redundant_goodput(const LongRun& run, const Failures& failures,
                                            const RedundantStages& stages, int runs,
                                            uint64_t seed) {
  CHECK(runs > 0 && stages.stages > 1 && run.devices % stages.stages == 0);
  check(run, failures);
  RedundantGoodput mean;
  for (int i = 0; i < runs; ++i) {
    const RedundantGoodput one =
        RedundantRun(run, failures, stages, seed + static_cast<uint64_t>(i)).whole();
    const double part = 1 / (run.days * kSecondsOfDay * runs);
    mean.kept += one.kept * part;
    mean.slowed += one.slowed * part;
    mean.repeated += one.repeated * part;
    mean.checkpoints += one.checkpoints * part;
    mean.down += one.down * part;
    mean.failures += one.failures / runs;
    mean.restarts += one.restarts / runs;
  }
  return mean;
}

}  // namespace ballast
