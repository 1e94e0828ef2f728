// The body of a per-instruction-set GEMM unit: included once by each, never elsewhere.
//
// The unit defines `Eigen` as a name of its own before including this, so that no inline template
// compiled for a wider instruction set can be chosen by the linker for another unit.
#pragma once

#ifndef Eigen
#error "define Eigen as the unit's own namespace before including eigen_gemm.h"
#endif
#define EIGEN_DONT_PARALLELIZE
#define EIGEN_NO_DEBUG
#include <Eigen/Core>

#include "backend/host/gemm.h"

namespace ballast {
namespace {

template <class Real, int kOrder>
using Stored = Eigen::Map<const Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic, kOrder>,
                          Eigen::Unaligned, Eigen::OuterStride<>>;
template <class Real>
using Written = Eigen::Map<Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>,
                           Eigen::Unaligned, Eigen::OuterStride<>>;

// A stored [rows, columns] row-major matrix, transposed, is the same memory column-major.
template <class Real, int kOrderA, int kOrderB>
void product(const GemmArguments<Real>& g) {
  const Stored<Real, kOrderA> a(g.a, g.m, g.k, Eigen::OuterStride<>(g.lda));
  const Stored<Real, kOrderB> b(g.b, g.k, g.n, Eigen::OuterStride<>(g.ldb));
  Written<Real> c(g.c, g.m, g.n, Eigen::OuterStride<>(g.ldc));
  if (g.accumulate) {
    c.noalias() += g.alpha * a * b;
  } else {
    c.noalias() = g.alpha * a * b;
  }
}

template <class Real>
void eigen_gemm(const GemmArguments<Real>& g) {
  constexpr int kRow = Eigen::RowMajor;
  constexpr int kColumn = Eigen::ColMajor;
  if (g.transpose_a) {
    g.transpose_b ? product<Real, kColumn, kColumn>(g) : product<Real, kColumn, kRow>(g);
  } else {
    g.transpose_b ? product<Real, kRow, kColumn>(g) : product<Real, kRow, kRow>(g);
  }
}

}  // namespace
}  // namespace ballast
