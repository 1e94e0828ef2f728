#include "cli/tune/tuner.h"

#include <algorithm>
#include <fmt/format.h>

#include "autotune/studies/experiments.h"
#include "cli/flags/training_flags.h"
#include "cli/terminal/progress.h"
#include "cli/text/prediction.h"

namespace ballast {
namespace {

constexpr double kSecondsAPlan = 0.4;
// Of a deadline, for a search; and for what is timed before it, within that.
constexpr double kSearchShare = 0.8;
constexpr double kTimingShare = 0.4;
// The best plans of a search must have been timed, operation by operation, before it counts.
constexpr size_t kTimedAtTheTop = 5;
constexpr int kMostRounds = 4;
// Candidates kept behind those that are shown: the next-best that is explained lies behind ties.
constexpr size_t kRankedAtLeast = 200;
// Of layouts, each by the best of its own, which are predicted one by one.
constexpr size_t kRankedOfFramework = 15;

bool is_of_ballast(const Setting& setting) { return setting.stack.name == kBallastStack; }

}  // namespace

double studies_seconds(const TuneFlags& flags, double taken, size_t searches) {
  const double left = flags.deadline_s - taken;
  if (left > 0) return left;
  const bool is_beyond_one = searches > 1 || flags.loop.plans;
  return is_beyond_one ? (1 - kSearchShare) * flags.deadline_s : 0;
}

SearchCacheOptions search_cache_options(const TuneFlags& flags) {
  SearchCacheOptions options;
  options.deadline_s = kSearchShare * flags.deadline_s;
  options.exhaustive = flags.exhaustive;
  options.again = flags.loop.again;
  return options;
}

Tuner::Tuner(Setting setting, TuneFlags& flags, SearchCache& cache)
    : of_(std::move(setting)),
      flags_(flags),
      cache_(cache),
      space_(open_knobs_of(flags).space(of_)),
      timed_(is_of_ballast(of_) && (of_.plan.machine == kHere || flags.loop.plans)),
      measurements_(measurements_of(of_.machine, flags.store)),
      spent_on_space_(Clock::now() - began_) {}

SearchQuestion Tuner::question(const std::string& label) const {
  SearchQuestion question{label, of_.model, of_.machine, space_, of_.stack};
  const size_t behind = is_of_ballast(of_) ? kRankedAtLeast : kRankedOfFramework;
  question.tolerance = tolerance_of(flags_);
  question.ranked = behind + static_cast<size_t>(flags_.top);
  return question;
}

double Tuner::taken_s() const {
  return std::chrono::duration<double>(Clock::now() - began_).count();
}

bool Tuner::is_out_of_time() const { return taken_s() > kSearchShare * flags_.deadline_s; }

SearchResult Tuner::run(const std::string& label) {
  began_ = Clock::now() - spent_on_space_;
  if (timed_) measure_space();
  cache_.set_spent(taken_s());
  SearchResult found = cache_.ask(question(label), measurements_);
  for (int round = 1; round < kMostRounds && measure_top(found); ++round) {
    cache_.set_spent(taken_s());
    SearchResult again = cache_.ask(question(label), measurements_);
    if (again.best || !found.best) {
      found = std::move(again);
    } else {
      // It was stopped too early to rank anything: what the search before it found is left.
      again.best = std::move(found.best);
      again.ranked = std::move(found.ranked);
      again.proven_within.reset();
      found = std::move(again);
    }
  }
  cache_.set_spent(0);
  return found;
}

MeasureResult Tuner::measure_plans(SearchResult& found) {
  add_candidates(found);
  cache_.stop_watching();
  if (cache_.interrupted()) {
    MeasureResult nothing;
    nothing.measurements = measurements_;
    nothing.interrupted = true;
    return nothing;
  }
  MeasureResult result = run_closed_loop(
      {of_, fmt::format("{}, {} layouts", text_of(space_.open), space_.layouts.size()), flags_.loop,
       flags_.store},
      found, measurements_);
  measurements_ = result.measurements;
  if (result.measured.empty()) return result;
  found.ranked.clear();
  for (const MeasuredPlan& plan : result.measured) {
    found.ranked.push_back(candidate_of(
        plan.run.plan, predict(of_.model, plan.run.plan, of_.machine, &measurements_)));
  }
  found.ranked.insert(found.ranked.end(), result.others.begin(), result.others.end());
  found.best = found.ranked.front();
  return result;
}

void Tuner::measure_space() {
  Progress progress("measure");
  const Space space = space_of(of_.model, of_.plan, space_.open);
  const std::vector<Plan> chosen = covering_plans(space, of_.plan);
  const auto must_stop = [&] {
    return cache_.interrupted() || taken_s() > kTimingShare * flags_.deadline_s;
  };
  size_t timed = 0;
  for (; timed < chosen.size() && !must_stop(); ++timed) {
    progress.show(static_cast<double>(timed) / static_cast<double>(chosen.size()),
                  fmt::format("plan {} of {}", timed + 1, chosen.size()));
    measure(chosen[timed], must_stop);
    if (must_stop() && !is_measured(with(chosen[timed]), measurements_)) break;
  }
  notes_.clear();
  if (timed < chosen.size() && !cache_.interrupted()) {
    notes_.push_back(fmt::format(
        "timed, in {:g} of the {:g} s of --deadline: {} of the {} plans that have every operation "
        "of the search; the others' are told from the profile. {}",
        kTimingShare * flags_.deadline_s, flags_.deadline_s, timed, chosen.size(),
        timed > 0 ? "Asked again, it goes on there" : "A longer --deadline times more"));
  }
  progress.finish(fmt::format("{} operations are timed", measurements_.size()));
}

void Tuner::add_candidates(SearchResult& found) const {
  const Space space = space_of(of_.model, of_.plan, space_.open);
  for (const Plan& plan : rival_plans(found.best->plan, space, of_.plan)) {
    const auto same = [&](const Candidate& known) { return known.plan == plan; };
    if (std::any_of(found.ranked.begin(), found.ranked.end(), same)) continue;
    const Prediction prediction = predict(of_.model, plan, of_.machine, &measurements_);
    if (prediction.fits) found.ranked.push_back(candidate_of(plan, prediction));
  }
}

// True if anything was left to measure.
bool Tuner::measure(const Plan& plan, const std::function<bool()>& must_stop) {
  const Setting setting = with(plan);
  if (is_measured(setting, measurements_)) return false;
  if (!predict(setting.model, setting.plan, setting.machine, &measurements_).fits) return false;
  const std::string& device = flags_.loop.training.device;
  measure_plan(setting, {kSecondsAPlan, device.empty() ? "host" : device, must_stop}, flags_.store,
               measurements_);
  return !must_stop();
}

bool Tuner::measure_top(const SearchResult& found) {
  const auto must_stop = [&] { return cache_.interrupted() || is_out_of_time(); };
  if (!timed_ || must_stop()) return false;
  bool any = false;
  const size_t most = std::min(kTimedAtTheTop, found.ranked.size());
  for (size_t i = 0; i < most && !must_stop(); ++i) {
    any = measure(found.ranked[i].plan, must_stop) || any;
  }
  return any;
}

}  // namespace ballast
