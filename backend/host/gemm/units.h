// What each instruction set's unit (backend/gemm/*.cpp) offers to the dispatchers.
#pragma once

#include "backend/host/gemm.h"
#include "backend/host/transformer_rows.h"

namespace ballast {

extern const GemmTable kGemmBaseline;
extern const transformer::RowLoops<float> kRowsBaseline;
#if defined(__x86_64__)
extern const GemmTable kGemmAvx2;
extern const transformer::RowLoops<float> kRowsAvx2;
extern const GemmTable kGemmAvx512;
extern const transformer::RowLoops<float> kRowsAvx512;
#endif

// fp64 serves gradient checks, so one unit is enough.
void gemm_double(const GemmArguments<double>& arguments);
extern const transformer::RowLoops<double> kRowsDouble;

}  // namespace ballast
