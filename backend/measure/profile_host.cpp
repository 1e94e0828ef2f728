#include "backend/measure/profile_host.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <memory>

#include "backend/host/gemm.h"
#include "backend/measure/profile_cpu.h"
#include "backend/measure/profile_operations.h"
#include "backend/measure/profile_probes.h"

namespace ballast {

namespace {

constexpr int64_t kMillion = kMi;           // of parameters
constexpr int64_t kBytesPerParameter = 16;  // master, both moments, gradient

// What an effort costs.
struct Extent {
  int64_t largest_copy = 0;
  int64_t largest_bucket = 0;  // parameters
  int64_t largest_width = 0;
  ProbeLimits limits;
  double together_seconds = 0;
  double case_seconds = 0;
};

Extent extent_of(ProfileEffort effort, Bytes available) {
  Extent extent;
  if (effort == ProfileEffort::kQuick) {
    extent = {256 * kKi, 256 * kKi, 64, {3, 20, 0.01, 0.05}, 0.02, 0.01};
  } else {
    extent = {256 * kMi, 64 * kMillion, 1024, {5, 200, 0.1, 0.01}, 0.5, 0.4};
  }
  // Two copies' worth, and a bucket's state, must leave most of the memory to others.
  while (extent.largest_copy > 256 * kKi && 8 * extent.largest_copy > available.count) {
    extent.largest_copy /= 4;
  }
  while (extent.largest_bucket > 64 * kKi &&
         4 * kBytesPerParameter * extent.largest_bucket > available.count) {
    extent.largest_bucket /= 4;
  }
  return extent;
}

class Profiler {
 public:
  explicit Profiler(const HostProfileOptions& options)
      : options_(options),
        facts_(host_facts()),
        extent_(extent_of(options.effort, facts_.available)),
        source_(measurement_source(options)),
        threads_(optimizer_threads(options, facts_)),
        cpu_({threads_, facts_.cores, extent_.largest_bucket, extent_.limits,
              [this] { return source_; }},
             result_.machine.cpu) {}

  Profile run();

 private:
  std::vector<Probe> probes();
  void describe_host();
  void summarise_operations();
  void fit_memory_bandwidth();

  std::string copies(CopyDirection direction);
  std::string copies_both_ways();
  std::string handover();
  std::string launch();
  std::string adam_and_copy();
  std::string adam_and_gemm();
  std::string copy_and_gemm();
  std::string operations(const OperationCase& operation);

  // Copies as short as the clock's own time are repeated more often.
  ProbeLimits limits_for(int64_t bytes) const {
    ProbeLimits limits = extent_.limits;
    limits.least_repeats = static_cast<int>(
        std::clamp<int64_t>(4 * kMi / bytes, limits.least_repeats, limits.most_repeats));
    return limits;
  }
  std::string beside(const char* first, const Body& one, double first_bytes, const char* second,
                     const Body& other, double second_bytes);
  Body gemm_body();
  double gemm_bytes() const;
  CopyProbe& copy_probe(CopyDirection direction);
  template <class Quantity>
  Sourced<Quantity> measured(Quantity value) const {
    return {value, true, source_};
  }

  const HostProfileOptions& options_;
  const HostFacts facts_;
  const Extent extent_;
  const std::string source_;
  const int threads_;
  Profile result_;
  CpuProfiler cpu_;
  std::vector<Beside> pairs_;
  // Working memory, made when first used and given back when no later probe needs it.
  std::unique_ptr<Arena> gpu_arena_, cpu_arena_;
  std::unique_ptr<CopyProbe> in_, out_;
  std::vector<float> gemm_a_, gemm_b_, gemm_c_;
};

Profile Profiler::run() {
  describe_host();
  result_.probes = run_probes(probes(), options_.on_probe);
  summarise_operations();
  fit_memory_bandwidth();
  check(result_.machine);
  return std::move(result_);
}

std::vector<Probe> Profiler::probes() {
  std::vector<Probe> all;
  const auto add = [&](std::string name, std::function<std::string()> run) {
    all.push_back({std::move(name), std::move(run)});
  };
  add("hand-over between lanes", [this] { return handover(); });
  add("least operation", [this] { return launch(); });
  add("copy host to device", [this] { return copies(CopyDirection::kHostToDevice); });
  add("copy device to host", [this] { return copies(CopyDirection::kDeviceToHost); });
  add("copy both ways at once", [this] { return copies_both_ways(); });
  for (Probe& probe : cpu_.probes()) all.push_back(std::move(probe));
  add("memory of the CPU", [this] { return cpu_.memory().text(); });
  add("Adam beside a copy", [this] { return adam_and_copy(); });
  add("Adam beside a GEMM", [this] { return adam_and_gemm(); });
  add("copy beside a GEMM", [this] {
    std::string text = copy_and_gemm();
    cpu_.release();
    in_.reset(), out_.reset();
    gpu_arena_.reset(), cpu_arena_.reset();
    return text;
  });
  for (OperationCase& operation : operation_grid(extent_.largest_width)) {
    std::string name = operation.name;
    add(std::move(name),
        [this, operation = std::move(operation)] { return operations(operation); });
  }
  return all;
}

void Profiler::describe_host() {
  Machine& machine = result_.machine;
  machine.name = "here";
  machine.description = fmt::format(
      "this machine: {}, {} usable cores, {:.1f} GB; {} plays the GPU", facts_.processor,
      facts_.cores, facts_.memory.gb(),
      options_.compute_threads > 1 ? fmt::format("a team of {} threads", options_.compute_threads)
                                   : "one core's thread");
  const double share = options_.gpu_memory_share;
  if (!(share > 0 && share < 1)) {
    throw Error("--gpu-memory-share", fmt::format("{} is not between 0 and 1", share),
                "give the share of the memory that plays the GPU's, for example 0.5");
  }
  if (facts_.memory.count <= 0 || facts_.available.count <= 0) {
    throw Error("/proc/meminfo", "the system does not say how much memory is available",
                "run on Linux with /proc mounted");
  }
  const auto part = [&](Bytes bytes, double of_it) {
    return measured(Bytes{static_cast<int64_t>(static_cast<double>(bytes.count) * of_it)});
  };
  const Bytes taken = facts_.memory - facts_.available;
  machine.gpu.name = facts_.processor;
  machine.gpu.is_host_thread = true;
  machine.gpu.compute_threads = options_.compute_threads;
  machine.gpu.multiprocessors = 1;
  machine.gpu.memory = part(facts_.memory, share);
  machine.gpu.reserved = part(taken, share);
  machine.cpu.name = facts_.processor;
  machine.cpu.cores = facts_.cores;
  machine.cpu.optimizer_threads = threads_;
  machine.cpu.memory = part(facts_.memory, 1 - share);
  machine.cpu.reserved = part(taken, 1 - share);
  machine.link.kind = "memory";
  machine.link.pageable_share = measured(1.0);  // the one memory is all pageable
  machine.link.latency = measured(Duration{});  // part of the smallest copy's rate
}

// --- One probe each ----------------------------------------------------------------------------

std::string Profiler::handover() {
  const Timing timing =
      time_handover({20, 200, extent_.limits.seconds * 4, extent_.limits.small_deviation});
  result_.machine.handover = measured(timing.median);
  return fmt::format("{:.1f} us {}", timing.median.us(), percent(timing));
}

std::string Profiler::launch() {
  const Timing timing = time_least_operation(extent_.limits);
  result_.machine.gpu.launch = measured(timing.median);
  return fmt::format("{:.3f} us {}", timing.median.us(), percent(timing));
}

CopyProbe& Profiler::copy_probe(CopyDirection direction) {
  if (!gpu_arena_) {
    gpu_arena_ = std::make_unique<Arena>("profile hbm", Bytes{extent_.largest_copy});
    cpu_arena_ = std::make_unique<Arena>("profile dram", Bytes{extent_.largest_copy});
    in_ = std::make_unique<CopyProbe>(*cpu_arena_, *gpu_arena_);
    out_ = std::make_unique<CopyProbe>(*gpu_arena_, *cpu_arena_);
    in_->fill();
  }
  return direction == CopyDirection::kHostToDevice ? *in_ : *out_;
}

std::string Profiler::copies(CopyDirection direction) {
  CopyProbe& probe = copy_probe(direction);
  probe.fill();
  Curve curve{{}, source_, true};
  std::string worst;
  for (const int64_t bytes : sizes_from(4 * kKi, extent_.largest_copy)) {
    int last = -1;
    const Timing timing = time_alone(
        [&](int repeat) {
          probe.copy(bytes, repeat);
          last = repeat;
        },
        limits_for(bytes));
    if (!probe.verify(bytes, last)) {
      throw Error("copy", fmt::format("{} bytes did not arrive", bytes), "check the memory");
    }
    curve.points.push_back(
        {static_cast<double>(bytes), rate_of(static_cast<double>(bytes), timing)});
    worst = percent(timing);
  }
  const std::string text =
      fmt::format("{:.1f} GB/s at 4 KiB, {:.1f} GB/s at {} KiB {}", curve.points.front().rate / 1e9,
                  curve.points.back().rate / 1e9, extent_.largest_copy / kKi, worst);
  Link& link = result_.machine.link;
  if (direction == CopyDirection::kHostToDevice) {
    // One thread's stream: every byte of a copy is read and written.
    result_.machine.gpu.memory_bandwidth = measured(Bandwidth{2 * curve.points.back().rate});
    link.host_to_device = std::move(curve);
  } else {
    link.device_to_host = std::move(curve);
  }
  return text;
}

std::string Profiler::copies_both_ways() {
  CopyProbe& in = copy_probe(CopyDirection::kHostToDevice);
  CopyProbe& out = copy_probe(CopyDirection::kDeviceToHost);
  const int64_t bytes = std::min(extent_.largest_copy / 2, 16 * kMi);
  // Even places go in and odd ones come out: no copy writes what the other reads.
  const Body copy_in = [&](int repeat) { in.copy(bytes, 2 * (repeat + 1)); };
  const Body copy_out = [&](int repeat) { out.copy(bytes, 2 * (repeat + 1) + 1); };
  const Timing in_alone = time_alone(copy_in, extent_.limits);
  const Timing out_alone = time_alone(copy_out, extent_.limits);
  const auto together = time_together(copy_in, copy_out, extent_.together_seconds);
  const auto size = static_cast<double>(bytes);
  const double total = rate_of(size, together[0]) + rate_of(size, together[1]);
  result_.machine.link.both_total = measured(Bandwidth{total});
  pairs_.push_back({{2 * rate_of(size, in_alone), 2 * rate_of(size, out_alone)},
                    {in_alone.median.seconds() / together[0].median.seconds(),
                     out_alone.median.seconds() / together[1].median.seconds()}});
  return fmt::format("{:.1f} GB/s in all; each at {:.0f} % and {:.0f} % of its speed alone",
                     total / 1e9, 100 * pairs_.back().rate[0], 100 * pairs_.back().rate[1]);
}

// --- Beside each other -------------------------------------------------------------------------

std::string Profiler::beside(const char* first, const Body& one, double first_bytes,
                             const char* second, const Body& other, double second_bytes) {
  if (facts_.cores < 2) {
    throw Error("two at once", "only one core may be used", "grant the process two cores");
  }
  const Timing one_alone = time_alone(one, extent_.limits);
  const Timing other_alone = time_alone(other, extent_.limits);
  const auto together = time_together(one, other, extent_.together_seconds);
  pairs_.push_back({{rate_of(first_bytes, one_alone), rate_of(second_bytes, other_alone)},
                    {one_alone.median.seconds() / together[0].median.seconds(),
                     other_alone.median.seconds() / together[1].median.seconds()}});
  return fmt::format("{} at {:.0f} %, {} at {:.0f} % of the speed alone", first,
                     100 * pairs_.back().rate[0], second, 100 * pairs_.back().rate[1]);
}

std::string Profiler::adam_and_copy() {
  const int64_t parameters = std::min(extent_.largest_bucket, 4 * kMillion);
  const int64_t bytes = std::min(extent_.largest_copy, 16 * kMi);
  CopyProbe& probe = copy_probe(CopyDirection::kHostToDevice);
  kernels::Workers one(1, kernels::Pinning::kNone);
  return beside(
      "Adam", [&](int) { cpu_.optimizer().adam(one, kernels::best(), parameters); },
      static_cast<double>(kAdamBytes * parameters), "copy",
      [&](int repeat) { probe.copy(bytes, repeat); }, static_cast<double>(2 * bytes));
}

// A product of a feed-forward layer, large enough for the full rate.
constexpr int64_t kGemmM = 512;
constexpr int64_t kGemmN = 1024;
constexpr int64_t kGemmK = 256;

Body Profiler::gemm_body() {
  gemm_a_.assign(static_cast<size_t>(kGemmM * kGemmK), 0.5f);
  gemm_b_.assign(static_cast<size_t>(kGemmK * kGemmN), 0.25f);
  gemm_c_.assign(static_cast<size_t>(kGemmM * kGemmN), 0.0f);
  return [this](int) {
    GemmArguments<float> product;
    product.m = kGemmM;
    product.n = product.ldb = product.ldc = kGemmN;
    product.k = product.lda = kGemmK;
    product.a = gemm_a_.data();
    product.b = gemm_b_.data();
    product.c = gemm_c_.data();
    gemm(product);
  };
}

double Profiler::gemm_bytes() const {
  return static_cast<double>(4 * (gemm_a_.size() + gemm_b_.size() + gemm_c_.size()));
}

std::string Profiler::adam_and_gemm() {
  const int64_t parameters = std::min(extent_.largest_bucket, 4 * kMillion);
  const Body product = gemm_body();
  kernels::Workers one(1, kernels::Pinning::kNone);
  std::string text = beside(
      "GEMM", product, gemm_bytes(), "Adam",
      [&](int) { cpu_.optimizer().adam(one, kernels::best(), parameters); },
      static_cast<double>(kAdamBytes * parameters));
  if (gemm_c_.back() != 0.5f * 0.25f * static_cast<float>(kGemmK)) {
    throw Error("GEMM", "its result is wrong", "report this processor");
  }
  return text;
}

std::string Profiler::copy_and_gemm() {
  const int64_t bytes = std::min(extent_.largest_copy, 16 * kMi);
  const Body product = gemm_body();
  CopyProbe& probe = copy_probe(CopyDirection::kDeviceToHost);
  return beside(
      "GEMM", product, gemm_bytes(), "copy", [&](int repeat) { probe.copy(bytes, repeat); },
      static_cast<double>(2 * bytes));
}

void Profiler::fit_memory_bandwidth() {
  double least = result_.machine.gpu.memory_bandwidth.value.bytes_per_s;
  for (const Beside& pair : pairs_) least = std::max({least, pair.demand[0], pair.demand[1]});
  result_.machine.cpu.memory_bandwidth = measured(Bandwidth{shared_capacity(pairs_, least)});
}

// --- Operations of training --------------------------------------------------------------------

std::string Profiler::operations(const OperationCase& operation) {
  TrainerOptions options;
  options.optimizer_threads = threads_;
  options.compute_threads = options_.compute_threads;
  const std::vector<OperationTime> fresh = time_case(operation, extent_.case_seconds, options);
  double flops = 0;
  double seconds = 0;
  for (const OperationTime& time : fresh) {
    if (time.op.kind != OpKind::kGemm) continue;
    flops += flops_of(time.op.work).count;
    seconds += time.median.seconds();
  }
  result_.operations.insert(result_.operations.end(), fresh.begin(), fresh.end());
  return fmt::format("{} operations, GEMM at {:.1f} GFLOP/s", fresh.size(), flops / seconds / 1e9);
}

// The machine's rates are the best that any operation reached.
void Profiler::summarise_operations() {
  std::erase_if(result_.operations, [](const OperationTime& time) { return time.median.ps <= 0; });
  keep_newest(result_.operations);
  Gpu& gpu = result_.machine.gpu;
  double vector = 0;
  double attention = 0;
  for (const OperationTime& time : result_.operations) {
    const double rate = flops_of(time.op.work).count / time.median.seconds();
    if (const auto* work = std::get_if<GemmWork>(&time.op.work)) {
      Sourced<FlopRate>& best = gpu.matmul[work->dtype];
      if (rate > best.value.flops_per_s) best = measured(FlopRate{rate});
    }
    if (time.op.kind == OpKind::kAttention) attention = std::max(attention, rate);
    if (std::holds_alternative<RowWork>(time.op.work)) vector = std::max(vector, rate);
  }
  double matmul = 0;
  for (const auto& [dtype, rate] : gpu.matmul) matmul = std::max(matmul, rate.value.flops_per_s);
  gpu.vector = measured(FlopRate{vector});
  gpu.attention_efficiency = measured(matmul > 0 ? std::min(1.0, attention / matmul) : 0.0);
}

}  // namespace

Profile profile_host(const HostProfileOptions& options) {
  check_compute_threads(options.compute_threads, host_facts());
  return Profiler(options).run();
}

}  // namespace ballast
