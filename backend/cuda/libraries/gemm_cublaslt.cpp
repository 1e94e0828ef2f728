#include "backend/cuda/libraries/gemm_cublaslt.h"

#include <algorithm>
#include <cstring>
#include <cublasLt.h>
#include <fmt/format.h>
#include <utility>

#include "backend/cuda/cuda_math.h"
#include "backend/cuda/libraries/cuda_attention.h"
#include "backend/cuda/libraries/cudnn_attention.h"
#include "backend/cuda/transformer_cuda.h"
#include "backend/measure/cuda/profile_cuda_kernels.h"
#include "sim/base/error.h"

namespace ballast {

namespace {

static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(GemmAlgorithm));

constexpr Bytes kWorkspace{int64_t{32} << 20};  // what NVIDIA advises for Hopper

std::string text_of(const CudaGemm& gemm) {
  return fmt::format(
      "{}x{}x{} {}{} {}{} to {}", gemm.m, gemm.n, gemm.k, to_string(gemm.a.dtype),
      gemm.a.orientation == Orientation::kTransposed ? "^T" : "", to_string(gemm.b.dtype),
      gemm.b.orientation == Orientation::kTransposed ? "^T" : "", to_string(gemm.out_dtype));
}

void check(cublasStatus_t status, const std::string& what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error("cuBLASLt, " + what,
              fmt::format("{} ({})", cublasLtGetStatusString(status), static_cast<int>(status)),
              "check that driver and library fit each other, or run under compute-sanitizer");
}

cudaDataType_t native(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kE4m3:
      return CUDA_R_8F_E4M3;
    case DType::kE5m2:
      return CUDA_R_8F_E5M2;
    default:
      CHECK(dtype == DType::kF32);
      return CUDA_R_32F;
  }
}

cublasOperation_t native(Orientation orientation) {
  return orientation == Orientation::kTransposed ? CUBLAS_OP_T : CUBLAS_OP_N;
}

// The power of two up to 256 that an address is a multiple of; 256 where there is none.
uint32_t alignment_of(const void* address) {
  const auto value = reinterpret_cast<uintptr_t>(address) | 256U;
  return static_cast<uint32_t>(value & (~value + 1));
}

// A matrix in cuBLASLt's columns, which are our rows.
class Layout {
 public:
  struct Shape {
    DType dtype{};
    int64_t rows = 0;  // ours
    int64_t columns = 0;
    int64_t stride = 0;
  };
  explicit Layout(const Shape& shape) {
    check(cublasLtMatrixLayoutCreate(&layout_, native(shape.dtype),
                                     static_cast<uint64_t>(shape.columns),
                                     static_cast<uint64_t>(shape.rows), shape.stride),
          "layout of a matrix");
  }
  ~Layout() { cublasLtMatrixLayoutDestroy(layout_); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  cublasLtMatrixLayout_t get() const { return layout_; }

 private:
  cublasLtMatrixLayout_t layout_ = nullptr;
};

// An operand as it is stored.
Layout::Shape stored(const GemmOperand& operand, int64_t rows, int64_t columns) {
  if (operand.orientation == Orientation::kTransposed) std::swap(rows, columns);
  return {operand.dtype, rows, columns, operand.stride};
}

// Everything that a call of the library needs, for one product.
class Description {
 public:
  explicit Description(const CudaGemm& gemm)
      : left(stored(gemm.b, gemm.k, gemm.n)),
        right(stored(gemm.a, gemm.m, gemm.k)),
        out({gemm.out_dtype, gemm.m, gemm.n, gemm.out_stride}) {
    check(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "description of a product");
    set(CUBLASLT_MATMUL_DESC_TRANSA, native(gemm.b.orientation));
    set(CUBLASLT_MATMUL_DESC_TRANSB, native(gemm.a.orientation));
    if (gemm.a.scale != nullptr) set_scales(gemm);
    if (gemm.bias == nullptr) return;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, gemm.bias);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, native(gemm.out_dtype));
  }
  ~Description() { cublasLtMatmulDescDestroy(operation_); }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;
  cublasLtMatmulDesc_t operation() const { return operation_; }

  Layout left, right, out;

 private:
  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    check(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof(value)),
          "attribute of a product");
  }
  // Scales lie on the device: the host never waits for them. Fast accumulation, which keeps fewer
  // bits of a sum on Hopper, is off: long sums over tokens would show it.
  void set_scales(const CudaGemm& gemm) {
    CHECK(gemm.b.scale != nullptr);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, gemm.b.scale);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, gemm.a.scale);
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{0});
  }
  cublasLtMatmulDesc_t operation_ = nullptr;
};

class Preference {
 public:
  explicit Preference(const CudaGemm& gemm) {
    check(cublasLtMatmulPreferenceCreate(&preference_), "preference");
    const auto most = static_cast<uint64_t>(kWorkspace.count);
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, most);
    // Parts of a long sum are added up in fp32: other schemes would round each to the output first.
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(gemm.b.data));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(gemm.a.data));
    const void* added = gemm.added == nullptr ? gemm.out : gemm.added;
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(added));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(gemm.out));
  }
  ~Preference() { cublasLtMatmulPreferenceDestroy(preference_); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  cublasLtMatmulPreference_t get() const { return preference_; }

 private:
  template <class Value>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof(value)),
          "attribute of a preference");
  }
  cublasLtMatmulPreference_t preference_ = nullptr;
};

// Whatever the choice of an algorithm depends on.
std::string key_of(const CudaGemm& gemm) {
  return fmt::format("{} strides {} {} {} aligned {} {} {}{}{}", text_of(gemm), gemm.a.stride,
                     gemm.b.stride, gemm.out_stride, alignment_of(gemm.a.data),
                     alignment_of(gemm.b.data), alignment_of(gemm.out),
                     gemm.added == nullptr ? "" : fmt::format(" adds {}", alignment_of(gemm.added)),
                     gemm.bias == nullptr ? "" : " bias");
}

std::string machine_of(CudaRuntime& runtime) {
  const CudaProperties device = runtime.properties();
  return fmt::format("{} sm_{}{} cuBLASLt {}", device.name, device.major, device.minor,
                     cublasLtGetVersion());
}

}  // namespace

struct CublasGemm::Library {
  Library() { check(cublasLtCreate(&handle), "start"); }
  ~Library() { cublasLtDestroy(handle); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  cublasLtHandle_t handle = nullptr;
};

CublasGemm::CublasGemm(CudaRuntime& runtime, GemmAlgorithmStore store)
    : library_(std::make_unique<Library>()),
      machine_(machine_of(runtime)),
      store_(std::move(store)),
      workspace_(runtime, CudaMemoryKind::kDevice, kWorkspace, "the workspace of cuBLASLt") {}

CublasGemm::~CublasGemm() = default;

const GemmAlgorithm& CublasGemm::algorithm_of(const CudaGemm& gemm, const std::string& key,
                                              CudaStream stream) {
  if (const auto found = algorithms_.find(key); found != algorithms_.end()) return found->second;
  const std::string stored_key = machine_ + ": " + key;
  if (store_.find) {
    if (const std::optional<GemmAlgorithm> kept = store_.find(stored_key)) {
      return algorithms_[key] = *kept;
    }
  }
  const Description description(gemm);
  const Preference preference(gemm);
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  check(cublasLtMatmulAlgoGetHeuristic(library_->handle, description.operation(),
                                       description.left.get(), description.right.get(),
                                       description.out.get(), description.out.get(),
                                       preference.get(), 1, &result, &found),
        fmt::format("choice of an algorithm for {} on stream {}", key, stream.name));
  if (found == 0) {
    throw Error("cuBLASLt, " + key, "the library has no algorithm for it",
                "train with --set plan.dtype=bf16 and plan.products=as-stored");
  }
  GemmAlgorithm& algorithm = algorithms_[key];
  std::memcpy(algorithm.data(), &result.algo, sizeof(result.algo));
  if (store_.keep) store_.keep(stored_key, algorithm);
  return algorithm;
}

void CublasGemm::multiply(const CudaGemm& gemm, CudaStream stream) {
  const std::string key = key_of(gemm);
  cublasLtMatmulAlgo_t algorithm;
  std::memcpy(&algorithm, algorithm_of(gemm, key, stream).data(), sizeof(algorithm));
  const Description description(gemm);
  const float one = 1;
  const float beta = gemm.added == nullptr ? 0 : 1;
  const void* added = gemm.added == nullptr ? gemm.out : gemm.added;
  check(cublasLtMatmul(library_->handle, description.operation(), &one, gemm.b.data,
                       description.left.get(), gemm.a.data, description.right.get(), &beta, added,
                       description.out.get(), gemm.out, description.out.get(), &algorithm,
                       workspace_.data(), static_cast<size_t>(kWorkspace.count),
                       static_cast<cudaStream_t>(stream.native)),
        fmt::format("{} on stream {}", key, stream.name));
}

namespace {

// Half of what the arena leaves may go to attention where a shape needs so much: the scratch of
// kernels and what the driver takes later come out of the rest.
AttentionMemory attention_memory(CudaRuntime& runtime, Bytes arena) {
  return {.most = {std::max<int64_t>(0, (runtime.free_memory() - arena).count) / 2}};
}

}  // namespace

std::unique_ptr<CudaProbeKernels> make_probe_kernels(CudaRuntime& runtime,
                                                     const GemmAlgorithmStore& algorithms) {
  return launched_kernels(std::make_unique<CublasGemm>(runtime, algorithms),
                          std::make_unique<CudaAttention>(runtime, open_cudnn_attention(),
                                                          attention_memory(runtime, {})));
}

std::unique_ptr<CudaMath> make_cuda_math(const Training& training, CudaRuntime& runtime,
                                         const GemmAlgorithmStore& algorithms) {
  return std::make_unique<CudaTransformer>(
      training, runtime, std::make_unique<CublasGemm>(runtime, algorithms),
      std::make_unique<CudaAttention>(
          runtime, open_cudnn_attention(),
          attention_memory(runtime, training.graph.arenas.size[static_cast<size_t>(Place::kHbm)])));
}

}  // namespace ballast
