#include "sim/engine/tables/correction.h"

#include <algorithm>
#include <cmath>

#include "sim/base/error.h"

namespace ballast {
namespace {

constexpr size_t kKindAxis = kCorrectionAxes - 1;

// Lower triangle of a symmetric matrix, row by row; replaced by its Cholesky factor.
class Triangle {
 public:
  explicit Triangle(size_t size) : size_(size), values_(size * (size + 1) / 2) {}
  double& at(size_t row, size_t column) { return values_[row * (row + 1) / 2 + column]; }

  void factor() {
    for (size_t row = 0; row < size_; ++row) {
      for (size_t column = 0; column <= row; ++column) {
        double sum = at(row, column);
        for (size_t i = 0; i < column; ++i) sum -= at(row, i) * at(column, i);
        if (row == column) CHECK(sum > 0);
        at(row, column) = row == column ? std::sqrt(sum) : sum / at(column, column);
      }
    }
  }

  // Requires factor(). Solves in place.
  void solve(std::vector<double>& values) {
    for (size_t row = 0; row < size_; ++row) {
      for (size_t i = 0; i < row; ++i) values[row] -= at(row, i) * values[i];
      values[row] /= at(row, row);
    }
    for (size_t row = size_; row-- > 0;) {
      for (size_t i = row + 1; i < size_; ++i) values[row] -= at(i, row) * values[i];
      values[row] /= at(row, row);
    }
  }

 private:
  size_t size_;
  std::vector<double> values_;
};

// Sorts, and makes points at one place their geometric mean.
std::vector<Correction::Point> merged(std::vector<Correction::Point> points) {
  std::stable_sort(points.begin(), points.end(),
                   [](const auto& a, const auto& b) { return a.at < b.at; });
  std::vector<Correction::Point> result;
  for (size_t begin = 0; begin < points.size();) {
    size_t end = begin;
    double sum = 0;
    for (; end < points.size() && points[end].at == points[begin].at; ++end) {
      sum += std::log(points[end].ratio);
    }
    result.push_back({points[begin].at, std::exp(sum / static_cast<double>(end - begin))});
    begin = end;
  }
  return result;
}

}  // namespace

Correction::Correction(std::vector<Point> points, const TablePlace& reach)
    : points_(merged(std::move(points))), reach_(reach) {
  if (points_.empty()) return;
  least_ = most_ = points_.front().at;
  std::vector<double> logs;
  for (const Point& point : points_) {
    CHECK(point.ratio > 0 && std::isfinite(point.ratio));
    logs.push_back(std::log(point.ratio));
    for (size_t axis = 0; axis < kCorrectionAxes; ++axis) {
      least_[axis] = std::min(least_[axis], point.at[axis]);
      most_[axis] = std::max(most_[axis], point.at[axis]);
    }
  }
  std::vector<double> sorted = logs;
  std::sort(sorted.begin(), sorted.end());
  median_ = sorted[sorted.size() / 2];
  Triangle matrix(points_.size());
  for (size_t row = 0; row < points_.size(); ++row) {
    for (size_t column = 0; column <= row; ++column) {
      matrix.at(row, column) = covariance(points_[row].at, points_[column].at);
    }
    matrix.at(row, row) += 1e-9;  // places that rounding alone tells apart
  }
  matrix.factor();
  for (const double log : logs) weights_.push_back(log - median_);
  matrix.solve(weights_);
}

double Correction::covariance(const TablePlace& a, const TablePlace& b) const {
  double sum = 0;
  for (size_t axis = 0; axis < kCorrectionAxes; ++axis) {
    if (reach_[axis] <= 0) continue;
    const bool kind = axis == kKindAxis;
    const double apart = kind ? (a[axis] == b[axis] ? 0 : 1) : a[axis] - b[axis];
    const double difference = apart / reach_[axis];
    sum += difference * difference;
  }
  return std::exp(-std::sqrt(sum));
}

double Correction::ratio_at(TablePlace at) const {
  if (points_.empty()) return 1;
  for (size_t axis = 0; axis < kKindAxis; ++axis) {
    at[axis] = std::clamp(at[axis], least_[axis], most_[axis]);
  }
  double log = median_;
  for (size_t i = 0; i < points_.size(); ++i) {
    log += weights_[i] * covariance(at, points_[i].at);
  }
  return std::exp(log);
}

}  // namespace ballast
