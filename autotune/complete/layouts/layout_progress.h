// How far a choice among layouts is: for who shows it.
//
// Will not do: show it (cli/tune/choice_progress.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "sim/base/units.h"

namespace ballast {

struct LayoutProgress {
  int64_t layouts = 0;
  int64_t looked_at = 0;  // those that no bound decided
  int64_t left = 0;       // to look at, as far as is known by now
  std::optional<Duration> best;

  // Hears of it after each few layouts.
  using Listener = std::function<void(const LayoutProgress&)>;
};

}  // namespace ballast
