#include "backend/cuda/cuda_fp8.h"

#include "backend/cuda/cuda_launch.h"
#include "backend/execute/operation_arguments.h"
#include "sim/graph/build.h"

namespace ballast {

namespace {

namespace cuda = kernels::cuda;

// After the kernels' scratch.
constexpr Bytes kScales{kCodesAlignment};
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

// Codes that several products share.
struct SharedCodes {
  std::byte* codes = nullptr;
  SharedCodesLayout layout;
  int64_t begin = 0;  // of the matrix, elements
  bool makes = false;
};

GemmOperand shared(const RoundedFactor& factor, const Fp8Product& product, const SharedCodes& from,
                   CudaStream stream) {
  const auto matrix = static_cast<int64_t>(product.matrix.index);
  CHECK(from.codes != nullptr && matrix < kSharedScales);
  std::byte* const stored = from.codes + from.begin;
  std::byte* const scales = from.codes + from.layout.scales.count;
  CodesPlace place{stored + from.layout.turned.count, stored, product.scratch,
                   scales + matrix * kScales.count};
  if (from.makes) round_factor(factor, place, stream);
  if (!factor.turns()) place.codes = stored;
  return operand_of(factor, place);
}

// Of a gradient that two products take.
SharedCodes of_gradient(const RoundedFactor& factor, const Fp8Product& product,
                        const GemmWork& work) {
  CHECK(factor.is_gradient);
  const int64_t tokens = factor.turns() ? factor.columns : factor.rows;
  return {product.codes.of_gradient, gradient_codes_layout(work), tokens * product.matrix.column,
          work.rounding == Rounding::kForNext};
}

// Of a weight: the forward sums over its inputs, the backward over its outputs.
SharedCodes of_weight(const Fp8Product& product, const GemmWork& work) {
  const bool forward = product.matrix.gradient == GradientFactor::kNone;
  const int64_t inputs = forward ? product.gemm.k : product.gemm.n;
  return {product.codes.of_weight, weight_codes_layout(work), inputs * product.matrix.column,
          work.weight_codes == WeightCodes::kMakes};
}

}  // namespace

Bytes fp8_scratch_bytes() { return Bytes{cuda::round_matrix_scratch_bytes()} + kScales; }

void multiply_in_fp8(const Fp8Product& product, const GemmWork& work, CudaProducts& products,
                     CudaStream stream) {
  CudaGemm gemm = product.gemm;
  const bool shares_gradient =
      work.rounding == Rounding::kForNext || work.rounding == Rounding::kSecond;
  const bool shares_weight = work.weight_codes != WeightCodes::kOwn;
  const int64_t first = shares_gradient ? 0 : codes_layout({gemm.m, gemm.n, gemm.k}).second.count;
  std::byte* const scales = product.scratch + cuda::round_matrix_scratch_bytes();
  const GradientFactor gradient = product.matrix.gradient;
  const RoundedFactor a{product.gemm.a, gemm.m, gemm.k, Orientation::kAsStored,
                        gradient == GradientFactor::kA};
  const RoundedFactor b{product.gemm.b, gemm.n, gemm.k, Orientation::kTransposed,
                        gradient == GradientFactor::kB};
  const auto codes_of = [&](const RoundedFactor& factor, const CodesPlace& own) {
    if (shares_gradient && factor.is_gradient) {
      return shared(factor, product, of_gradient(factor, product, work), stream);
    }
    return rounded(factor, own, stream);
  };
  gemm.a = codes_of(a, {product.codes.own, nullptr, product.scratch, scales});
  gemm.b = shares_weight ? shared(b, product, of_weight(product, work), stream)
                         : codes_of(b, {product.codes.own + first, nullptr, product.scratch,
                                        scales + kSecondScale});
  products.multiply(gemm, stream);
}

}  // namespace ballast
