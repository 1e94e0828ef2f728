// Products by a library that has several algorithms for each: descriptors are made and an algorithm
// is chosen the first time that a shape comes, and both are kept, so later calls allocate nothing.
//
// The same shape has one algorithm, so it gives the same bits. It is that of the store, if the
// library accepts it there still; else, where there is a store to keep the answer, the fastest of a
// few that are timed on the operands themselves; else the library's first. Without a store nothing
// is timed: two devices of one process could choose otherwise, and have other bits.
// Will not do: call while the stream captures a shape that it has not seen.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "backend/cuda/libraries/gemm_library.h"

namespace ballast {

class ChosenProducts : public CudaProducts {
 public:
  // The runtime must outlive this.
  ChosenProducts(CudaRuntime& runtime, std::unique_ptr<GemmLibrary> library,
                 GemmAlgorithmStore store);

  bool offers_sums(const CudaGemm& gemm) override;
  Bytes workspace() const override { return library_->workspace(); }
  // Throws Error that names shape and stream where no algorithm fits or the launch is refused.
  void multiply(const CudaGemm& gemm, CudaStream stream) override;

  // Candidates that are timed, each this often after a run that warms up.
  static constexpr int kCandidates = 8;
  static constexpr int kTimes = 5;

 private:
  struct Operand {
    DType dtype{};
    Orientation orientation{};
    int64_t stride = 0;
    uint32_t alignment = 0;
    bool scaled = false;
    friend auto operator<=>(const Operand&, const Operand&) = default;
  };
  // Whatever descriptors and the choice of an algorithm depend on.
  struct Shape {
    int64_t m = 0, n = 0, k = 0;
    Operand a, b, out, added;  // added: alignment 0 where nothing is
    bool bias = false;
    uint32_t sums_of_a = 0, sums_of_b = 0;  // their alignment; 0: they go nowhere
    friend auto operator<=>(const Shape&, const Shape&) = default;
  };
  struct Choice {
    std::unique_ptr<PreparedGemm> prepared;
    GemmAlgorithm algorithm{};
  };

  static Shape shape_of(const CudaGemm& gemm);
  static std::string text_of(const Shape& shape);
  GemmAlgorithm choose(const CudaGemm& gemm, PreparedGemm& prepared, CudaStream stream);
  GemmAlgorithm fastest(const CudaGemm& gemm, PreparedGemm& prepared,
                        const std::vector<GemmAlgorithm>& candidates, CudaStream stream);
  double time_of(const CudaGemm& gemm, PreparedGemm& prepared, const GemmAlgorithm& algorithm,
                 CudaStream stream);

  CudaRuntime& runtime_;
  std::unique_ptr<GemmLibrary> library_;
  GemmAlgorithmStore store_;
  std::map<Shape, Choice> choices_;
  std::map<Shape, bool> offers_;  // of products that leave sums
};

}  // namespace ballast
