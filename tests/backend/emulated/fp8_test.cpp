// One product of factors rounded to 8 bits, in every orientation: of numbers that 8 bits hold, it
// is the very product.
#include <gtest/gtest.h>

#include "backend/cuda/cuda_fp8.h"
#include "backend/cuda/cuda_memory.h"
#include "sim/graph/build.h"
#include "tests/backend/emulated/immediate_cuda.h"

namespace ballast {
namespace {

constexpr int64_t kM = 32, kN = 48, kK = 80;

struct Side {
  int64_t rows = 0, columns = 0;  // of op(x)
  Orientation orientation{};
};

std::vector<uint16_t> bf16_of(const std::vector<float>& values) {
  std::vector<uint16_t> stored(values.size());
  kernels::reference().cast(values.data(), kernels::Format::kF32, stored.data(),
                            kernels::Format::kBf16, static_cast<int64_t>(values.size()));
  return stored;
}

// Integers from -most to most, in no order.
std::vector<float> integers(int64_t count, int64_t most) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    values[static_cast<size_t>(i)] = static_cast<float>((i * 7919 + 13) % (2 * most + 1) - most);
  }
  return values;
}

GemmOperand operand(const Side& side, const std::vector<uint16_t>& stored, int64_t gap) {
  const bool turned = side.orientation == Orientation::kTransposed;
  return {stored.data(), DType::kBf16, side.orientation, (turned ? side.rows : side.columns) + gap,
          nullptr};
}

// e4m3 holds integers to 16, e5m2 to 8. Sums stay below 80 * 8 * 4 and are added up exactly.
TEST(Fp8Products, factors_of_small_integers_give_the_exact_product_in_every_orientation) {
  for (const GradientFactor gradient :
       {GradientFactor::kNone, GradientFactor::kA, GradientFactor::kB}) {
    for (const Orientation of_a : {Orientation::kAsStored, Orientation::kTransposed}) {
      for (const Orientation of_b : {Orientation::kAsStored, Orientation::kTransposed}) {
        const int64_t gap = of_a == of_b ? 0 : 24;
        const std::vector<uint16_t> a = bf16_of(integers((kM + gap) * (kK + gap), 8));
        const std::vector<uint16_t> b = bf16_of(integers((kK + gap) * (kN + gap), 4));
        std::vector<float> exact(kM * kN), out(kM * kN, -1.0f);
        CudaGemm gemm;
        gemm.m = kM, gemm.n = kN, gemm.k = kK;
        gemm.a = operand({kM, kK, of_a}, a, gap);
        gemm.b = operand({kK, kN, of_b}, b, gap);
        gemm.out = exact.data(), gemm.out_dtype = DType::kF32, gemm.out_stride = kN;
        const auto count = std::make_shared<int64_t>(0);
        tests::PlainProducts products(count);
        products.multiply(gemm, {});
        EXPECT_EQ(*count, 0);
        gemm.out = out.data();
        tests::ImmediateCuda runtime;
        const CudaMemory codes(runtime, CudaMemoryKind::kDevice, codes_layout({kM, kN, kK}).whole,
                               "codes");
        const CudaMemory scratch(runtime, CudaMemoryKind::kDevice, fp8_scratch_bytes(), "scratch");
        multiply_in_fp8({gemm, {gradient}, {codes.data()}, scratch.data()}, {kM, kN, kK}, products,
                        {});
        EXPECT_EQ(*count, 1);
        EXPECT_EQ(out, exact);
      }
    }
  }
}

}  // namespace
}  // namespace ballast
