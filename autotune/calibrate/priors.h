// Priors: where the constants of a framework are believed to lie before any case is seen.
//
// Will not do: fit (hierarchy, calibrate).
#pragma once

#include <Eigen/Dense>
#include <string>
#include <string_view>
#include <vector>

#include "autotune/calibrate/hierarchy.h"
#include "sim/spec/stack.h"

namespace ballast {

// In the units of the constant, but for standard deviations, which are of its coordinate
// (sim/spec/stack.h).
struct Prior {
  double value = 0;    // of the typical framework
  double width = 0;    // standard deviation of what is believed of the typical framework
  double between = 0;  // standard deviation of frameworks around the typical one
  double least = 0;
  double most = 0;
};
// By index of constant_name().
Prior prior_of(int index);
// Every constant at its prior.
StackConstants prior_constants();
// StackConstants::sustained_gemm of a generation, before any case is seen.
double sustained_gemm_prior(std::string_view generation);
// The same for all constants together, with the spreads of what constants leave open, and for what
// these generations of GPUs sustain.
HierarchyPrior hierarchy_prior(const std::vector<std::string>& generations);

// Coordinates of all constants and back, kept within the bounds.
Eigen::VectorXd free_of(const StackConstants& constants);
StackConstants constants_of(const Eigen::VectorXd& free);

}  // namespace ballast
