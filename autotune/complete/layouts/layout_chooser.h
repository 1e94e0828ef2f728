// Completes the layouts of a setting, a few at a time and by estimates of their steps, from the
// most promising on; then the best of them as it is.
//
// Will not do: judge layouts by bounds (autotune/complete/layouts/open_layouts.h).
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "autotune/complete/estimates/completion_estimates.h"
#include "autotune/complete/layouts/layout_order.h"
#include "autotune/complete/layouts/layout_progress.h"
#include "autotune/complete/layouts/open_layouts.h"
#include "autotune/complete/one_layout.h"
#include "autotune/search/evaluate.h"

namespace ballast {

// How far layouts are looked at.
struct LayoutLook {
  LayoutReach reach = LayoutReach::kAll;
  double within = 1;  // of what takes less than so many times the best
  // Whether all that are near the best are asked about more closely, or a few.
  bool all_more_closely = false;
  bool any_is_enough = false;         // until one fits
  LayoutProgress::Listener looked{};  // may be empty
};

class LayoutChooser {
 public:
  struct Estimate {
    size_t layout = 0;  // index
    Setting setting;    // every knob has a value
    Duration step_time;
    bool is_slower = false;  // than what was the best, whose time this is: its own is not known
  };

  // References must outlive this object. `layouts`: as open_layouts() orders them, at least one.
  LayoutChooser(const std::vector<OpenLayout>& layouts, const Measurements* measurements,
                const std::function<bool()>& interrupted, LayoutLook how = {});

  // The fastest, or where none fits the one that comes nearest. Throws Error where it was
  // interrupted before it found one that fits.
  Completed run();

  // The best plan of each layout that was looked at and fits, as far as estimates tell: the fastest
  // first.
  std::vector<Estimate> look_at_all();
  // Of these layouts, none of which was found to fit: one that does after all, or else the one that
  // comes nearest.
  Completed nearest();

  // Whose plan does not fit as it is, whatever its estimate said. What its time ruled out is open
  // again.
  void drop(size_t layout);

  // What became of a layout. Of one whose completion was interrupted it stays open.
  enum class Fate : uint8_t { kOpen, kTimed, kSlower, kUnfit };
  Fate fate(size_t layout) const { return fates_[layout]; }
  int64_t count_of(Fate fate) const { return std::count(fates_.begin(), fates_.end(), fate); }
  // Whether it is open and its bounds leave room for a shorter step than what nothing may take
  // longer than.
  bool is_left(size_t layout) const;
  int64_t left() const;
  std::optional<Duration> best() const;

  // A graph may take seconds, of which a layout has dozens: none is begun after the interruption.
  void stop_when_interrupted() { known_.stop_when(interrupted_); }

  // One that fits, whatever time it takes.
  std::optional<Plan> lean();
  // The best of what was looked at, as far as estimates tell.
  std::optional<Plan> first();

 private:
  bool is_interrupted() const { return interrupted_ && interrupted_(); }
  // What nothing that is asked about may take longer than.
  std::optional<Duration> limit() const;
  void look();
  std::optional<Estimate> estimate_layout(size_t layout, std::optional<Duration> limit);
  Outcome estimate_searched(const Setting& setting) const;
  void complete(const std::vector<size_t>& layouts);
  std::vector<const Estimate*> near_the_best() const;
  void look_between();
  void drop_best();
  void choose_best();
  Completed whole();

  const std::vector<OpenLayout>& layouts_;
  const Measurements* measurements_;
  const std::function<bool()>& interrupted_;
  const LayoutLook how_;
  LayoutOrder order_;
  CompletionEstimates known_;
  std::vector<std::unique_ptr<Estimate>> estimates_;
  const Estimate* best_ = nullptr;  // of those
  int stalled_ = 0;
  std::vector<Fate> fates_;
};

}  // namespace ballast
