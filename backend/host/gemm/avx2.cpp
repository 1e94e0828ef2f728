// fp32 for machines with AVX2 and FMA; run only where the dispatcher finds them.

#define Eigen EigenAvx2
#include "backend/host/gemm/eigen_gemm.h"
#include "backend/host/gemm/row_loops.h"
#include "backend/host/gemm/units.h"

namespace ballast {

constexpr GemmTable kGemmAvx2{"avx2", eigen_gemm<float>};
constexpr transformer::RowLoops<float> kRowsAvx2 = transformer::make_row_loops<float>("avx2");

}  // namespace ballast
