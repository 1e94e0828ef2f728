// The fastest plans among layouts, as a framework runs them that a search does not know
// (autotune/search makes its bounds of Ballast's own graphs).
//
// Every layout is completed as complete() does it, the most promising first, until the bound of
// none that is left promises less time than the best takes. So the result is as good as the lists
// that completions are taken from (autotune/complete/completion_lists.h). Its counts are of
// layouts: `simulated` are those of which a plan was timed. It proves nothing of other plans.
// Will not do: say which layouts there are (autotune/complete/layouts/open_layouts.h).
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "autotune/complete/setting.h"
#include "autotune/search/search.h"

namespace ballast {

struct RankingProgress {
  int64_t layouts = 0;
  int64_t looked_at = 0;  // of which no bound decides
  int64_t left = 0;       // to look at, as far as is known by now
  std::optional<Duration> best;
};

struct RankingOptions {
  std::optional<double> deadline_s;    // stop then with the best so far
  std::function<bool()> interrupted{};  // asked on any thread; may be empty
  // Layouts that can be faster than the best by less than this share are left alone; kAnyPlan: once
  // one fits, all are. Where it is 0 those within 5 % of the best are timed too, for a ranking is
  // asked what comes next.
  double tolerance = 0;
  size_t ranked = 10;  // candidates to return, as far as there is time to predict them
  std::function<void(const RankingProgress&)> progress{};  // on this thread; may be empty
};

// `layouts`: with open knobs, of which each passes check(); those of a strategy stand together. At
// least one; all have the same devices and global batch. like.plan is not read. `measurements` may
// be null.
SearchResult rank_layouts(Setting like, const std::vector<Plan>& layouts,
                          const Measurements* measurements, const RankingOptions& options);

}  // namespace ballast
