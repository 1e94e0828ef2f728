#include "kernels/bf16_moments.h"

#include <algorithm>

namespace ballast::kernels {

namespace {

// Both moments of a block fit the first cache beside its masters and gradients.
constexpr int64_t kBlock = 1024;

}  // namespace

AdamArrays slice_without_moments(const AdamArrays& arrays, int64_t begin, int64_t count) {
  AdamArrays part = arrays;
  // Any memory of the run will do for what is not looked at: pointers may not begin at null.
  part.moment1 = part.moment2 = part.master;
  part = slice(part, begin, count);
  part.moment1 = part.moment2 = nullptr;
  return part;
}

void adam_step_bf16_moments(const Table& table, const AdamArrays& arrays,
                            const Bf16Moments& moments, const AdamConstants& constants) {
  alignas(64) float moment1[kBlock];
  alignas(64) float moment2[kBlock];
  for (int64_t begin = 0; begin < arrays.count; begin += kBlock) {
    const int64_t count = std::min(kBlock, arrays.count - begin);
    AdamArrays block = slice_without_moments(arrays, begin, count);
    block.moment1 = moment1;
    block.moment2 = moment2;
    table.cast(moments.moment1 + begin, Format::kBf16, moment1, Format::kF32, count);
    table.cast(moments.moment2 + begin, Format::kBf16, moment2, Format::kF32, count);
    table.adam_step(block, constants);
    table.cast(moment1, Format::kF32, moments.moment1 + begin, Format::kBf16, count);
    table.cast(moment2, Format::kF32, moments.moment2 + begin, Format::kBf16, count);
  }
}

}  // namespace ballast::kernels
