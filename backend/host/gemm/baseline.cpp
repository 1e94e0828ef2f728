// fp32 and fp64 for the instruction set that every machine of this architecture has.

#define Eigen EigenBaseline
#include "backend/host/gemm/eigen_gemm.h"
#include "backend/host/gemm/row_loops.h"
#include "backend/host/gemm/units.h"

namespace ballast {

constexpr GemmTable kGemmBaseline{"baseline", eigen_gemm<float>};
constexpr transformer::RowLoops<float> kRowsBaseline =
    transformer::make_row_loops<float>("baseline");
constexpr transformer::RowLoops<double> kRowsDouble = transformer::make_row_loops<double>("fp64");

void gemm_double(const GemmArguments<double>& arguments) { eigen_gemm<double>(arguments); }

}  // namespace ballast
