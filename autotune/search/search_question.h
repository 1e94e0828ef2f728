// Ask: one search as a question, for studies that need many of them (objectives, fronts,
// sensitivities). Who answers may search, look up what was found before, or stop.
//
// Will not do: search (autotune/search), or remember (cli/tune/search_cache).
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "autotune/search/search.h"

namespace ballast {

struct SearchQuestion {
  std::string label;  // "16 devices", for whoever watches
  Model model;
  Machine machine;  // limits of memory are limits of this machine
  SearchSpace space;
  double tolerance = 0;  // this and the next as in SearchOptions
  size_t ranked = 10;
};

// Any plan that fits answers: with this tolerance nothing is looked for once one was found.
inline constexpr double kAnyPlan = 1;

// Nothing: interrupted before it began. A result that is not complete says what stopped it; where
// it was interrupted, nothing more will be answered.
using Ask = std::function<std::optional<SearchResult>(const SearchQuestion&)>;

}  // namespace ballast
