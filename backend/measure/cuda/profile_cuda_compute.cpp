#include "backend/measure/cuda/profile_cuda_compute.h"

#include <algorithm>
#include <fmt/format.h>

#include "sim/base/error.h"

namespace ballast {

namespace {

namespace cuda = kernels::cuda;

constexpr int kLaunches = 200;  // in a row
constexpr int kHandovers = 50;  // there and back
constexpr double kHoldSeconds = 0.01;
constexpr int kMostHolds = 200;
// More than any cache of a GPU holds.
constexpr int64_t kBeyondCaches = int64_t{512} << 20;
constexpr int kMostSets = 8;

constexpr Bytes kScale{4};

bool is_codes(const GemmWork& work) { return work.dtype == DType::kE4m3; }
DType dtype_of_output(const GemmWork& work) {
  if (work.wide_output) return DType::kF32;
  return is_codes(work) ? DType::kBf16 : work.dtype;
}

// What a product reads and writes, as the workspace hands it out.
struct Footprint {
  Bytes inputs;
  Bytes output;
};
Footprint footprint(const GemmWork& work) {
  const auto part = [&](int64_t values, DType dtype) {
    return Bytes{round_up(bytes_of(values, dtype).count, CudaWorkspace::kAlignment)};
  };
  return {part(work.m * work.k, work.dtype) + part(work.k * work.n, work.dtype),
          part(work.m * work.n, dtype_of_output(work))};
}

// In a model whose weights are [out, in]: x W^T, dy W, dy^T x (linear modules of
// transformer_cuda.cpp).
CudaGemm product_of(const GemmWork& work, Phase phase) {
  using enum Orientation;
  const bool forward = phase == Phase::kForward || phase == Phase::kRecompute;
  const bool weight = phase == Phase::kBackwardWeight;
  CudaGemm gemm;
  gemm.m = work.m;
  gemm.n = work.n;
  gemm.k = work.k;
  gemm.a = {nullptr, work.dtype, weight ? kTransposed : kAsStored, weight ? work.m : work.k};
  gemm.b = {nullptr, work.dtype, forward ? kTransposed : kAsStored, forward ? work.k : work.n};
  gemm.out_dtype = dtype_of_output(work);
  gemm.out_stride = work.n;
  return gemm;
}

}  // namespace

CudaCompute::CudaCompute(CudaRuntime& runtime, CudaProbeKernels& kernels, CudaStopwatch& watch,
                         CudaWorkspace& workspace, const Extent& extent)
    : runtime_(runtime), kernels_(kernels), watch_(watch), workspace_(workspace), extent_(extent) {}

void CudaCompute::hold() {
  workspace_.reset();
  cuda::CopyProbe move;
  move.bytes = std::min(extent_.largest_move, workspace_.outputs_left()).count / 16 * 16;
  move.from = workspace_.take_input({move.bytes});
  move.to = workspace_.take_output({move.bytes});
  if (holds_ == 0) {
    const Timing once =
        watch_.time([&](int) { kernels_.copy(move, watch_.stream()); }, {2, 4, kHoldSeconds, 1});
    holds_ = std::clamp(static_cast<int>(kHoldSeconds / once.median.seconds()), 1, kMostHolds);
  }
  for (int i = 0; i < holds_; ++i) kernels_.copy(move, watch_.stream());
}

CudaCompute::LaunchTimes CudaCompute::launch() {
  const CudaStream stream = watch_.stream();
  const CudaOwned event(runtime_, runtime_.create_event(stream));
  LaunchTimes times;
  hold();  // now, because its own timing uses the stopwatch
  runtime_.synchronize(stream);
  const Duration all = watch_.time_of_run(
      [&](int) {
        for (int i = 0; i < kLaunches; ++i) {
          runtime_.record(event.get(), stream);
          kernels_.empty(stream);
          runtime_.record(event.get(), stream);
        }
      },
      [&] { hold(); });
  times.least = all * (1.0 / kLaunches);
  const double begin = watch_.now();
  for (int i = 0; i < kLaunches; ++i) kernels_.empty(stream);
  times.host = Duration::from_seconds((watch_.now() - begin) / kLaunches);
  runtime_.synchronize(stream);
  return times;
}

Duration CudaCompute::handover() {
  const CudaStream one = watch_.stream();
  const CudaOwned other(runtime_, runtime_.create_stream("probe 2", StreamPriority::kLow));
  const CudaOwned there(runtime_, runtime_.create_event(one));
  const CudaOwned back(runtime_, runtime_.create_event(other.get()));
  hold();
  runtime_.synchronize(one);
  const auto run = [&](CudaStream second) {
    return watch_.time_of_run(
        [&](int) {
          for (int i = 0; i < kHandovers; ++i) {
            kernels_.empty(one);
            runtime_.record(there.get(), one);
            runtime_.wait(second, there.get());
            kernels_.empty(second);
            runtime_.record(back.get(), second);
            runtime_.wait(one, back.get());
          }
        },
        [&] { hold(); });
  };
  const Duration across = run(other.get());
  const Duration alone = run(one);  // the same calls on one stream
  return std::max(across - alone, Duration{}) * (1.0 / (2 * kHandovers));
}

CudaCompute::MemoryRates CudaCompute::memory() {
  workspace_.fill(DType::kF32);
  MemoryRates rates;
  const int64_t room =
      std::min(workspace_.inputs_left().count / 2, workspace_.outputs_left().count);
  rates.each = {std::min(extent_.largest_move.count, room) / 256 * 256};
  std::byte* const a = workspace_.take_output(rates.each);
  std::byte* const b = workspace_.take_input(rates.each);
  std::byte* const c = workspace_.take_input(rates.each);
  const auto bytes = static_cast<double>(rates.each.count);
  const Timing copy = watch_.time(
      [&](int) { kernels_.copy({b, a, rates.each.count}, watch_.stream()); }, extent_.limits);
  cuda::TriadProbe triad;
  triad.a = reinterpret_cast<float*>(a);
  triad.b = reinterpret_cast<const float*>(b);
  triad.c = reinterpret_cast<const float*>(c);
  triad.count = rates.each.count / size_of(DType::kF32);
  const Timing three =
      watch_.time([&](int) { kernels_.triad(triad, watch_.stream()); }, extent_.limits);
  rates.copy = 2 * bytes / copy.median.seconds();
  rates.triad = 3 * bytes / three.median.seconds();
  return rates;
}

double CudaCompute::arithmetic() {
  workspace_.fill(DType::kF32);
  constexpr int64_t kThreads = 2048;  // that a multiprocessor holds
  constexpr int64_t kChains = 8;      // of a thread (probes.cu)
  cuda::ArithmeticProbe probe;
  probe.count = runtime_.properties().multiprocessors * kThreads * kChains;
  probe.count = std::min(probe.count, workspace_.outputs_left().count / 256 * 64);
  probe.rounds = extent_.arithmetic_rounds;
  probe.values =
      reinterpret_cast<float*>(workspace_.take_output(bytes_of(probe.count, DType::kF32)));
  const Timing timing =
      watch_.time([&](int) { kernels_.arithmetic(probe, watch_.stream()); }, extent_.limits);
  return 2.0 * static_cast<double>(probe.count) * probe.rounds / timing.median.seconds();
}

Timing CudaCompute::product(const Op& op, const ProbeLimits& limits) {
  const auto& work = std::get<GemmWork>(op.work);
  workspace_.reset();
  const float* const scale = is_codes(work) ? scale_of_codes() : nullptr;
  const Footprint set = footprint(work);
  const int64_t wanted = std::clamp<int64_t>(kBeyondCaches / set.inputs.count, 1, kMostSets);
  const int64_t fitting = std::min(workspace_.inputs_left().count / set.inputs.count,
                                   workspace_.outputs_left().count / set.output.count);
  std::vector<CudaGemm> sets(static_cast<size_t>(std::max<int64_t>(std::min(wanted, fitting), 1)),
                             product_of(work, op.phase));
  for (CudaGemm& gemm : sets) {
    gemm.a.data = workspace_.take_input(bytes_of(work.m * work.k, work.dtype));
    gemm.b.data = workspace_.take_input(bytes_of(work.k * work.n, work.dtype));
    gemm.a.scale = gemm.b.scale = scale;
    gemm.out = workspace_.take_output(bytes_of(work.m * work.n, gemm.out_dtype));
    if (work.accumulate) gemm.added = gemm.out;
  }
  const auto body = [&](int repeat) {
    const size_t set_of_repeat = static_cast<size_t>(repeat + 1) % sets.size();
    kernels_.products().multiply(sets[set_of_repeat], watch_.stream());
  };
  return watch_.time(body, limits);
}

const float* CudaCompute::scale_of_codes() {
  const float one = 1;
  std::byte* const scale = workspace_.take_input(kScale);
  runtime_.copy({scale, &one, kScale, CopyKind::kHostToDevice}, watch_.stream());
  runtime_.synchronize(watch_.stream());
  return reinterpret_cast<const float*>(scale);
}

bool CudaCompute::fits(const GemmWork& work) const {
  workspace_.reset();
  Footprint set = footprint(work);
  if (is_codes(work)) set.inputs += Bytes{CudaWorkspace::kAlignment};
  return set.inputs <= workspace_.inputs_left() && set.output <= workspace_.outputs_left();
}

double CudaCompute::best_product(DType dtype) {
  workspace_.fill(dtype);
  double best = 0;
  for (int64_t side = extent_.square; side >= extent_.square / 4; side /= 2) {
    Op op;
    op.kind = OpKind::kGemm;
    op.phase = Phase::kForward;
    op.work = GemmWork{side, side, side, dtype, false};
    if (!fits(std::get<GemmWork>(op.work))) continue;
    const Timing timing = product(op, extent_.limits);
    best = std::max(best, flops_of(op.work).count / timing.median.seconds());
  }
  if (best == 0) {
    throw Error("working memory of the profile",
                fmt::format("no square product of {} fits into it", to_string(dtype)),
                "end what else uses the GPU");
  }
  return best;
}

CudaCompute::AttentionCase CudaCompute::attention_case(int64_t head_size, int64_t length) {
  AttentionCase attention;
  cuda::AttentionShape shape;
  shape.length = length;
  shape.sequences = extent_.attention_tokens / length;
  shape.head_size = head_size;
  shape.heads = shape.kv_heads = extent_.attention_width / head_size;
  const auto halves = [&](int64_t columns) {
    return bytes_of(shape.tokens() * columns, DType::kBf16);
  };
  const auto input = [&](int64_t columns) {
    return cuda::Array{workspace_.take_input(halves(columns)), kernels::Format::kBf16};
  };
  const auto output = [&](int64_t columns) {
    return cuda::Array{workspace_.take_output(halves(columns)), kernels::Format::kBf16};
  };
  const int64_t width = shape.heads * head_size;
  workspace_.reset();
  attention.forward.shape = attention.backward.shape = shape;
  attention.forward.qkv = input(shape.width());
  attention.forward.out = output(width);
  attention.forward.log_sum_exp = reinterpret_cast<float*>(
      workspace_.take_output(bytes_of(shape.tokens() * shape.heads, DType::kF32)));
  attention.backward.qkv = attention.forward.qkv;
  attention.backward.out = attention.forward.out;
  attention.backward.log_sum_exp = attention.forward.log_sum_exp;
  attention.backward.dout = input(width);
  attention.backward.dqkv = output(shape.width());
  const Bytes scratch =
      std::max(kernels_.scratch_of(attention.forward), kernels_.scratch_of(attention.backward));
  attention.forward.scratch = attention.backward.scratch = workspace_.take_output(scratch);
  // Two products of the causal half of [S, S] with D, in every head.
  attention.flops = 2.0 * static_cast<double>(shape.sequences * shape.heads * head_size) *
                    static_cast<double>(length) * static_cast<double>(length);
  return attention;
}

std::vector<CudaCompute::AttentionPoint> CudaCompute::attention(int64_t head_size,
                                                                double deadline) {
  constexpr double kBackwardShare = 2.5;  // five products to two
  std::vector<AttentionPoint> points;
  for (const int64_t length : extent_.lengths) {
    if (!points.empty() && watch_.now() > deadline) break;
    const AttentionCase attention = attention_case(head_size, length);
    const Timing forward = watch_.time(
        [&](int) { kernels_.attention(attention.forward, watch_.stream()); }, extent_.limits);
    const Timing backward = watch_.time(
        [&](int) { kernels_.attention(attention.backward, watch_.stream()); }, extent_.limits);
    points.push_back({length, attention.flops / forward.median.seconds(),
                      kBackwardShare * attention.flops / backward.median.seconds()});
  }
  return points;
}

}  // namespace ballast
