#include "autotune/complete/layouts/ranking.h"

#include <algorithm>
#include <chrono>

#include "autotune/complete/layouts/layout_chooser.h"
#include "autotune/search/infeasible.h"
#include "sim/base/error.h"
#include "sim/base/stop.h"

namespace ballast {
namespace {

// Of the deadline: for bounds, and for estimates; then the plans that these rank first are
// predicted as they are.
constexpr double kShareOfBounds = 0.25;
constexpr double kShareOfLook = 0.75;

class Ranking {
 public:
  Ranking(const Setting& like, const std::vector<Plan>& layouts, const Measurements* measurements,
          const RankingOptions& options)
      : options_(options),
        measurements_(measurements),
        ends_judging_([this] { return asked_to_stop() || is_past(kShareOfBounds); }),
        ends_look_([this] { return asked_to_stop() || is_past(kShareOfLook); }),
        layouts_(judged_layouts(like, layouts, measurements, ends_judging_)),
        chooser_(layouts_, measurements, ends_look_, how_to_look()),
        usable_(usable_of(like.machine)),
        infeasible_(like.machine, usable_) {
    result_.layouts = result_.considered = std::ssize(layouts);
    chooser_.stop_when_interrupted();
  }

  SearchResult run() {
    bool cut_short = false;
    // Where none of the estimated plans fits as it is, what they ruled out is looked at again.
    for (bool again = true; again && !cut_short;) {
      const std::vector<LayoutChooser::Estimate> estimates = chooser_.look_at_all();
      cut_short = ends_look_();
      predict(estimates);
      again = !result_.best && !estimates.empty();
    }
    const bool all_judged = std::ssize(layouts_) == result_.layouts;
    const bool enough = options_.any_is_enough && result_.best;
    if (!enough && (cut_short || !all_judged || chooser_.left() > 0)) stop();
    if (!result_.best && result_.complete()) find_nearest();
    count();
    result_.seconds = seconds();
    return std::move(result_);
  }

 private:
  using Fate = LayoutChooser::Fate;

  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  bool is_past(double share) const {
    return options_.deadline_s && seconds() > share * *options_.deadline_s;
  }
  bool asked_to_stop() const { return options_.interrupted && options_.interrupted(); }

  void stop() { result_.stop = asked_to_stop() ? SearchStop::kInterrupt : SearchStop::kDeadline; }

  LayoutLook how_to_look() {
    LayoutLook how;
    how.all_more_closely = true;
    how.any_is_enough = options_.any_is_enough;
    how.within = options_.within;
    if (options_.progress) {
      how.looked = [this](LayoutProgress at) {
        at.layouts = result_.layouts;
        options_.progress(at);
      };
    }
    return how;
  }

  // The plans as they are, in the order of their estimates; then in that of their times. Once it is
  // asked to stop, as many as it takes to have one.
  void predict(const std::vector<LayoutChooser::Estimate>& estimates) {
    const std::function<bool()> has_enough = [&] {
      return !result_.ranked.empty() && (asked_to_stop() || is_past(1));
    };
    for (const LayoutChooser::Estimate& one : estimates) {
      if (result_.ranked.size() >= std::max<size_t>(options_.ranked, 1)) break;
      if (has_enough()) break;
      const auto completed =
          unless_stopped(has_enough, [&] { return predict_reusing(one.setting, measurements_); });
      if (!completed) break;
      if (completed->prediction.fits) {
        result_.ranked.push_back(candidate_of(completed->setting.plan, completed->prediction));
        result_.ranked.back().bound = layouts_[one.layout].at_least;
      } else {
        chooser_.drop(one.layout);
      }
    }
    const auto faster = [](const Candidate& a, const Candidate& b) {
      return a.step_time < b.step_time;
    };
    std::stable_sort(result_.ranked.begin(), result_.ranked.end(), faster);
    if (!result_.ranked.empty()) result_.best = result_.ranked.front();
  }

  // None was found to fit: another than the lean plans may, and else one says why.
  void find_nearest() {
    try {
      const Completed nearest = chooser_.nearest();
      if (nearest.prediction.fits) {
        result_.best = candidate_of(nearest.setting.plan, nearest.prediction);
        result_.ranked = {*result_.best};
      } else {
        infeasible_.refuse(nearest.setting.plan, result_.layouts, nearest.prediction.peaks);
        result_.reasons = infeasible_.reasons();
      }
    } catch (const Error&) {
      if (!ends_look_()) throw;
      stop();
    }
  }

  void count() {
    const int64_t fits_after_all = result_.best && chooser_.count_of(Fate::kTimed) == 0 ? 1 : 0;
    result_.simulated = chooser_.count_of(Fate::kTimed) + fits_after_all;
    result_.bounded = chooser_.count_of(Fate::kSlower);
    result_.infeasible = chooser_.count_of(Fate::kUnfit) - fits_after_all;
    const bool any_left = !result_.complete();
    for (size_t i = 0; i < layouts_.size(); ++i) {
      if (chooser_.fate(i) != Fate::kOpen) continue;
      if (is_refuted(layouts_[i])) {
        ++result_.infeasible;
      } else if (any_left && chooser_.is_left(i)) {
        ++result_.not_looked_at;
      } else {
        ++result_.bounded;
      }
    }
    result_.not_looked_at += result_.layouts - std::ssize(layouts_);
  }

  const RankingOptions& options_;
  const Measurements* const measurements_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  const std::function<bool()> ends_judging_;
  const std::function<bool()> ends_look_;
  const std::vector<OpenLayout> layouts_;
  LayoutChooser chooser_;
  const Usable usable_;
  Infeasible infeasible_;
  SearchResult result_;
};

}  // namespace

SearchResult rank_layouts(Setting like, const std::vector<Plan>& layouts,
                          const Measurements* measurements, const RankingOptions& options) {
  CHECK(!layouts.empty());
  like.plan = layouts.front();
  return Ranking(like, layouts, measurements, options).run();
}

}  // namespace ballast
