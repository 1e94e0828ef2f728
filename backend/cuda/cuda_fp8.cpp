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
  bool turns() const { return from.orientation != wanted; }
};
struct CodesPlace {
  std::byte* codes = nullptr;
  std::byte* codes_as_stored = nullptr;  // beside those that are turned over, or null
  std::byte* scratch = nullptr;
  std::byte* scale = nullptr;
};

GemmOperand operand_of(const RoundedFactor& factor, const CodesPlace& place) {
  GemmOperand codes;
  codes.data = place.codes;
  codes.dtype = factor.is_gradient ? DType::kE5m2 : DType::kE4m3;
  codes.orientation = factor.wanted;
  codes.stride = factor.columns;
  codes.scale = reinterpret_cast<float*>(place.scale);
  return codes;
}

// In the order that is wanted, or in both.
void round_factor(const RoundedFactor& factor, const CodesPlace& place, CudaStream stream) {
  const bool both = place.codes_as_stored != nullptr;
  cuda::RoundMatrix matrix;
  matrix.from = {factor.from.data, format_of(factor.from.dtype)};
  matrix.rows = factor.turns() ? factor.columns : factor.rows;
  matrix.columns = factor.turns() ? factor.rows : factor.columns;
  matrix.stride = factor.from.stride;
  matrix.format = factor.is_gradient ? kernels::Fp8::kE5m2 : kernels::Fp8::kE4m3;
  matrix.order = both || factor.turns() ? cuda::CodeOrder::kTurned : cuda::CodeOrder::kAsStored;
  matrix.codes = reinterpret_cast<uint8_t*>(place.codes);
  matrix.codes_as_stored = reinterpret_cast<uint8_t*>(place.codes_as_stored);
  matrix.scale = reinterpret_cast<float*>(place.scale);
  matrix.scratch = place.scratch;
  check_launch(cuda::round_matrix(matrix, native_stream(stream)), stream);
}

GemmOperand rounded(const RoundedFactor& factor, const CodesPlace& place, CudaStream stream) {
  round_factor(factor, place, stream);
  return operand_of(factor, place);
}

// A matrix of a gradient that two products take.
GemmOperand shared(const RoundedFactor& factor, const Fp8Product& product, const GemmWork& work,
                   CudaStream stream) {
  CHECK(product.gradient_codes != nullptr && factor.is_gradient);
  const auto matrix = static_cast<int64_t>(product.gradient.matrix);
  CHECK(matrix < kScalesOfGradient);
  const GradientCodesLayout layout = gradient_codes_layout(work);
  const int64_t tokens = factor.turns() ? factor.columns : factor.rows;
  std::byte* const stored = product.gradient_codes + tokens * product.gradient.column;
  std::byte* const scales = product.gradient_codes + layout.scales.count;
  CodesPlace place{stored + layout.turned.count, stored, product.scratch,
                   scales + matrix * kScales.count};
  if (work.rounding == Rounding::kForNext) round_factor(factor, place, stream);
  if (!factor.turns()) place.codes = stored;
  return operand_of(factor, place);
}

}  // namespace

Bytes fp8_scratch_bytes() { return Bytes{cuda::round_matrix_scratch_bytes()} + kScales; }

void multiply_in_fp8(const Fp8Product& product, const GemmWork& work, CudaProducts& products,
                     CudaStream stream) {
  CudaGemm gemm = product.gemm;
  const bool shares = work.rounding == Rounding::kForNext || work.rounding == Rounding::kSecond;
  const int64_t first = shares ? 0 : codes_layout({gemm.m, gemm.n, gemm.k}).second.count;
  std::byte* const scales = product.scratch + cuda::round_matrix_scratch_bytes();
  const GradientFactor gradient = product.gradient.factor;
  const RoundedFactor a{product.gemm.a, gemm.m, gemm.k, Orientation::kAsStored,
                        gradient == GradientFactor::kA};
  const RoundedFactor b{product.gemm.b, gemm.n, gemm.k, Orientation::kTransposed,
                        gradient == GradientFactor::kB};
  const auto codes_of = [&](const RoundedFactor& factor, const CodesPlace& own) {
    if (shares && factor.is_gradient) return shared(factor, product, work, stream);
    return rounded(factor, own, stream);
  };
  gemm.a = codes_of(a, {product.codes, nullptr, product.scratch, scales});
  gemm.b = codes_of(b, {product.codes + first, nullptr, product.scratch, scales + kSecondScale});
  products.multiply(gemm, stream);
}

}  // namespace ballast
