#include "backend/cuda/libraries/gemm_cublaslt.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <span>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_math.h"
#include "backend/cuda/cuda_memory.h"
#include "backend/cuda/libraries/chosen_products.h"
#include "backend/cuda/libraries/cublaslt_library.h"
#include "backend/cuda/libraries/cuda_attention.h"
#include "backend/cuda/libraries/cudnn_attention.h"
#include "backend/cuda/transformer_cuda.h"
#include "backend/measure/cuda/profile_cuda_kernels.h"
#include "sim/base/error.h"

namespace ballast {

namespace {

static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(GemmAlgorithm));

constexpr Bytes kWorkspace{int64_t{32} << 20};  // what NVIDIA advises for Hopper

void check(cublasStatus_t status, const std::string& what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error("cuBLASLt, " + what,
              fmt::format("{} ({})", cublaslt().text(status), static_cast<int>(status)),
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
    check(cublaslt().create_layout(&layout_, native(shape.dtype),
                                   static_cast<uint64_t>(shape.columns),
                                   static_cast<uint64_t>(shape.rows), shape.stride),
          "layout of a matrix");
  }
  ~Layout() { cublaslt().destroy_layout(layout_); }
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

// Everything that a call of the library needs but addresses of operands.
class Description {
 public:
  explicit Description(const CudaGemm& gemm)
      : left(stored(gemm.b, gemm.k, gemm.n)),
        right(stored(gemm.a, gemm.m, gemm.k)),
        out({gemm.out_dtype, gemm.m, gemm.n, gemm.out_stride}) {
    check(cublaslt().create_operation(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "description of a product");
    set(CUBLASLT_MATMUL_DESC_TRANSA, native(gemm.b.orientation));
    set(CUBLASLT_MATMUL_DESC_TRANSB, native(gemm.a.orientation));
    // Fast accumulation, which keeps fewer bits of a sum on Hopper, is off: long sums over tokens
    // would show it.
    if (gemm.a.scale != nullptr) set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{0});
    if (gemm.bias != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, native(gemm.out_dtype));
    }
    // Our b is cuBLASLt's A, and our a its B.
    if (gemm.sums_of_b != nullptr) set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BGRADA);
    if (gemm.sums_of_a != nullptr) set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BGRADB);
    if (sums_of(gemm) != nullptr) {
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, native(gemm.out_dtype));
    }
    point_to(gemm);
  }
  ~Description() { cublaslt().destroy_operation(operation_); }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;
  cublasLtMatmulDesc_t operation() const { return operation_; }

  // Addresses that the library wants in the description, of one call. Scales lie on the device: the
  // host never waits for them.
  void point_to(const CudaGemm& gemm) {
    if (gemm.bias != nullptr) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, gemm.bias);
    if (void* sums = sums_of(gemm)) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, sums);
    if (gemm.a.scale == nullptr) return;
    CHECK(gemm.b.scale != nullptr);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, gemm.b.scale);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, gemm.a.scale);
  }

  Layout left, right, out;

 private:
  static void* sums_of(const CudaGemm& gemm) {
    return gemm.sums_of_a != nullptr ? gemm.sums_of_a : gemm.sums_of_b;
  }
  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    check(cublaslt().set_of_operation(operation_, attribute, &value, sizeof(value)),
          "attribute of a product");
  }
  cublasLtMatmulDesc_t operation_ = nullptr;
};

class Preference {
 public:
  explicit Preference(const CudaGemm& gemm) {
    check(cublaslt().create_preference(&preference_), "preference");
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
  ~Preference() { cublaslt().destroy_preference(preference_); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  cublasLtMatmulPreference_t get() const { return preference_; }

 private:
  template <class Value>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
    check(cublaslt().set_of_preference(preference_, attribute, &value, sizeof(value)),
          "attribute of a preference");
  }
  cublasLtMatmulPreference_t preference_ = nullptr;
};

std::string machine_of(CudaRuntime& runtime) {
  const CudaProperties device = runtime.properties();
  return fmt::format("{} sm_{}{} cuBLASLt {}", device.name, device.major, device.minor,
                     cublaslt().version());
}

// What the library of this process holds on the GPU.
struct Shared {
  explicit Shared(CudaRuntime& runtime)
      : workspace(runtime, CudaMemoryKind::kDevice, kWorkspace, "the workspace of cuBLASLt") {
    check(cublaslt().create(&handle), "start");
  }
  ~Shared() { cublaslt().destroy(handle); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  cublasLtHandle_t handle = nullptr;
  CudaMemory workspace;
};

class CublasGemm : public PreparedGemm {
 public:
  CublasGemm(const CudaGemm& gemm, const Shared& shared)
      : shared_(shared), description_(gemm), preference_(gemm) {}

  std::vector<GemmAlgorithm> candidates(int most) override {
    std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
    int found = 0;
    const cublasStatus_t status = cublaslt().propose_algorithms(
        shared_.handle, description_.operation(), description_.left.get(), description_.right.get(),
        description_.out.get(), description_.out.get(), preference_.get(), most, results.data(),
        &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
    check(status, "choice of an algorithm");
    std::vector<GemmAlgorithm> candidates;
    for (const auto& result : std::span(results).first(static_cast<size_t>(found))) {
      if (result.state != CUBLAS_STATUS_SUCCESS) continue;
      std::memcpy(candidates.emplace_back().data(), &result.algo, sizeof(result.algo));
    }
    return candidates;
  }
  bool accepts(const GemmAlgorithm& algorithm) override {
    const cublasLtMatmulAlgo_t asked = native(algorithm);
    cublasLtMatmulHeuristicResult_t result{};
    const cublasStatus_t status = cublaslt().check_algorithm(
        shared_.handle, description_.operation(), description_.left.get(), description_.right.get(),
        description_.out.get(), description_.out.get(), &asked, &result);
    return status == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= static_cast<size_t>(kWorkspace.count);
  }
  void run(const CudaGemm& gemm, const GemmAlgorithm& algorithm, CudaStream stream) override {
    const cublasLtMatmulAlgo_t chosen = native(algorithm);
    description_.point_to(gemm);
    const float one = 1;
    const float beta = gemm.added == nullptr ? 0 : 1;
    const void* added = gemm.added == nullptr ? gemm.out : gemm.added;
    const cublasStatus_t status = cublaslt().multiply(
        shared_.handle, description_.operation(), &one, gemm.b.data, description_.left.get(),
        gemm.a.data, description_.right.get(), &beta, added, description_.out.get(), gemm.out,
        description_.out.get(), &chosen, shared_.workspace.data(),
        static_cast<size_t>(kWorkspace.count), static_cast<cudaStream_t>(stream.native));
    if (status == CUBLAS_STATUS_SUCCESS) return;  // no text is made for nothing
    check(status, fmt::format("{}x{}x{} on stream {}", gemm.m, gemm.n, gemm.k, stream.name));
  }

 private:
  static cublasLtMatmulAlgo_t native(const GemmAlgorithm& algorithm) {
    cublasLtMatmulAlgo_t its;
    std::memcpy(&its, algorithm.data(), sizeof(its));
    return its;
  }

  const Shared& shared_;
  Description description_;
  Preference preference_;
};

class CublasLibrary : public GemmLibrary {
 public:
  explicit CublasLibrary(CudaRuntime& runtime) : machine_(machine_of(runtime)), shared_(runtime) {}

  std::string machine() const override { return machine_; }
  Bytes workspace() const override { return shared_.workspace.bytes(); }
  std::unique_ptr<PreparedGemm> prepare(const CudaGemm& gemm) override {
    return std::make_unique<CublasGemm>(gemm, shared_);
  }

 private:
  std::string machine_;
  Shared shared_;
};

}  // namespace

std::unique_ptr<CudaProducts> make_cublas_products(CudaRuntime& runtime, GemmAlgorithmStore store) {
  return std::make_unique<ChosenProducts>(runtime, std::make_unique<CublasLibrary>(runtime),
                                          std::move(store));
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
  return launched_kernels(make_cublas_products(runtime, algorithms),
                          std::make_unique<CudaAttention>(runtime, open_cudnn_attention(),
                                                          attention_memory(runtime, {})));
}

std::unique_ptr<CudaMath> make_cuda_math(const Training& training, const RankPlace& place,
                                         CudaRuntime& runtime,
                                         const GemmAlgorithmStore& algorithms) {
  return std::make_unique<CudaTransformer>(
      training, place, runtime, make_cublas_products(runtime, algorithms),
      std::make_unique<CudaAttention>(
          runtime, open_cudnn_attention(),
          attention_memory(runtime, training.graph.arenas.size[static_cast<size_t>(Place::kHbm)])));
}

}  // namespace ballast
