#include "sim/engine/kernels.h"

#include <algorithm>
#include <cmath>

#include "sim/graph/core/edit.h"

namespace ballast {
namespace {

constexpr double kValuesOfAKernel = 18.0 / 8;
constexpr int64_t kValuesOfALaunch = int64_t{320} * 65536;
constexpr int64_t kFlashBackward = 3;
constexpr int64_t kFp8Product = 5;
constexpr int64_t kFp8Expert = 2;
constexpr int64_t kFindingAScale = 3;

int64_t passes_in(const RowWork& work) {
  const Bytes once = bytes_of(work.rows * work.columns, work.dtype);
  if (once.count <= 0) return 1;
  const double values = static_cast<double>(work.moved.count) / static_cast<double>(once.count);
  return std::llround(values / kValuesOfAKernel);
}

// Around attention: of the size of its queries.
int64_t passes_around(const AttentionWork& work) {
  const Bytes queries =
      bytes_of(work.sequences * work.length * work.heads * work.head_size, work.dtype);
  if (queries.count <= 0) return 0;
  const double values = static_cast<double>(work.passed.count) / static_cast<double>(queries.count);
  return std::llround(values / kValuesOfAKernel);
}

// Products read or write the scores once each; the other passes read and write them.
int64_t eager_kernels(const AttentionWork& work, Phase phase) {
  const int64_t products = is_backward(phase) ? 4 : 2;
  const int64_t keys = work.tokens_before + work.length;
  const Bytes scores = bytes_of(work.sequences * work.heads * work.length * keys, work.dtype);
  if (scores.count <= 0) return products;
  return products + std::max<int64_t>(0, (work.moved.count / scores.count - products) / 2);
}

// Factors whose scale is that of their own values.
int64_t scaled_by_themselves(Rounding rounding) {
  if (rounding == Rounding::kJustInTime || rounding == Rounding::kForNext) return 2;
  return rounding == Rounding::kCurrent || rounding == Rounding::kSecond ? 1 : 0;
}

int64_t kernels_of_an_expert(const GemmWork& work) {
  if (work.format != ProductFormat::kFp8) return 1;
  return kFp8Expert + kFindingAScale * scaled_by_themselves(work.rounding);
}

struct KernelCount {
  const Op& op;
  int64_t operator()(std::monostate) const { return 0; }
  int64_t operator()(const GemmWork& work) const {
    if (work.by_expert) return work.experts * kernels_of_an_expert(work);
    if (work.format != ProductFormat::kFp8) return 1;
    const bool own = work.weight_codes == WeightCodes::kOwn;
    return own ? kFp8Product : 1 + rounding_passes(work);
  }
  int64_t operator()(const AttentionWork& work) const {
    const int64_t kernel = work.kind == AttentionKind::kEager ? eager_kernels(work, op.phase)
                           : is_backward(op.phase)            ? kFlashBackward
                                                              : 1;
    return kernel + passes_around(work);
  }
  int64_t operator()(const RowWork& work) const { return std::max<int64_t>(1, passes_in(work)); }
  int64_t operator()(const BucketWork& work) const {
    if (work.site != Site::kGpu) return 0;
    return work.launches > 0 ? work.launches : div_ceil(work.elements, kValuesOfALaunch);
  }
  int64_t operator()(const CopyWork& work) const { return work.calls; }
  int64_t operator()(const CollectiveWork& work) const { return work.ranks > 1 ? 1 : 0; }
  int64_t operator()(const IoWork&) const { return 0; }
  int64_t operator()(const BlockWork&) const { return 0; }
};

}  // namespace

int64_t kernels_of(const Op& op) { return std::visit(KernelCount{op}, op.work); }

bool is_by_expert(const Op& op) {
  const auto* product = std::get_if<GemmWork>(&op.work);
  return product != nullptr && product->by_expert;
}

}  // namespace ballast
