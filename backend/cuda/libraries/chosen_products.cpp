#include "backend/cuda/libraries/chosen_products.h"

#include <fmt/format.h>
#include <limits>
#include <optional>
#include <utility>

#include "backend/cuda/cuda_memory.h"
#include "sim/base/error.h"

namespace ballast {

namespace {

// An event that goes when its owner does.
class Mark {
 public:
  Mark(CudaRuntime& runtime, CudaStream stream)
      : runtime_(runtime), event_(runtime.create_event(stream)) {}
  ~Mark() {
    try {
      runtime_.destroy(event_);
    } catch (const Error&) {
      // The device has failed, which whoever used it was told.
    }
  }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  CudaEvent get() const { return event_; }

 private:
  CudaRuntime& runtime_;
  CudaEvent event_;
};

// From the first value of the output to the last.
Bytes output_bytes(const CudaGemm& gemm) {
  return bytes_of((gemm.m - 1) * gemm.out_stride + gemm.n, gemm.out_dtype);
}

}  // namespace

uint32_t alignment_of(const void* address) {
  const auto value = reinterpret_cast<uintptr_t>(address) | 256U;
  return static_cast<uint32_t>(value & (~value + 1));
}

ChosenProducts::ChosenProducts(CudaRuntime& runtime, std::unique_ptr<GemmLibrary> library,
                               GemmAlgorithmStore store)
    : runtime_(runtime), library_(std::move(library)), store_(std::move(store)) {}

ChosenProducts::Shape ChosenProducts::shape_of(const CudaGemm& gemm) {
  const auto operand = [](const GemmOperand& one) {
    return Operand{one.dtype, one.orientation, one.stride, alignment_of(one.data),
                   one.scale != nullptr};
  };
  Shape shape{gemm.m, gemm.n, gemm.k, operand(gemm.a), operand(gemm.b), {}, {}, false, 0, 0};
  shape.out = {gemm.out_dtype, {}, gemm.out_stride, alignment_of(gemm.out), false};
  if (gemm.added != nullptr) shape.added.alignment = alignment_of(gemm.added);
  shape.bias = gemm.bias != nullptr;
  if (gemm.sums_of_a != nullptr) shape.sums_of_a = alignment_of(gemm.sums_of_a);
  if (gemm.sums_of_b != nullptr) shape.sums_of_b = alignment_of(gemm.sums_of_b);
  return shape;
}

std::string ChosenProducts::text_of(const Shape& s) {
  const auto turned = [](const Operand& one) {
    return one.orientation == Orientation::kTransposed ? "^T" : "";
  };
  const auto sums = [](const char* factor, uint32_t alignment) {
    return alignment == 0 ? "" : fmt::format(" sums of {} {}", factor, alignment);
  };
  return fmt::format("{}x{}x{} {}{} {}{} to {} strides {} {} {} aligned {} {} {}{}{}{}{}{}", s.m,
                     s.n, s.k, to_string(s.a.dtype), turned(s.a), to_string(s.b.dtype), turned(s.b),
                     to_string(s.out.dtype), s.a.stride, s.b.stride, s.out.stride, s.a.alignment,
                     s.b.alignment, s.out.alignment,
                     s.added.alignment == 0 ? "" : fmt::format(" adds {}", s.added.alignment),
                     s.bias ? " bias" : "", s.a.scaled ? " scaled" : "", sums("a", s.sums_of_a),
                     sums("b", s.sums_of_b));
}

void ChosenProducts::multiply(const CudaGemm& gemm, CudaStream stream) {
  const Shape shape = shape_of(gemm);
  auto at = choices_.find(shape);
  if (at == choices_.end()) {
    Choice made;
    made.prepared = library_->prepare(gemm);
    made.algorithm = choose(gemm, *made.prepared, stream);
    at = choices_.emplace(shape, std::move(made)).first;
  }
  at->second.prepared->run(gemm, at->second.algorithm, stream);
}

bool ChosenProducts::offers_sums(const CudaGemm& gemm) {
  const auto [offer, is_new] = offers_.try_emplace(shape_of(gemm), false);
  if (is_new) offer->second = !library_->prepare(gemm)->candidates(1).empty();
  return offer->second;
}

GemmAlgorithm ChosenProducts::choose(const CudaGemm& gemm, PreparedGemm& prepared,
                                     CudaStream stream) {
  const std::string shape = text_of(shape_of(gemm));
  std::string key = library_->machine() + ": " + shape;
  // A store may be damaged, or come from elsewhere. It keeps the oldest answer to a question, so
  // what takes the place of one that is refused has a question of its own.
  for (std::optional<GemmAlgorithm> kept; store_.find && (kept = store_.find(key));
       key += " anew") {
    if (prepared.accepts(*kept)) return *kept;
  }
  const std::vector<GemmAlgorithm> candidates = prepared.candidates(store_.keep ? kCandidates : 1);
  if (candidates.empty()) {
    throw Error(fmt::format("product {} on stream {}", shape, stream.name),
                "the library has no algorithm for it",
                "train with --set plan.dtype=bf16 and plan.products=as-stored");
  }
  if (!store_.keep) return candidates.front();
  const GemmAlgorithm chosen =
      candidates.size() == 1 ? candidates.front() : fastest(gemm, prepared, candidates, stream);
  store_.keep(key, chosen);
  return chosen;
}

// What a run adds to itself is put back as it was after all of them.
GemmAlgorithm ChosenProducts::fastest(const CudaGemm& gemm, PreparedGemm& prepared,
                                      const std::vector<GemmAlgorithm>& candidates,
                                      CudaStream stream) {
  const Bytes bytes = gemm.added == gemm.out ? output_bytes(gemm) : Bytes{};
  std::optional<CudaMemory> before;
  try {
    before.emplace(runtime_, CudaMemoryKind::kDevice, bytes, "a product that is timed");
  } catch (const Error&) {
    return candidates.front();  // the arena has left too little to try
  }
  const auto copy = [&](void* to, const void* from) {
    if (bytes.count > 0) runtime_.copy({to, from, bytes, CopyKind::kDeviceToDevice}, stream);
  };
  copy(before->data(), gemm.out);
  const GemmAlgorithm* best = &candidates.front();
  double least = std::numeric_limits<double>::infinity();
  for (const GemmAlgorithm& each : candidates) {
    const double time = time_of(gemm, prepared, each, stream);
    if (time >= least) continue;
    least = time;
    best = &each;
  }
  copy(gemm.out, before->data());
  runtime_.synchronize(stream);  // before the memory goes
  return *best;
}

// Infinite of one that the library refuses now that it is to run.
double ChosenProducts::time_of(const CudaGemm& gemm, PreparedGemm& prepared,
                               const GemmAlgorithm& algorithm, CudaStream stream) {
  const Mark begin(runtime_, stream);
  const Mark end(runtime_, stream);
  try {
    prepared.run(gemm, algorithm, stream);
    runtime_.record(begin.get(), stream);
    for (int i = 0; i < kTimes; ++i) prepared.run(gemm, algorithm, stream);
    runtime_.record(end.get(), stream);
  } catch (const Error&) {
    return std::numeric_limits<double>::infinity();
  }
  runtime_.synchronize(end.get());
  return runtime_.milliseconds(begin.get(), end.get());
}

}  // namespace ballast
