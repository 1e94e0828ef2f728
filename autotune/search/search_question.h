// Ask: one search as a question, for studies that need many of them (objectives, fronts,
// sensitivities). Who answers may search, look up what was found before, or stop.
//
// Will not do: search (autotune/search), or remember (cli/tune/search_cache).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "autotune/search/search.h"
#include "sim/spec/stack.h"

namespace ballast {

struct SearchQuestion {
  std::string label;  // "16 devices", for whoever watches
  Model model;
  Machine machine;  // limits of memory are limits of this machine
  SearchSpace space;
  // Who runs the plans. Of another than Ballast, layouts are ranked: nothing of space.open is
  // looked at, for they have open knobs themselves (autotune/complete/layouts/ranking.h).
  Stack stack{};
  double tolerance = 0;  // this and the next as in SearchOptions
  size_t ranked = 10;
};

// What the counts of a result are of: plans of Ballast's, layouts of another's.
inline const char* counted(std::string_view stack, int64_t count) {
  if (stack == kBallastStack) return count == 1 ? "plan" : "plans";
  return count == 1 ? "layout" : "layouts";
}

// Any plan that fits answers: with this tolerance nothing is looked for once one was found.
inline constexpr double kAnyPlan = 1;

// Nothing: interrupted before it began. A result that is not complete says what stopped it; where
// it was interrupted, nothing more will be answered.
using Ask = std::function<std::optional<SearchResult>(const SearchQuestion&)>;

}  // namespace ballast
