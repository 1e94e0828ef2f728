#include "autotune/complete/layouts/ranking.h"

#include <algorithm>
#include <chrono>

#include "autotune/complete/layouts/layout_chooser.h"
#include "autotune/search/infeasible.h"
#include "autotune/search/search_question.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

// Of the deadline, for estimates; then the plans that they rank first are predicted as they are.
constexpr double kShareOfLook = 0.75;
constexpr double kRankedWithin = 1.05;

class Ranking {
 public:
  Ranking(const Setting& like, const std::vector<Plan>& layouts, const Measurements* measurements,
          const RankingOptions& options)
      : options_(options),
        measurements_(measurements),
        ends_look_([this] { return asked_to_stop() || is_past(kShareOfLook); }),
        layouts_(judged_layouts(like, layouts, measurements, ends_look_)),
        chooser_(layouts_, measurements, ends_look_, how_to_look()),
        usable_(usable_of(like.machine)),
        infeasible_(like.machine, usable_) {
    result_.layouts = result_.considered = std::ssize(layouts);
    chooser_.stop_when_interrupted();
  }

  SearchResult run() {
    predict(chooser_.look_at_all());
    const bool enough = any_is_enough() && result_.best;
    const bool all_judged = std::ssize(layouts_) == result_.layouts;
    if (!enough && !(all_judged && chooser_.left() == 0)) stop();
    if (!result_.best && result_.complete()) find_nearest();
    count();
    result_.seconds = seconds();
    return std::move(result_);
  }

 private:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  bool is_past(double share) const {
    return options_.deadline_s && seconds() > share * *options_.deadline_s;
  }
  bool asked_to_stop() const { return options_.interrupted && options_.interrupted(); }
  bool any_is_enough() const { return options_.tolerance >= kAnyPlan; }

  void stop() {
    result_.stop = asked_to_stop() ? SearchStop::kInterrupt : SearchStop::kDeadline;
  }

  LayoutLook how_to_look() {
    LayoutLook how;
    how.reach = LayoutReach::kAll;
    how.any_is_enough = any_is_enough();
    how.within = options_.tolerance > 0 ? 1 - options_.tolerance : kRankedWithin;
    how.looked = [this] { report(); };
    return how;
  }

  void report() const {
    if (!options_.progress) return;
    options_.progress({result_.layouts, chooser_.fitting() + chooser_.unfit(), chooser_.left(),
                       chooser_.best()});
  }

  // The plans as they are, in the order of their estimates; then in that of their times.
  void predict(const std::vector<LayoutChooser::Estimate>& estimates) {
    for (const LayoutChooser::Estimate& one : estimates) {
      if (result_.ranked.size() >= std::max<size_t>(options_.ranked, 1)) break;
      if (!result_.ranked.empty() && (asked_to_stop() || is_past(1))) break;
      const Completed completed = predict_reusing(one.setting, measurements_);
      if (completed.prediction.fits) {
        result_.ranked.push_back(candidate_of(completed.setting.plan, completed.prediction));
        result_.ranked.back().bound = layouts_[one.layout].at_least;
      } else {
        infeasible_.refuse(completed.setting.plan, 1, completed.prediction.peaks);
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
        found_late_ = 1;
      } else {
        infeasible_.refuse(nearest.setting.plan, unfit(), nearest.prediction.peaks);
        result_.reasons = infeasible_.reasons();
      }
    } catch (const Error&) {
      if (!ends_look_()) throw;
      stop();
    }
  }

  // By their bounds, or by what was looked at.
  int64_t unfit() const {
    return std::count_if(layouts_.begin(), layouts_.end(), is_refuted) + chooser_.unfit() -
           found_late_;
  }

  void count() {
    const int64_t not_whole = result_.reasons.empty() ? infeasible_.count() : 0;
    result_.simulated = chooser_.fitting() - not_whole + found_late_;
    result_.infeasible = unfit() + not_whole;
    const int64_t not_judged = result_.layouts - std::ssize(layouts_);
    result_.not_looked_at = result_.complete() ? 0 : not_judged + chooser_.left();
    result_.bounded =
        result_.layouts - result_.simulated - result_.infeasible - result_.not_looked_at;
  }

  const RankingOptions& options_;
  const Measurements* const measurements_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  const std::function<bool()> ends_look_;
  const std::vector<OpenLayout> layouts_;
  LayoutChooser chooser_;
  const Usable usable_;
  Infeasible infeasible_;
  int64_t found_late_ = 0;  // layouts that fit after all
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
