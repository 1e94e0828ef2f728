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

#include "autotune/complete/layouts/layout_progress.h"
#include "autotune/complete/setting.h"
#include "autotune/search/search.h"
#include "sim/engine/interval.h"

namespace ballast {

struct RankingOptions {
  std::optional<double> deadline_s;     // stop then with the best so far
  std::function<bool()> interrupted{};  // asked on any thread; may be empty
  // Layouts that may take less than so many times the best are looked at: as far as nobody can tell
  // two plans apart, for a ranking is asked what comes next.
  double within = 1 + told_apart_from();
  bool any_is_enough = false;  // until one fits
  size_t ranked = 10;          // candidates to return, as far as there is time to predict them
  LayoutProgress::Listener progress{};  // on this thread; may be empty
};

// `layouts`: with open knobs, of which each passes check(); those of a strategy stand together. At
// least one; all have the same devices and global batch. like.plan is not read. `measurements` may
// be null.
SearchResult rank_layouts(Setting like, const std::vector<Plan>& layouts,
                          const Measurements* measurements, const RankingOptions& options);

}  // namespace ballast
