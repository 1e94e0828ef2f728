// What a simple model misses at measured points, interpolated to every other.
//
// Simple kriging (Cressie, Statistics for Spatial Data, 1993, section 3.2) of the logarithm of
// measured over modelled, with the covariance exp(-distance): every point returns itself, between
// points the correction goes over almost linearly, and far from all of them it tends to the median
// of the points. In one dimension it is linear interpolation that fades out. A place outside the
// box of the points is moved to its edge, because beyond it the model alone knows how a time grows.
// Will not do: know what the coordinates mean.
#pragma once

#include <array>
#include <vector>

namespace ballast {

inline constexpr int kCorrectionAxes = 5;
// Unused axes are 0. Sizes come as logarithms. The last axis is a kind: two numbers are the same or
// not, and it has no edge.
using TablePlace = std::array<double, kCorrectionAxes>;

class Correction {
 public:
  struct Point {
    TablePlace at{};
    double ratio = 1;  // measured over modelled, above 0
  };
  Correction() = default;
  // `reach`: the distance along each axis that counts as 1. Points at one place become their
  // geometric mean. Solves a system of as many equations as points.
  Correction(std::vector<Point> points, const TablePlace& reach);

  // 1 where there are no points.
  double ratio_at(TablePlace at) const;
  bool empty() const { return points_.empty(); }

 private:
  double covariance(const TablePlace& a, const TablePlace& b) const;

  std::vector<Point> points_;
  std::vector<double> weights_;
  TablePlace reach_{};
  TablePlace least_{}, most_{};
  double median_ = 0;  // of the logarithms
};

}  // namespace ballast
