// Matrix products on a GPU, as the decoder's modules ask for them: row-major, by rows of a stride.
#pragma once

#include <cstdint>

#include "backend/cuda/cuda_runtime.h"
#include "sim/spec/dtype.h"

namespace ballast {

enum class Orientation : uint8_t { kAsStored, kTransposed };

// op(x)[rows, columns] of a product; stored as it is or transposed, `stride` elements between rows.
// Both of 16 or 32 bits, or both of 8: then a is stored as it is and b transposed, every side is a
// multiple of 16, one of them at most is kE5m2, and a stored value is worth `scale` times it.
struct GemmOperand {
  const void* data = nullptr;
  DType dtype{};
  Orientation orientation = Orientation::kAsStored;
  int64_t stride = 0;
  const float* scale = nullptr;  // on the device; of 8-bit formats alone
};

// out[m, n] = a[m, k] b[k, n] (+ bias[n], in every row) (+ added[m, n]).
struct CudaGemm {
  int64_t m = 0, n = 0, k = 0;
  GemmOperand a, b;
  void* out = nullptr;
  DType out_dtype{};
  int64_t out_stride = 0;       // of out and of added
  const void* added = nullptr;  // may be out; null: nothing is added
  const void* bias = nullptr;   // of out's dtype; null: none
  // Where a factor's sums over k go too, in out's dtype: a's, [m], or b's, [n]; null: nowhere. One
  // of them at most, without a bias, and only of products that the library offers so.
  void* sums_of_a = nullptr;
  void* sums_of_b = nullptr;
};

class CudaProducts {
 public:
  virtual ~CudaProducts() = default;
  // Whether a product that leaves sums of a factor is there: asked of the library once a shape. Of
  // two that differ in nothing but addresses of the same alignment, the same.
  virtual bool offers_sums(const CudaGemm&) { return false; }
  // What it holds on the GPU, whatever it multiplies.
  virtual Bytes workspace() const { return {}; }
  // Enqueues. Sums in fp32 and rounds once. One call at a time.
  virtual void multiply(const CudaGemm& gemm, CudaStream stream) = 0;
};

}  // namespace ballast
