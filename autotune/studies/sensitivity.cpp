#include "autotune/studies/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "autotune/studies/explain.h"
#include "sim/base/error.h"
#include "sim/base/stop.h"
#include "sim/engine/bottlenecks.h"

namespace ballast {
namespace {

class Study {
 public:
  Study(const SensitivityQuestion& question, const Measurements* measurements,
        const SensitivityOptions& options, const Ask& ask)
      : question_(question), measurements_(measurements), options_(options), ask_(ask) {
    const SearchQuestion& search = question.search;
    same_ = predict(search.model, question.best.plan, search.machine, search.stack, measurements);
  }

  // Nothing: interrupted before its points were known.
  std::optional<Sensitivity> of(const MachineFigure& figure) const {
    Sensitivity result;
    result.figure = figure;
    for (const double factor : options_.factors) {
      std::optional<SensitivityPoint> point = at(figure, factor);
      if (!point) return std::nullopt;
      result.points.push_back(*std::move(point));
    }
    result.elasticity = elasticity(result.points);
    result.switches_at = nearest_switch(figure, result.points);
    return result;
  }

 private:
  std::optional<SensitivityPoint> at(const MachineFigure& figure, double factor) const {
    SearchQuestion search = question_.search;
    search.machine = with_figure(search.machine, figure, factor);
    search.label = fmt::format("{} x {:.3g}", figure.name, factor);
    SensitivityPoint point;
    point.factor = factor;
    point.value = figure.value * factor;
    const Plan& same = question_.best.plan;
    if (same_.fits) {
      const SearchQuestion& asked = question_.search;
      point.same_plan =
          step_time_on({same_, same, asked.machine, asked.stack, measurements_}, search.machine);
    }
    const std::optional<SearchResult> found = ask_(search);
    if (!found || found->stop == SearchStop::kInterrupt) return std::nullopt;
    if (found->best) {
      point.step_time = found->best->step_time;
      point.differs = differing_knobs(found->best->plan, same);
    }
    // A search with a tolerance, or one that was stopped, may miss what is known already.
    if (point.same_plan && (!point.step_time || *point.same_plan <= *point.step_time)) {
      point.step_time = point.same_plan;
      point.differs.clear();
    }
    point.decided = point.step_time || found->complete();
    return point;
  }

  double elasticity(const std::vector<SensitivityPoint>& points) const {
    const double here = question_.best.step_time.seconds();
    struct End {
      double factor;
      double seconds;
    };
    End low{1, here};
    End high{1, here};
    for (const SensitivityPoint& point : points) {
      if (!point.step_time) continue;
      const End end{point.factor, point.step_time->seconds()};
      if (point.factor < 1) low = end;  // the last one below 1
      if (point.factor > 1 && high.factor == 1) high = end;
    }
    if (low.factor == high.factor) return 0;
    return std::log(high.seconds / low.seconds) / std::log(high.factor / low.factor);
  }

  bool is_switch(const SensitivityPoint& point) const {
    if (!point.step_time || point.differs.empty()) return false;
    return !point.same_plan ||
           point.same_plan->seconds() > (1 + options_.lead) * point.step_time->seconds();
  }

  std::optional<PlanSwitch> nearest_switch(const MachineFigure& figure,
                                           const std::vector<SensitivityPoint>& points) const {
    const SensitivityPoint* nearest = nullptr;
    for (const SensitivityPoint& point : points) {
      if (!is_switch(point)) continue;
      const bool nearer =
          !nearest || std::abs(std::log(point.factor)) < std::abs(std::log(nearest->factor));
      if (nearer) nearest = &point;
    }
    if (!nearest) return std::nullopt;
    double same = 1;  // the last factor on the way there at which this plan still wins
    for (const SensitivityPoint& point : points) {
      const bool between = nearest->factor < 1 ? point.factor < 1 && point.factor > nearest->factor
                                               : point.factor > 1 && point.factor < nearest->factor;
      const bool farther = std::abs(std::log(point.factor)) > std::abs(std::log(same));
      if (between && farther) same = point.factor;
    }
    SensitivityPoint other = *nearest;
    while (std::max(other.factor / same, same / other.factor) > options_.resolution) {
      const std::optional<SensitivityPoint> middle = at(figure, std::sqrt(same * other.factor));
      if (!middle) break;
      if (is_switch(*middle)) {
        other = *middle;
      } else {
        same = middle->factor;
      }
    }
    return PlanSwitch{other.factor, other.value, other.differs};
  }

  const SensitivityQuestion& question_;
  const Measurements* measurements_;
  const SensitivityOptions& options_;
  const Ask& ask_;
  Prediction same_;  // of the best plan on the machine as it is
};

}  // namespace

std::vector<Sensitivity> sensitivities(const SensitivityQuestion& question,
                                       const Measurements* measurements,
                                       const SensitivityOptions& options, const Ask& ask,
                                       const std::function<bool()>& interrupted) {
  std::vector<Sensitivity> results;
  unless_stopped(interrupted, [&] {
    const Study study(question, measurements, options, ask);
    for (const MachineFigure& figure :
         machine_figures(question.search.machine, question.best.plan.dtype)) {
      std::optional<Sensitivity> one = study.of(figure);
      if (!one) return false;
      results.push_back(*std::move(one));
    }
    return true;
  });
  std::stable_sort(results.begin(), results.end(), [](const Sensitivity& a, const Sensitivity& b) {
    return std::abs(a.elasticity) > std::abs(b.elasticity);
  });
  return results;
}

}  // namespace ballast
