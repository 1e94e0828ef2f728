// One search of `tune` with what goes around it: on the device at hand, operations are timed before
// they count, and plans are run.
//
// Will not do: choose devices or batches (cli/tune/tune_objectives.h), or print
// (cli/tune/tune_output.h).
#pragma once

#include <string>

#include "cli/flags/tune_flags.h"
#include "cli/tune/search_cache.h"

namespace ballast {

class Tuner {
 public:
  // References must outlive this object. Throws Error where no layout is legal.
  Tuner(Case of, TuneFlags& flags, Answers& answers);

  SearchQuestion question(const std::string& label) const;
  // Searches; on the device at hand until the plans at the top have been timed.
  SearchResult run(const std::string& label);
  // Runs the most promising plans, and ranks what was found by them. Requires a best plan.
  MeasureResult measure_plans(SearchResult& found);

  const Case& base() const { return of_; }
  const Measurements& measurements() const { return measurements_; }
  Case with(const Plan& plan) const { return {of_.model, of_.machine, plan}; }

 private:
  void measure_space();
  void add_candidates(SearchResult& found) const;
  bool measure(const Plan& plan);
  bool measure_top(const SearchResult& found);

  Case of_;
  TuneFlags& flags_;
  Answers& answers_;
  SearchSpace space_;
  bool timed_;  // operations of the device at hand
  Measurements measurements_;
};

// The options of every search that these flags ask for.
AnswerOptions answer_options(const TuneFlags& flags);

}  // namespace ballast
