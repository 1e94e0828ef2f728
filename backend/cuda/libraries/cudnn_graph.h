// A graph of cuDNN operations on tensors of four dimensions, and a plan that runs it.
//
// Tensors are named by the number that the graph gives them, which is also cuDNN's id. Arithmetic
// is fp32. Will not do: know attention (cudnn_attention.h).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/libraries/cudnn_library.h"
#include "sim/base/units.h"

namespace ballast {

// Sizes, and values between neighbours, of batch, head, row and column.
struct CudnnExtent {
  std::array<int64_t, 4> size{};
  std::array<int64_t, 4> stride{};
};

// Where plans run: on the device of a handle, or for the device that a text describes (cuDNN's own
// JSON), which need not be in this machine; such plans do not run.
struct CudnnTarget {
  void* handle = nullptr;
  const CudnnDescriptor* device = nullptr;
};

// What a run takes: for every tensor of the graph that is memory, its address on the device; for
// every scalar, that of its value on the host.
struct CudnnBinding {
  int64_t tensor = 0;
  void* address = nullptr;
};

// Ready to run as often as wanted.
class CudnnPlan {
 public:
  CudnnPlan(const CudnnFunctions& functions, CudnnDescriptor plan);
  Bytes workspace() const { return workspace_; }
  // Enqueues on the handle's stream.
  struct Run {
    void* handle = nullptr;
    void* workspace = nullptr;
    std::string attempt;  // for messages
  };
  void run(const Run& run, std::span<const CudnnBinding> bindings) const;

 private:
  const CudnnFunctions& functions_;
  CudnnDescriptor plan_;
  Bytes workspace_;
};

class CudnnGraph {
 public:
  explicit CudnnGraph(const CudnnFunctions& functions) : functions_(functions) {}

  // In device memory aligned to 16 bytes.
  int64_t memory(cudnn::Type type, const CudnnExtent& extent);
  // One fp32 value that the host brings.
  int64_t scalar();
  // Between operations only.
  int64_t between(cudnn::Type type, const CudnnExtent& extent);

  struct Product {
    int64_t a = 0, b = 0, out = 0;
  };
  void multiply(const Product& product);  // over the last two dimensions
  // out = mode(x, b); kSelect: where t, x, else b.
  struct PointOperation {
    cudnn::Pointwise mode{};
    int64_t out = 0, x = 0;
    std::optional<int64_t> b = {}, t = {};
    std::optional<int64_t> axis = {};  // of kIndex: which dimension's index
    cudnn::Type precision = cudnn::kFloat;
  };
  void point(const PointOperation& operation);
  // Over every dimension of which `out` has but one.
  struct Fold {
    cudnn::Reduction by{};
    int64_t x = 0, out = 0;
  };
  void reduce(const Fold& fold);
  // The same values under other dimensions.
  struct View {
    int64_t x = 0, out = 0;
  };
  void reshape(const View& view);

  // The first plan of cuDNN's heuristics that gives the same bits every time. Throws Error where
  // there is none, with what the library said of the last.
  CudnnPlan plan(const CudnnTarget& target);

 private:
  int64_t add(cudnn::Type type, const CudnnExtent& extent,
              std::span<const cudnn::TensorAttribute> flags);
  const CudnnDescriptor& at(int64_t tensor) const { return tensors_[static_cast<size_t>(tensor)]; }
  CudnnDescriptor finished(const CudnnTarget& target);
  std::vector<CudnnDescriptor> configurations(const CudnnDescriptor& graph,
                                              const CudnnTarget& target) const;
  bool repeats(const CudnnDescriptor& configuration) const;

  const CudnnFunctions& functions_;
  std::vector<CudnnDescriptor> tensors_;
  std::vector<CudnnDescriptor> parts_;  // what operations are described by
  std::vector<CudnnDescriptor> operations_;
};

}  // namespace ballast
