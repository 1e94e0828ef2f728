#include "cli/tune/choice_progress.h"

#include <algorithm>
#include <fmt/format.h>
#include <mutex>
#include <set>

#include "cli/text/least_changes.h"
#include "cli/text/tables.h"

namespace ballast {

void show(Progress& progress, const std::string& where, const LayoutProgress& at) {
  const double share = static_cast<double>(at.looked_at) /
                       static_cast<double>(std::max<int64_t>(1, at.looked_at + at.left));
  progress.show(
      share, fmt::format("{}best {}, {} of {} layouts looked at, {} to go", where,
                         at.best ? show(*at.best) : "none yet", at.looked_at, at.layouts, at.left));
}

Completed complete_in_sight(Setting setting, const Measurements* measurements,
                            const std::function<bool()>& interrupted) {
  Progress progress("choose", Progress::Kind::kMoment);
  return complete(std::move(setting), measurements, interrupted,
                  [&](const LayoutProgress& at) { show(progress, "", at); });
}

std::vector<LeastChange> least_changes_in_sight(LeastChangeQuestion question) {
  Progress progress("what would fit", Progress::Kind::kMoment);
  std::mutex mutex;
  std::set<Limit> begun;
  question.looks_at = [&](Limit limit, double value) {
    const std::lock_guard lock(mutex);
    begun.insert(limit);
    progress.show(static_cast<double>(begun.size() - 1) / kLimits, limit_text(limit, value));
  };
  return least_changes(question);
}

}  // namespace ballast
