#include "backend/cuda/cuda_fp8.h"

#include "backend/cuda/cuda_launch.h"
#include "backend/execute/operation_arguments.h"
#include "sim/graph/build.h"

namespace ballast {

namespace {

namespace cuda = kernels::cuda;

// After the kernels' scratch.
constexpr Bytes kScales{256};
constexpr int64_t kSecondScale = 128;

// What one factor becomes: its rows along the summed side, codes next to each other.
struct RoundedFactor {
  const GemmOperand& from;
  int64_t rows = 0;     // of the codes
  int64_t columns = 0;  // of the codes: what is summed over
  Orientation wanted{};
  bool is_gradient = false;
};
struct CodesPlace {
  std::byte* codes = nullptr;
  std::byte* scratch = nullptr;
  std::byte* scale = nullptr;
};

GemmOperand rounded(const RoundedFactor& rounding, const CodesPlace& place, CudaStream stream) {
  const bool turns = rounding.from.orientation != rounding.wanted;
  cuda::RoundMatrix matrix;
  matrix.from = {rounding.from.data, format_of(rounding.from.dtype)};
  matrix.rows = turns ? rounding.columns : rounding.rows;
  matrix.columns = turns ? rounding.rows : rounding.columns;
  matrix.stride = rounding.from.stride;
  matrix.format = rounding.is_gradient ? kernels::Fp8::kE5m2 : kernels::Fp8::kE4m3;
  matrix.order = turns ? cuda::CodeOrder::kTurned : cuda::CodeOrder::kAsStored;
  matrix.codes = reinterpret_cast<uint8_t*>(place.codes);
  matrix.scale = reinterpret_cast<float*>(place.scale);
  matrix.scratch = place.scratch;
  check_launch(cuda::round_matrix(matrix, native_stream(stream)), stream);
  GemmOperand codes;
  codes.data = place.codes;
  codes.dtype = rounding.is_gradient ? DType::kE5m2 : DType::kE4m3;
  codes.orientation = rounding.wanted;
  codes.stride = rounding.columns;
  codes.scale = matrix.scale;
  return codes;
}

}  // namespace

Bytes fp8_scratch_bytes() { return Bytes{cuda::round_matrix_scratch_bytes()} + kScales; }

void multiply_in_fp8(const Fp8Product& product, CudaProducts& products, CudaStream stream) {
  CudaGemm gemm = product.gemm;
  const CodesLayout layout = codes_layout({gemm.m, gemm.n, gemm.k});
  std::byte* const scales = product.scratch + cuda::round_matrix_scratch_bytes();
  const RoundedFactor a{product.gemm.a, gemm.m, gemm.k, Orientation::kAsStored,
                        product.gradient == GradientFactor::kA};
  const RoundedFactor b{product.gemm.b, gemm.n, gemm.k, Orientation::kTransposed,
                        product.gradient == GradientFactor::kB};
  gemm.a = rounded(a, {product.codes, product.scratch, scales}, stream);
  gemm.b = rounded(b, {product.codes + layout.second.count, product.scratch, scales + kSecondScale},
                   stream);
  products.multiply(gemm, stream);
}

}  // namespace ballast
