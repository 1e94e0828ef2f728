// SearchCache: searches that are remembered. What was found for a question is kept in the store, so
// a call that was interrupted goes on after the searches that it had finished, and the same
// question asked again is answered at once.
//
// A question is everything that the result depends on: model, machine, what was measured on it,
// layouts, open knobs, options, and the very program. Searches that were interrupted are not kept;
// one that its deadline stopped answers only those that would have stopped no later.
// Will not do: search (autotune/search), or choose what to ask (cli/tune_*).
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "autotune/search/search_question.h"
#include "cli/flags/inputs.h"
#include "cli/terminal/interrupt.h"

namespace ballast {

struct SearchCacheOptions {
  double deadline_s = 60;  // of each search
  bool exhaustive = false;
  bool again = false;  // search even what the store knows
};

class SearchCache {
 public:
  SearchCache(const SearchCacheOptions& options, const StoreFlag& store)
      : options_(options), store_(store), watch_(std::in_place) {}

  // Shows progress. Where it is interrupted: the best so far, not complete. Throws Error before
  // the first question is looked at, where the store could not take what is found.
  SearchResult ask(const SearchQuestion& question, const Measurements& measurements);
  // The same for studies: nothing where it was interrupted before.
  Ask asker(const Measurements& measurements);

  bool interrupted() const { return interrupted_ || (watch_ && watch_->interrupted()); }
  // From here on there are so many seconds for all that is asked together.
  void limit_studies(double seconds);
  bool is_out_of_time() const;
  bool must_stop() const { return interrupted() || is_out_of_time(); }
  // That as a function, for what is not a search. This object must outlive it.
  std::function<bool()> interruption() const {
    return [this] { return must_stop(); };
  }
  int64_t asked() const { return asked_; }
  int64_t from_store() const { return from_store_; }
  // Shown in front of the progress of searches from here on: where a call with several stands.
  void set_standing(const std::string& standing) { standing_ = standing; }
  // Of searches from here on.
  void set_deadline(double seconds) { options_.deadline_s = seconds; }
  // What of the deadline is spent already before a search begins, of those from here on: they have
  // the rest, and a quarter at least. What they answer counts as that of the whole deadline.
  void set_spent(double seconds) { spent_s_ = seconds; }
  // Signals end the program again, or are watched by others. Remembers whether one came.
  void stop_watching();

 private:
  double left_s() const {
    return std::max(options_.deadline_s - spent_s_, options_.deadline_s / 4);
  }
  std::optional<SearchResult> known(const std::string& question) const;
  void keep(const SearchRecord& record) const;
  std::string place_of(const SearchQuestion& question) const;
  SearchResult rank_now(const SearchQuestion& question, const Measurements& measurements);
  SearchResult search_now(const SearchQuestion& question, const Measurements& measurements);

  SearchCacheOptions options_;
  const StoreFlag& store_;
  std::optional<InterruptWatch> watch_;
  double spent_s_ = 0;
  std::string standing_;
  std::optional<std::chrono::steady_clock::time_point> studies_end_;
  bool interrupted_ = false;
  int64_t asked_ = 0;
  int64_t from_store_ = 0;
};

// The whole result as JSON, and back: equal to what went in.
std::string answer_json(const SearchResult& result);
// Throws Error, naming `source`, for text that is no answer.
SearchResult parse_answer(const std::string& text, const std::string& source);

}  // namespace ballast
