// fp32 for machines with AVX-512 (F, BW, VL, DQ); run only where the dispatcher finds them.

#define Eigen EigenAvx512
#include "backend/host/gemm/eigen_gemm.h"
#include "backend/host/gemm/row_loops.h"
#include "backend/host/gemm/units.h"

namespace ballast {

constexpr GemmTable kGemmAvx512{"avx512", eigen_gemm<float>};
constexpr transformer::RowLoops<float> kRowsAvx512 = transformer::make_row_loops<float>("avx512");

}  // namespace ballast
