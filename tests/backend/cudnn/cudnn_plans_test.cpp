// The installed cuDNN, for an H200 that is described to it and is not there: it knows our graphs as
// attention, finds kernels for Hopper, compiles them, and tells the workspace. Nothing runs.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "backend/cuda/libraries/cudnn_attention.h"
#include "sim/base/error.h"

#if __has_include(<cudnn_graph.h>)
#include <cudnn_graph.h>
#endif

namespace ballast {
namespace {

#if __has_include(<cudnn_graph.h>)
// Our numbers are the header's.
static_assert(cudnn::kPointwiseOperation == int{CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR});
static_assert(cudnn::kGraph == int{CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR});
static_assert(cudnn::kMatmulOperation == int{CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR});
static_assert(cudnn::kReductionOperation == int{CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR});
static_assert(cudnn::kReshapeOperation == int{CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR});
static_assert(cudnn::kDeviceProperties == int{CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR});
static_assert(cudnn::kEngineConfig == int{CUDNN_BACKEND_ENGINECFG_DESCRIPTOR});
static_assert(cudnn::kHeuristic == int{CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR});
static_assert(cudnn::kPlan == int{CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR});
static_assert(cudnn::kVariantPack == int{CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR});
static_assert(cudnn::kPointwiseAxis == int{CUDNN_ATTR_POINTWISE_AXIS});
static_assert(cudnn::kHeuristicDevice == int{CUDNN_ATTR_ENGINEHEUR_DEVICEPROP});
static_assert(cudnn::kHeuristicResults == int{CUDNN_ATTR_ENGINEHEUR_RESULTS});
static_assert(cudnn::kConfigEngine == int{CUDNN_ATTR_ENGINECFG_ENGINE});
static_assert(cudnn::kPlanConfig == int{CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG});
static_assert(cudnn::kPlanWorkspace == int{CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE});
static_assert(cudnn::kPointwiseDescriptor == int{CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR});
static_assert(cudnn::kPointwiseT == int{CUDNN_ATTR_OPERATION_POINTWISE_TDESC});
static_assert(cudnn::kTensorAlignment == int{CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT});
static_assert(cudnn::kTensorIsByValue == int{CUDNN_ATTR_TENSOR_IS_BY_VALUE});
static_assert(cudnn::kPackIds == int{CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS});
static_assert(cudnn::kPackPointers == int{CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS});
static_assert(cudnn::kPackWorkspace == int{CUDNN_ATTR_VARIANT_PACK_WORKSPACE});
static_assert(cudnn::kEngineNotes == int{CUDNN_ATTR_ENGINE_NUMERICAL_NOTE});
static_assert(cudnn::kMatmulA == int{CUDNN_ATTR_OPERATION_MATMUL_ADESC});
static_assert(cudnn::kMatmulDescriptor == int{CUDNN_ATTR_OPERATION_MATMUL_DESC});
static_assert(cudnn::kReductionOperator == int{CUDNN_ATTR_REDUCTION_OPERATOR});
static_assert(cudnn::kReductionDescriptor == int{CUDNN_ATTR_OPERATION_REDUCTION_DESC});
static_assert(cudnn::kReshapeY == int{CUDNN_ATTR_OPERATION_RESHAPE_YDESC});
static_assert(cudnn::kDeviceText == int{CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION});
static_assert(cudnn::kDescriptorElement == int{CUDNN_TYPE_BACKEND_DESCRIPTOR});
static_assert(cudnn::kReductionElement == int{CUDNN_TYPE_REDUCTION_OPERATOR_TYPE});
static_assert(cudnn::kNoteElement == int{CUDNN_TYPE_NUMERICAL_NOTE});
static_assert(cudnn::kPointwiseElement == int{CUDNN_TYPE_POINTWISE_MODE});
static_assert(cudnn::kCharElement == int{CUDNN_TYPE_CHAR});
static_assert(cudnn::kBfloat16 == int{CUDNN_DATA_BFLOAT16});
static_assert(cudnn::kBoolean == int{CUDNN_DATA_BOOLEAN});
static_assert(cudnn::kAtLeast == int{CUDNN_POINTWISE_CMP_GE});
static_assert(cudnn::kIndex == int{CUDNN_POINTWISE_GEN_INDEX});
static_assert(cudnn::kSelect == int{CUDNN_POINTWISE_BINARY_SELECT});
static_assert(cudnn::kMaximum == int{CUDNN_REDUCE_TENSOR_MAX});
static_assert(cudnn::kHeuristicA == int{CUDNN_HEUR_MODE_A});
static_assert(cudnn::kNotDeterministic == int{CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC});
#endif

// As the library describes devices to itself: NVIDIA's data sheet of the H200 SXM, and what CUDA's
// programming guide says of compute capability 9.0.
constexpr const char* kH200 =
    R"({"deviceName": "NVIDIA H200", "cudaDeviceId": 0, "deviceVer": 900, "driverVer": 13000,
        "multiProcessorCount": 132, "totalGlobalMem": 150754820096, "l2CacheSize": 52428800,
        "smClockRateKHz": 1980000, "memClockRateKHz": 2619000, "warpSize": 32, "pciDeviceId": 0,
        "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
        "regsPerBlock": 65536, "maxRegistersPerSM": 65536, "maxSharedMemoryPerBlock": 49152,
        "maxSharedMemoryPerBlockOptin": 232448, "reservedSharedMemoryPerBlock": 1024,
        "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048,
        "isTccDriver": 0, "supportCoopLaunch": 1})";

// cuDNN hands what it compiles to a driver, and finds the one that is loaded already: ours, once it
// was loaded, else one of the machine.
bool any_driver_is_loaded() { return dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) != nullptr; }

class CudnnPlans : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!any_driver_is_loaded()) {
      if (dlopen("libcuda.so.1", RTLD_NOW) != nullptr) {
        GTEST_SKIP() << "a driver is here: on a GPU, test_cuda runs these graphs";
      }
      ASSERT_NE(dlopen(BALLAST_PRETEND_DRIVER, RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
    }
    const std::string missing = why_no_cudnn(cudnn_library_name());
    if (!missing.empty()) GTEST_SKIP() << missing;
    const std::optional<CudnnFunctions> functions = load_cudnn(cudnn_library_name());
    ASSERT_TRUE(functions) << cudnn_library_name() << " is here and lacks a function";
    library_ = std::make_unique<CudnnAttention>(*functions, kH200);
  }
  std::unique_ptr<CudnnAttention> library_;
};

struct Slice {
  int64_t sequences = 0;
  int64_t kv_heads = 0;
};

AttentionPass pass_of(AttentionDirection direction, const kernels::cuda::AttentionShape& shape,
                      Slice slice) {
  AttentionPass pass;
  pass.direction = direction;
  pass.shape = shape;
  pass.query_stride = shape.width();
  pass.sequences = slice.sequences;
  pass.kv_heads = slice.kv_heads;
  return pass;
}

TEST_F(CudnnPlans, shapes_of_models_have_kernels_in_both_directions) {
  // gpt2; llama 8B in slices; qwen2 0.5B; heads of 80 and 96; an odd length.
  using kernels::Format;
  struct Case {
    kernels::cuda::AttentionShape shape;
    Slice slice;
    Format format;
    int64_t query_stride;  // of packed rows, or of q and k alone
  };
  for (const Case& c : {Case{{8, 1024, 12, 12, 64}, {8, 12}, Format::kBf16, 36 * 64},
                        Case{{1, 4096, 32, 8, 128}, {1, 1}, Format::kBf16, 40 * 128},
                        Case{{2, 2048, 14, 2, 64}, {1, 2}, Format::kF16, 16 * 64},
                        Case{{2, 1000, 4, 4, 80}, {2, 4}, Format::kF16, 12 * 80},
                        Case{{2, 37, 6, 2, 96}, {2, 2}, Format::kBf16, 8 * 96}}) {
    for (const AttentionDirection direction :
         {AttentionDirection::kForward, AttentionDirection::kBackward}) {
      AttentionPass pass = pass_of(direction, c.shape, c.slice);
      pass.format = c.format;
      pass.query_stride = c.query_stride;
      EXPECT_TRUE(library_->workspace(pass).has_value()) << library_->refusal(pass);
    }
  }
}

TEST_F(CudnnPlans, a_backward_in_fixed_order_needs_the_square_of_the_length) {
  // Gradients of scores in 16 bits: 1 sequence, 8 heads, 1024^2 x 2 bytes = 16.8 MB; the rest,
  // linear in the length, is below a quarter of it. Twice the length: four times as much.
  const auto workspace = [&](int64_t length) {
    const AttentionPass pass =
        pass_of(AttentionDirection::kBackward, {1, length, 8, 8, 64}, {1, 8});
    return static_cast<double>(library_->workspace(pass).value().count);
  };
  const double squares = 8.0 * 1024 * 1024 * 2;
  EXPECT_GE(workspace(1024), squares);
  EXPECT_LE(workspace(1024), 1.25 * squares);
  EXPECT_GE(workspace(2048), 4 * squares);
  EXPECT_LE(workspace(2048), 4 * 1.25 * squares);
  const AttentionPass forward = pass_of(AttentionDirection::kForward, {1, 1024, 8, 8, 64}, {1, 8});
  EXPECT_LE(library_->workspace(forward).value(), Bytes{4096});
}

TEST_F(CudnnPlans, a_shape_without_kernels_is_refused_with_what_the_library_says) {
  AttentionPass pass = pass_of(AttentionDirection::kForward, {1, 64, 1, 1, 60}, {1, 1});
  EXPECT_FALSE(library_->workspace(pass).has_value());  // rows of 120 bytes
  EXPECT_TRUE(library_->refusal(pass).starts_with("cuDNN, ")) << library_->refusal(pass);
}

TEST_F(CudnnPlans, without_a_device_the_library_does_not_start) {
  EXPECT_THROW(CudnnAttention(*load_cudnn(cudnn_library_name())), Error);
}

}  // namespace
}  // namespace ballast
