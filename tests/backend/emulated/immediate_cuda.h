// A CUDA runtime that does everything at once, on the thread that asks: what is enqueued is done.
// For kernels that run emulated on the caller's thread.
#pragma once

#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_products.h"
#include "backend/cuda/cuda_runtime.h"
#include "kernels/fp8.h"
#include "kernels/kernels.h"

namespace ballast::tests {

class ImmediateCuda : public CudaRuntime {
 public:
  CudaProperties properties() override {
    CudaProperties hopper;
    hopper.major = 9;
    return hopper;
  }
  Bytes free_memory() override { return {int64_t{1} << 40}; }
  void bind_thread() override {}
  void* allocate(Bytes bytes, const std::string&) override {
    void* memory = ::operator new (static_cast<size_t>(bytes.count), std::align_val_t{256});
    std::memset(memory, 0xff, static_cast<size_t>(bytes.count));  // what nobody wrote is no number
    return memory;
  }
  void free(void* memory) override { ::operator delete (memory, std::align_val_t{256}); }
  void* allocate_pinned(Bytes bytes, const std::string& what) override {
    return allocate(bytes, what);
  }
  void free_pinned(void* memory) override { free(memory); }
  void pin(void*, Bytes, const std::string&) override {}
  void unpin(void*) override {}
  CudaStream create_stream(const char* name, StreamPriority) override { return {this, name}; }
  void destroy(CudaStream) override {}
  CudaEvent create_event(CudaStream stream) override { return {new int64_t(0), stream.name}; }
  void destroy(CudaEvent event) override { delete static_cast<int64_t*>(event.native); }
  void record(CudaEvent event, CudaStream) override {
    *static_cast<int64_t*>(event.native) =
        std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }
  void wait(CudaStream, CudaEvent) override {}
  bool done(CudaEvent) override { return true; }
  void synchronize(CudaEvent) override {}
  void synchronize(CudaStream) override {}
  double milliseconds(CudaEvent from, CudaEvent to) override {
    return static_cast<double>(*static_cast<int64_t*>(to.native) -
                               *static_cast<int64_t*>(from.native)) /
           1e6;
  }
  void copy(const CudaCopy& copy, CudaStream) override {
    std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes.count));
  }
  void clear(void* memory, Bytes bytes, CudaStream) override {
    std::memset(memory, 0, static_cast<size_t>(bytes.count));
  }
  void begin_capture(CudaStream) override {}
  CudaGraph end_capture(CudaStream) override { return {this}; }
  void launch(CudaGraph, CudaStream) override {}
  void destroy(CudaGraph) override {}
  void push_range(const char*) override {}
  void pop_range() override {}
};

// Products by three loops, in double.
class PlainProducts : public CudaProducts {
 public:
  // Products of 8-bit factors are counted in `fp8` where it is given.
  // `sums`: those that leave sums of a factor are offered, and counted.
  explicit PlainProducts(std::shared_ptr<int64_t> fp8 = nullptr,
                         std::shared_ptr<int64_t> sums = nullptr)
      : fp8_(std::move(fp8)), sums_(std::move(sums)) {}

  bool offers_sums(const CudaGemm&) override { return sums_ != nullptr; }

  void multiply(const CudaGemm& gemm, CudaStream) override {
    if (fp8_ != nullptr && gemm.a.scale != nullptr) ++*fp8_;
    const std::vector<double> a = whole(gemm.a, gemm.m, gemm.k);
    const std::vector<double> b = whole(gemm.b, gemm.k, gemm.n);
    if (gemm.sums_of_a != nullptr) {
      leave_sums(gemm, gemm.sums_of_a, gemm.m,
                 [&](int64_t i, int64_t l) { return a[static_cast<size_t>(i * gemm.k + l)]; });
    }
    if (gemm.sums_of_b != nullptr) {
      leave_sums(gemm, gemm.sums_of_b, gemm.n,
                 [&](int64_t j, int64_t l) { return b[static_cast<size_t>(l * gemm.n + j)]; });
    }
    for (int64_t i = 0; i < gemm.m; ++i) {
      for (int64_t j = 0; j < gemm.n; ++j) {
        double sum = 0;
        for (int64_t l = 0; l < gemm.k; ++l) {
          sum += a[static_cast<size_t>(i * gemm.k + l)] * b[static_cast<size_t>(l * gemm.n + j)];
        }
        if (gemm.bias != nullptr) sum += value(gemm.bias, gemm.out_dtype, j);
        const int64_t place = i * gemm.out_stride + j;
        if (gemm.added != nullptr) sum += value(gemm.added, gemm.out_dtype, place);
        put(gemm.out, gemm.out_dtype, place, sum);
      }
    }
  }

 private:
  template <class Value>
  void leave_sums(const CudaGemm& gemm, void* to, int64_t count, const Value& value_of) {
    if (sums_ != nullptr) ++*sums_;
    for (int64_t i = 0; i < count; ++i) {
      double sum = 0;
      for (int64_t l = 0; l < gemm.k; ++l) sum += value_of(i, l);
      put(to, gemm.out_dtype, i, sum);
    }
  }
  static void put(void* to, DType dtype, int64_t index, double value) {
    const auto rounded = static_cast<float>(value);
    kernels::reference().cast(&rounded, kernels::Format::kF32,
                              static_cast<std::byte*>(to) + index * size_of(dtype), format(dtype),
                              1);
  }
  static kernels::Format format(DType dtype) {
    return dtype == DType::kBf16  ? kernels::Format::kBf16
           : dtype == DType::kF16 ? kernels::Format::kF16
                                  : kernels::Format::kF32;
  }
  static double value(const void* data, DType dtype, int64_t index) {
    float result = 0;
    kernels::reference().cast(static_cast<const std::byte*>(data) + index * size_of(dtype),
                              format(dtype), &result, kernels::Format::kF32, 1);
    return result;
  }
  static double value(const GemmOperand& operand, int64_t index) {
    if (operand.scale == nullptr) return value(operand.data, operand.dtype, index);
    const auto format = operand.dtype == DType::kE5m2 ? kernels::Fp8::kE5m2 : kernels::Fp8::kE4m3;
    const uint8_t code = static_cast<const uint8_t*>(operand.data)[index];
    return kernels::float_of_fp8(format, code) * *operand.scale;
  }
  // op(x), row by row.
  static std::vector<double> whole(const GemmOperand& operand, int64_t rows, int64_t columns) {
    const bool transposed = operand.orientation == Orientation::kTransposed;
    std::vector<double> values;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        values.push_back(value(
            operand, transposed ? column * operand.stride + row : row * operand.stride + column));
      }
    }
    return values;
  }

  std::shared_ptr<int64_t> fp8_;
  std::shared_ptr<int64_t> sums_;
};

}  // namespace ballast::tests
