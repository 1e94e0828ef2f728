// Matrix products by cuBLASLt against three loops, in every orientation, with everything that they
// add. Of small integers: sums are exact, so what is rounded once has the very bits.

#include <cstdio>
#include <fmt/format.h>

#include "backend/cuda/cuda_fp8.h"
#include "backend/cuda/libraries/gemm_cublaslt.h"
#include "sim/graph/build.h"
#include "tests/backend/emulated/immediate_cuda.h"
#include "tests/cuda/arrays.h"

namespace ballast::kernels::cuda::testing {
namespace {

class products : public OnMachine {};

// Integers from -most to most, in no order.
std::vector<float> integers(int64_t count, int64_t most, int64_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    values[static_cast<size_t>(i)] =
        static_cast<float>((i * i * 31 + i * 7919 + seed) % (2 * most + 1) - most);
  }
  return values;
}

// The same values on the GPU and on the host.
struct Both {
  Both(Format format, const std::vector<float>& values)
      : device(format, values), host(device.bytes()) {}
  Values device;
  std::vector<unsigned char> host;
};

struct Shape {
  int64_t m = 0, n = 0, k = 0;
  int64_t gap = 0;  // beyond the end of each row
};

GemmOperand operand(const Shape& s, DType dtype, Orientation orientation, bool left) {
  const int64_t rows = left ? s.m : s.k;
  const int64_t columns = left ? s.k : s.n;
  const bool turned = orientation == Orientation::kTransposed;
  return {nullptr, dtype, orientation, (turned ? rows : columns) + s.gap, nullptr};
}
int64_t values_of(const GemmOperand& operand, int64_t rows, int64_t columns) {
  const bool turned = operand.orientation == Orientation::kTransposed;
  return operand.stride * (turned ? columns : rows);
}

enum class Adds : uint8_t { kNothing, kBias, kItself, kAnotherAndBias };

class Case {
 public:
  Case(const Shape& shape, Format format, int64_t most) : Case(shape, format, most, format) {}
  // Of an output, and what is added to it, in another format.
  Case(const Shape& shape, Format format, int64_t most, Format output)
      : shape_(shape), format_(format), output_(output), most_(most) {}

  // The sums of a or of b over k that a product leaves, held against those of loops, where the
  // library offers them; whether it does.
  bool expect_exact_sums(Orientation of_a, Orientation of_b, bool sums_a, CudaProducts& ours) {
    CudaGemm gemm = gemm_of(of_a, of_b);
    const Both a(format_, integers(values_of(gemm.a, shape_.m, shape_.k), most_, 1));
    const Both b(format_, integers(values_of(gemm.b, shape_.k, shape_.n), most_, 5));
    Both out(output_, integers(shape_.m * gemm.out_stride, 50, 13));
    Both sums(output_, integers(sums_a ? shape_.m : shape_.n, 50, 17));
    (sums_a ? gemm.sums_of_a : gemm.sums_of_b) = sums.device.data();
    gemm.a.data = a.device.data(), gemm.b.data = b.device.data(), gemm.out = out.device.data();
    if (!ours.offers_sums(gemm)) return false;
    ours.multiply(gemm, {nullptr, "default"});
    const std::vector<unsigned char> found = out.device.bytes();
    const std::vector<unsigned char> found_sums = sums.device.bytes();
    (sums_a ? gemm.sums_of_a : gemm.sums_of_b) = sums.host.data();
    gemm.a.data = a.host.data(), gemm.b.data = b.host.data(), gemm.out = out.host.data();
    tests::PlainProducts().multiply(gemm, {});
    const std::string what =
        fmt::format("{} to {} {}x{}x{}, sums of {}", name_of(format_), name_of(output_), shape_.m,
                    shape_.n, shape_.k, sums_a ? "a" : "b");
    EXPECT_TRUE(found == out.host) << what << ": other bits of the product";
    EXPECT_TRUE(found_sums == sums.host) << what << ": other bits of the sums";
    return true;
  }

  // One product by `ours`, where it comes from, and the same by loops.
  template <class Multiply>
  void expect_exact(Orientation of_a, Orientation of_b, Adds adds, const Multiply& multiply) {
    CudaGemm gemm = gemm_of(of_a, of_b);
    const int64_t outputs = shape_.m * gemm.out_stride;
    const Both a(format_, integers(values_of(gemm.a, shape_.m, shape_.k), most_, 1));
    const Both b(format_, integers(values_of(gemm.b, shape_.k, shape_.n), most_, 5));
    const Both bias(output_, integers(shape_.n, 50, 9));
    const Both another(output_, integers(outputs, 50, 11));
    Both out(output_, integers(outputs, 50, 13));
    const bool has_bias = adds == Adds::kBias || adds == Adds::kAnotherAndBias;
    const auto bind = [&](const auto& place, auto* to) {
      gemm.a.data = place(a), gemm.b.data = place(b), gemm.out = to;
      gemm.bias = has_bias ? place(bias) : nullptr;
      gemm.added = adds == Adds::kItself           ? to
                   : adds == Adds::kAnotherAndBias ? place(another)
                                                   : nullptr;
    };
    bind([](const Both& both) -> const void* { return both.device.data(); }, out.device.data());
    multiply(gemm);
    const std::vector<unsigned char> found = out.device.bytes();
    bind([](const Both& both) -> const void* { return both.host.data(); },
         static_cast<void*>(out.host.data()));
    tests::PlainProducts().multiply(gemm, {});
    EXPECT_TRUE(found == out.host) << fmt::format(
        "{} to {} {}x{}x{}, orientations {} {}, adds {}: other bits: {}", name_of(format_),
        name_of(output_), shape_.m, shape_.n, shape_.k, static_cast<int>(of_a),
        static_cast<int>(of_b), static_cast<int>(adds), difference(found, out.host));
  }

 private:
  // How many values differ, and the first of them.
  std::string difference(const std::vector<unsigned char>& found,
                         const std::vector<unsigned char>& expected) const {
    const int64_t bytes = bytes_of(output_);
    const auto value = [&](const std::vector<unsigned char>& from, int64_t i) {
      float wide = 0;
      reference().cast(from.data() + i * bytes, output_, &wide, Format::kF32, 1);
      return wide;
    };
    std::string text;
    int64_t count = 0;
    const int64_t stride = shape_.n + shape_.gap;
    for (int64_t i = 0; i < shape_.m * stride; ++i) {
      const float is = value(found, i), should = value(expected, i);
      if (is == should) continue;
      if (count++ < 4) {
        text +=
            fmt::format("row {} column {} is {} and not {}; ", i / stride, i % stride, is, should);
      }
    }
    return text + fmt::format("{} values of {} differ", count, shape_.m * stride);
  }

  CudaGemm gemm_of(Orientation of_a, Orientation of_b) const {
    const DType dtype = dtype_of(format_);
    CudaGemm gemm;
    gemm.m = shape_.m, gemm.n = shape_.n, gemm.k = shape_.k;
    gemm.a = operand(shape_, dtype, of_a, true);
    gemm.b = operand(shape_, dtype, of_b, false);
    gemm.out_dtype = dtype_of(output_);
    gemm.out_stride = shape_.n + shape_.gap;
    return gemm;
  }

  Shape shape_;
  Format format_;
  Format output_;
  int64_t most_;
};

constexpr Orientation kOrientations[] = {Orientation::kAsStored, Orientation::kTransposed};
constexpr Adds kAdds[] = {Adds::kNothing, Adds::kBias, Adds::kItself, Adds::kAnotherAndBias};
const CudaStream kDefault{nullptr, "default"};

TEST_F(products, are_exact_in_every_orientation_whatever_they_add) {
  const std::unique_ptr<CudaRuntime> runtime = open_cuda_runtime(0);
  const std::unique_ptr<CudaProducts> ours = make_cublas_products(*runtime, {});
  // Rows that are aligned; rows that are not; a sum so long that it may be divided.
  for (const Shape& shape : {Shape{96, 80, 64, 8}, Shape{70, 53, 65, 0}, Shape{64, 64, 8192, 0}}) {
    for (const Format format : kFormats) {
      Case of(shape, format, 2);
      for (const Orientation of_a : kOrientations) {
        for (const Orientation of_b : kOrientations) {
          for (const Adds adds : kAdds) {
            of.expect_exact(of_a, of_b, adds,
                            [&](const CudaGemm& gemm) { ours->multiply(gemm, kDefault); });
          }
        }
      }
    }
  }
}

// Gradients of biases: of weights [in, out] b is the gradient of the output, of [out, in] it is a,
// turned over. What is not offered a kernel does; that nothing is would be news.
TEST_F(products, leave_exact_sums_of_a_factor_where_they_are_offered) {
  const std::unique_ptr<CudaRuntime> runtime = open_cuda_runtime(0);
  const std::unique_ptr<CudaProducts> ours = make_cublas_products(*runtime, {});
  int offered = 0;
  int asked = 0;
  for (const Shape& shape : {Shape{96, 80, 64, 0}, Shape{64, 64, 8192, 0}}) {
    for (const Format format : kFormats) {
      for (const bool sums_a : {false, true}) {
        Case of(shape, format, 2);
        offered +=
            of.expect_exact_sums(Orientation::kTransposed, Orientation::kAsStored, sums_a, *ours);
        ++asked;
      }
    }
  }
  std::printf("sums of a factor are offered by %d of %d products\n", offered, asked);
  EXPECT_GT(offered, 0);
}

// Gradients of weights that add up in 32 bits (Plan::gradients).
TEST_F(products, of_16_bits_add_up_in_32) {
  const std::unique_ptr<CudaRuntime> runtime = open_cuda_runtime(0);
  const std::unique_ptr<CudaProducts> ours = make_cublas_products(*runtime, {});
  for (const Shape& shape : {Shape{96, 80, 64, 8}, Shape{70, 53, 65, 0}, Shape{64, 64, 8192, 0}}) {
    for (const Format format : {Format::kBf16, Format::kF16}) {
      for (const Orientation of_a : kOrientations) {
        for (const Orientation of_b : kOrientations) {
          for (const Adds adds : {Adds::kNothing, Adds::kItself}) {
            Case(shape, format, 2, Format::kF32)
                .expect_exact(of_a, of_b, adds,
                              [&](const CudaGemm& gemm) { ours->multiply(gemm, kDefault); });
          }
        }
      }
    }
  }
}

// e4m3 holds integers to 16, e5m2 to 8.
TEST_F(products, of_8_bits_are_exact_too) {
  const std::unique_ptr<CudaRuntime> runtime = open_cuda_runtime(0);
  if (!runtime->properties().has_fp8()) GTEST_SKIP() << "the GPU has no 8-bit floats";
  const std::unique_ptr<CudaProducts> ours = make_cublas_products(*runtime, {});
  const Shape shape{96, 80, 64, 16};
  const Memory codes(codes_layout({shape.m, shape.n, shape.k}).whole.count);
  const Memory scratch(fp8_scratch_bytes().count);
  for (const GradientFactor gradient :
       {GradientFactor::kNone, GradientFactor::kA, GradientFactor::kB}) {
    for (const Orientation of_a : kOrientations) {
      for (const Orientation of_b : kOrientations) {
        for (const Adds adds : kAdds) {
          Case(shape, Format::kBf16, 8).expect_exact(of_a, of_b, adds, [&](const CudaGemm& gemm) {
            multiply_in_fp8({gemm,
                             {gradient},
                             static_cast<std::byte*>(codes.data()),
                             nullptr,
                             static_cast<std::byte*>(scratch.data())},
                            {gemm.m, gemm.n, gemm.k}, *ours, kDefault);
          });
        }
      }
    }
  }
}

}  // namespace
}  // namespace ballast::kernels::cuda::testing
