// The part of cuDNN that we call: its graph API, found at run time, so that a build needs neither
// the library nor its headers.
//
// Numbers are those of cudnn_graph.h of cuDNN 9, which keeps them from one version to the next;
// where that header is, the tests hold ours against it. A status is 0 where all is well.
// Will not do: know any operation (cudnn_graph.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ballast {

namespace cudnn {

enum Descriptor : int {
  kPointwise = 0,
  kEngine = 2,
  kEngineConfig = 3,
  kHeuristic = 4,
  kPlan = 5,
  kPointwiseOperation = 13,
  kGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
  kMatmul = 18,
  kMatmulOperation = 19,
  kReduction = 21,
  kReductionOperation = 22,
  kReshapeOperation = 31,
  kDeviceProperties = 38,
};

// What may be set of each kind of descriptor, or asked.
using Attribute = int;
enum PointwiseAttribute : Attribute {
  kPointwiseMode = 0,
  kPointwisePrecision = 1,
  kPointwiseAxis = 9,
  kPointwiseDescriptor = 750,
  kPointwiseX = 751,
  kPointwiseB = 752,
  kPointwiseY = 753,
  kPointwiseT = 758,
};
enum HeuristicAttribute : Attribute {
  kHeuristicMode = 200,
  kHeuristicGraph = 201,
  kHeuristicResults = 202,
  kHeuristicDevice = 204,
};
enum PlanAttribute : Attribute {
  kConfigEngine = 300,
  kPlanConfig = 401,
  kPlanWorkspace = 402,
  kEngineNotes = 1303,
};
enum GraphAttribute : Attribute {
  kGraphHandle = 800,
  kGraphOperations = 801,
};
enum TensorAttribute : Attribute {
  kTensorAlignment = 900,
  kTensorType = 901,
  kTensorDimensions = 902,
  kTensorStrides = 903,
  kTensorId = 906,
  kTensorIsVirtual = 907,
  kTensorIsByValue = 908,
};
enum PackAttribute : Attribute {
  kPackIds = 1000,
  kPackPointers = 1001,
  kPackWorkspace = 1003,
};
enum MatmulAttribute : Attribute {
  kMatmulPrecision = 1500,
  kMatmulA = 1520,
  kMatmulB = 1521,
  kMatmulC = 1522,
  kMatmulDescriptor = 1523,
};
enum ReductionAttribute : Attribute {
  kReductionOperator = 1600,
  kReductionPrecision = 1601,
  kReductionX = 1610,
  kReductionY = 1611,
  kReductionDescriptor = 1612,
};
enum ReshapeAttribute : Attribute {
  kReshapeX = 2200,
  kReshapeY = 2201,
};
enum DeviceAttribute : Attribute {
  kDeviceText = 2702,
};

// Of the elements that an attribute is given as.
enum Element : int {
  kHandleElement = 0,
  kTypeElement = 1,
  kBooleanElement = 2,
  kInt64Element = 3,
  kPointerElement = 6,
  kHeuristicElement = 8,
  kNoteElement = 11,
  kPointwiseElement = 14,
  kDescriptorElement = 15,
  kReductionElement = 18,
  kCharElement = 24,
};

// Of the values of a tensor, and of arithmetic.
enum Type : int { kFloat = 0, kHalf = 2, kInt32 = 4, kBfloat16 = 9, kBoolean = 11 };

enum Pointwise : int {
  kAdd = 0,
  kMultiply = 1,
  kDivide = 6,
  kSubtract = 9,
  kExp = 13,
  kLog = 15,
  kAtLeast = 303,
  kIndex = 501,
  kSelect = 601,
};

enum Reduction : int { kSum = 0, kMaximum = 3 };

inline constexpr int kHeuristicA = 3;
inline constexpr int kNotDeterministic = 4;  // a numerical note of an engine

}  // namespace cudnn

struct CudnnFunctions {
  size_t (*version)() = nullptr;              // 91900 is 9.19.0
  const char* (*text)(int status) = nullptr;  // for ever
  void (*last_error)(char* text, size_t) = nullptr;
  int (*create)(void** handle) = nullptr;
  int (*destroy)(void* handle) = nullptr;
  int (*set_stream)(void* handle, void* stream) = nullptr;
  int (*create_descriptor)(int kind, void** descriptor) = nullptr;
  int (*destroy_descriptor)(void* descriptor) = nullptr;
  int (*set)(void* descriptor, int attribute, int element, int64_t count,
             const void* values) = nullptr;
  int (*get)(void* descriptor, int attribute, int element, int64_t most, int64_t* count,
             void* values) = nullptr;
  int (*finalize)(void* descriptor) = nullptr;
  int (*execute)(void* handle, void* plan, void* pack) = nullptr;
};

// The oldest version whose graphs are ours: 9.8.0.
inline constexpr size_t kCudnnOldest = 90800;

// Of the library of that name, as the loader finds it; nothing where it is not there, lacks a
// function or is older. It stays loaded until the process ends.
std::optional<CudnnFunctions> load_cudnn(const std::string& library);

// Why there is none to load: not there, or older. Empty where there should be one: that it then
// lacks a function, or does not start, is a fault and no reason.
std::string why_no_cudnn(const std::string& library);

// What the environment's BALLAST_CUDNN names (a path, or "none"), else libcudnn.so.9.
std::string cudnn_library_name();

// Throws Error that names the attempt and what the library says where the status is not 0.
void check_cudnn(const CudnnFunctions& functions, int status, std::string_view attempt);

// A descriptor of the library. Every call throws Error where the library refuses it.
class CudnnDescriptor {
 public:
  CudnnDescriptor(const CudnnFunctions& functions, cudnn::Descriptor kind);
  ~CudnnDescriptor();
  CudnnDescriptor(CudnnDescriptor&& other) noexcept;
  CudnnDescriptor& operator=(CudnnDescriptor&&) = delete;

  template <class Value>
  void set(cudnn::Attribute attribute, cudnn::Element element, std::span<const Value> values) {
    set_values(attribute, element, static_cast<int64_t>(values.size()), values.data());
  }
  template <class Value>
  void set(cudnn::Attribute attribute, cudnn::Element element, const Value& value) {
    set_values(attribute, element, 1, &value);
  }
  void set(cudnn::Attribute attribute, const CudnnDescriptor& descriptor) {
    set(attribute, cudnn::kDescriptorElement, descriptor.native_);
  }
  // At most so many; how many there were.
  int64_t get(cudnn::Attribute attribute, cudnn::Element element, int64_t most, void* values) const;
  void finalize();
  void* native() const { return native_; }

 private:
  void set_values(cudnn::Attribute attribute, cudnn::Element element, int64_t count,
                  const void* values);

  const CudnnFunctions& functions_;
  cudnn::Descriptor kind_;
  void* native_ = nullptr;
};

}  // namespace ballast
