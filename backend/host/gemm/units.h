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
// On the calling thread, with elements of its own to copy factors into.
using Bf16Gemm = void (*)(const Bf16Product&, uint16_t* workspace);
inline constexpr int64_t kBf16Workspace = 2 * 384 * 384;
extern const Bf16Gemm kGemmAvx512Bf16;
#endif

// fp64 serves gradient checks, so one unit is enough.
void gemm_double(const GemmArguments<double>& arguments);
extern const transformer::RowLoops<double> kRowsDouble;

}  // namespace ballast
