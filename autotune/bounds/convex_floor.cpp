#include "autotune/bounds/convex_floor.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sim/base/error.h"

namespace ballast {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

struct Line {
  CurvePoint from;
  double slope = 0;
  double at(int64_t x) const { return from.value + slope * static_cast<double>(x - from.at); }
};

double slope_of(const CurvePoint& a, const CurvePoint& b) {
  return (b.value - a.value) / static_cast<double>(b.at - a.at);
}

// Through the two points before number `next`, onwards.
std::optional<Line> line_before(std::span<const CurvePoint> points, size_t next, double steeper) {
  if (next < 2) return std::nullopt;
  const double slope = slope_of(points[next - 2], points[next - 1]);
  return Line{points[next - 1], slope < 0 ? slope * steeper : slope / steeper};
}

// Through number `next` and the one after it, backwards.
std::optional<Line> line_behind(std::span<const CurvePoint> points, size_t next, double steeper) {
  if (next + 1 >= points.size()) return std::nullopt;
  const double slope = slope_of(points[next], points[next + 1]);
  return Line{points[next], slope > 0 ? slope * steeper : slope / steeper};
}

// Where the higher of two lines is lowest, from `from` to `to`.
CurvePoint lowest_of(const std::optional<Line>& one, const std::optional<Line>& other, int64_t from,
                     int64_t to) {
  const auto higher = [&](int64_t x) {
    return std::max(one ? one->at(x) : kNothing, other ? other->at(x) : kNothing);
  };
  CurvePoint lowest{from, higher(from)};
  const auto look_at = [&](int64_t x) {
    if (higher(x) < lowest.value) lowest = {x, higher(x)};
  };
  look_at(to);
  if (one && other && one->slope != other->slope) {
    const double crossing =
        (other->at(from) - one->at(from)) / (one->slope - other->slope) + static_cast<double>(from);
    if (crossing > static_cast<double>(from) && crossing < static_cast<double>(to)) {
      look_at(static_cast<int64_t>(std::floor(crossing)));
      look_at(static_cast<int64_t>(std::ceil(crossing)));
    }
  }
  return lowest;
}

}  // namespace

std::optional<CurvePoint> lowest_of_convex(std::span<const CurvePoint> points, int64_t from,
                                           int64_t to, double steeper) {
  CHECK(steeper >= 1);
  std::optional<CurvePoint> lowest;
  for (size_t next = 0; next <= points.size(); ++next) {
    const int64_t first = next == 0 ? from : std::max(from, points[next - 1].at + 1);
    const int64_t last = next == points.size() ? to : std::min(to, points[next].at - 1);
    if (first > last) continue;
    const std::optional<Line> before = line_before(points, next, steeper);
    const std::optional<Line> behind = line_behind(points, next, steeper);
    CurvePoint here = lowest_of(before, behind, first, last);
    const bool is_between = next > 0 && next < points.size();
    // A line that nothing meets is lowest beside a point that is known.
    const bool is_open = is_between ? !before || !behind : !before && !behind;
    if (is_open) here.at = first + (last - first) / 2;
    if (!lowest || here.value < lowest->value) lowest = here;
  }
  return lowest;
}

}  // namespace ballast
