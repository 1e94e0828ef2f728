// One search of `tune` with what goes around it: on the device at hand, operations are timed before
// they count, and plans are run.
//
// Will not do: choose devices or batches (cli/tune/tune_objectives.h), or print
// (cli/tune/tune_output.h).
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "cli/flags/tune_flags.h"
#include "cli/tune/search_cache.h"

namespace ballast {

class Tuner {
 public:
  // References must outlive this object. Throws Error where no layout is legal.
  Tuner(Setting setting, TuneFlags& flags, SearchCache& cache);

  SearchQuestion question(const std::string& label) const;
  // Searches; on the device at hand until the plans at the top have been timed.
  SearchResult run(const std::string& label);
  // Runs the most promising plans, and ranks what was found by them. Requires a best plan.
  MeasureResult measure_plans(SearchResult& found);

  const Setting& base() const { return of_; }
  const Measurements& measurements() const { return measurements_; }
  Setting with(const Plan& plan) const { return {of_.model, plan, of_.machine, of_.stack}; }

  // What was not timed of what a search is told by, in one line each.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  bool is_out_of_time() const;
  double taken_s() const;
  void measure_space();
  void add_candidates(SearchResult& found) const;
  bool measure(const Plan& plan, const std::function<bool()>& must_stop);
  bool measure_top(const SearchResult& found);

  using Clock = std::chrono::steady_clock;

  Clock::time_point began_ = Clock::now();  // first its space, then the search under way
  Setting of_;
  TuneFlags& flags_;
  SearchCache& cache_;
  SearchSpace space_;
  bool timed_;  // operations of the device at hand
  Measurements measurements_;
  Clock::duration spent_on_space_{};
  std::vector<std::string> notes_;
};

// The options of every search that these flags ask for.
SearchCacheOptions search_cache_options(const TuneFlags& flags);
// What is left of --deadline for the studies of what a tune found that has taken so long; after
// several searches, or where plans were run, which took longer together, what each search leaves of
// it. Seconds.
double studies_seconds(const TuneFlags& flags, double taken, size_t searches);

}  // namespace ballast
