// The part of the cost model that times products and attention: from the device tables of the
// GPU's generation where its machine names one, else from the machine's own rates.
#include <algorithm>
#include <cmath>

#include "sim/base/error.h"
#include "sim/engine/cost.h"
#include "sim/engine/tables/kernel_model.h"

namespace ballast {
namespace {

bool is_half(DType dtype) { return dtype == DType::kBf16 || dtype == DType::kF16; }

}  // namespace

// Of the machine over its part: what an override or a study changes, and what a board of another
// clock has.
double CostModel::kernel_rate(DType dtype) const {
  const KernelPart& part = *machine_.gpu.kernels.model->part(machine_.gpu.kernels.part);
  const auto own = part.matmul.find(dtype);
  const auto& of_part = own != part.matmul.end() ? own->second : part.matmul.begin()->second;
  return matmul_rate(dtype).flops_per_s / of_part.flops_per_s;
}

// Between points of this very part; what another part's rates were scaled to is computed.
Provenance CostModel::of_tables(DType dtype) const {
  const bool measured =
      machine_.gpu.kernels.model && is_half(dtype) && machine_.gpu.matmul.at(dtype).measured;
  return measured ? Provenance::kInterpolated : Provenance::kRoofline;
}

// Tables time kernels with their start, which launched() adds.
Duration CostModel::without_start(Duration time) const {
  return std::max(time - machine_.gpu.launch.value, Duration{});
}

Duration CostModel::product_time(const GemmWork& work, int64_t batch) const {
  const bool fp8 = work.format == ProductFormat::kFp8;
  const DType dtype = fp8 ? DType::kE4m3 : work.dtype;
  const Gpu& gpu = machine_.gpu;
  if (gpu.kernels.model && (fp8 || is_half(dtype))) {
    const double sustained = gpu.kernels.model->timed_as_16_bit(work.format) ? sustained_gemm_ : 1;
    const KernelUse use{gpu.kernels.part, kernel_rate(dtype) * constants_.gemm * sustained,
                        gpu.memory_bandwidth.value, gpu.multiprocessors};
    const auto time =
        gpu.kernels.model->gemm_time({work.format, batch, work.m, work.n, work.k}, use);
    if (time) return without_start(*time);
  }
  return batched_gemm_time(work, batch, matrix_unit(dtype));
}

// How a framework rounds weights is one of its facts.
void CostModel::check_kept_codes(const Stack& stack) {
  if (stack.memory_is_planned()) return;
  throw Error(
      "stack " + stack.name + ": weights.keep_codes",
      "is a choice of Ballast's own products; how the framework rounds weights is a fact of "
      "its stack (fp8_weights)",
      "predict it with --stack ballast, or set plan.weights.keep_codes=false");
}

// The passes over its operands, then the product.
CostModel::Alone CostModel::fp8_product(const GemmWork& work) const {
  const auto& tables = machine_.gpu.kernels.model;
  const int64_t layouts = tables ? tables->tables().code_layouts : KernelTables{}.code_layouts;
  const auto passes = static_cast<double>(rounding_passes(work, layouts));
  const Duration rounding = pass(rounding_bytes(work, layouts));
  return {launched(product_time(work, 1) + rounding + machine_.gpu.launch.value * passes),
          of_tables(work.dtype)};
}

// Of a large grid, before the stack's share.
FlopRate CostModel::flash_rate(const AttentionWork& work, Phase phase) const {
  const Gpu& gpu = machine_.gpu;
  const bool half = is_half(work.dtype);
  // The last query of a part sees as many keys as that of a sequence that ends with it. One that
  // sees a window of w sees as many as those of a sequence of 2 w do on average.
  int64_t seen = work.tokens_before + work.length;
  if (work.window > 0) seen = std::min(seen, 2 * work.window);
  if (half && gpu.attention.empty() && gpu.kernels.model) {
    const auto rate = gpu.kernels.model->attention_rate(
        {attention_kernel_, work.head_size, seen, phase == Phase::kBackward, true},
        gpu.kernels.part);
    if (rate) return {rate->flops_per_s * kernel_rate(work.dtype)};
  }
  if (gpu.attention.empty() || !half) {
    return {matmul_rate(work.dtype).flops_per_s * gpu.attention_efficiency.value};
  }
  const auto rate_of = [&](const AttentionRates& rates) {
    const Curve& curve = phase == Phase::kBackward ? rates.backward : rates.forward;
    return curve.rate_at(static_cast<double>(seen));
  };
  const std::vector<AttentionRates>& all = gpu.attention;
  if (work.head_size <= all.front().head_size) return {rate_of(all.front())};
  if (work.head_size >= all.back().head_size) return {rate_of(all.back())};
  const auto above = std::find_if(all.begin(), all.end(),
                                  [&](const auto& r) { return r.head_size >= work.head_size; });
  const AttentionRates& below = *(above - 1);
  const double share = static_cast<double>(work.head_size - below.head_size) /
                       static_cast<double>(above->head_size - below.head_size);
  return {rate_of(below) + share * (rate_of(*above) - rate_of(below))};
}

// Fused attention works on blocks of 128 queries of one head (FlashAttention-2, arXiv 2307.08691,
// section 3.3); fewer blocks than multiprocessors leave some idle.
CostModel::Alone CostModel::flash_attention(const AttentionWork& work, Phase phase) const {
  const Gpu& gpu = machine_.gpu;
  double rate = flash_rate(work, phase).flops_per_s * constants_.attention;
  if (!gpu.is_host_thread) {
    const int64_t blocks = work.sequences * work.heads * div_ceil(work.length, 128);
    rate *= std::min(1.0, static_cast<double>(blocks) / static_cast<double>(gpu.multiprocessors));
  }
  Alone result = gpu_memory_bound(work.moved, work.flops / FlopRate{rate});
  result.time += pass(work.passed);
  if (gpu.attention.empty()) result.provenance = of_tables(work.dtype);
  return result;
}

// Batched products of every head, and the other passes over the scores, one after another. One
// product makes scores from D (or their gradient); the others sum over the keys or queries. Each
// writes or reads the scores once itself, which costs nothing more where it is bound by arithmetic.
CostModel::Alone CostModel::eager_attention(const AttentionWork& work) const {
  const int64_t batch = work.sequences * work.heads;
  const int64_t keys = work.tokens_before + work.length;
  const GemmWork scores{work.length, keys, work.head_size, work.dtype};
  const GemmWork sums{work.length, work.head_size, keys, work.dtype};
  const double product_flops = flops_of(Work{scores}).count * static_cast<double>(batch);
  const double products = std::max(std::round(work.flops.count / product_flops), 1.0);
  const Bytes square = bytes_of(batch * work.length * keys, work.dtype);
  const Bytes in_products = square * static_cast<int64_t>(products);
  const Duration passes = pass(std::max(work.moved - in_products, Bytes{}) + work.passed);
  if (machine_.gpu.is_host_thread) {
    return {launched(pass(work.moved + work.passed) + work.flops / matmul_rate(work.dtype))};
  }
  return {product_time(scores, batch) + product_time(sums, batch) * (products - 1) + passes +
          machine_.gpu.launch.value * products};
}

}  // namespace ballast
