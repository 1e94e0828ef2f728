// How low a convex curve can be between the points of it that are known.
//
// Beyond two of its points such a curve lies on or above the line through them. Will not do: say
// that a curve is convex.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace ballast {

struct CurvePoint {
  int64_t at = 0;
  double value = 0;
};

// Where it can be lowest from `from` to `to`, of those that are not known, and how low; the middle
// between two points where it could be lowest beside one of them. Minus infinity where no line
// tells. Nothing where all are known. `points`: ascending. `steeper`: how many times as steep as
// through two points it may fall, and as slowly rise, for curves that are not quite convex; 1 or
// more.
std::optional<CurvePoint> lowest_of_convex(std::span<const CurvePoint> points, int64_t from,
                                           int64_t to, double steeper = 1);

}  // namespace ballast
