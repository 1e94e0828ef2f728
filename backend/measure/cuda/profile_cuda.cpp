#include "backend/measure/cuda/profile_cuda.h"

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <map>
#include <utility>

#include "backend/cuda/gpu_node.h"
#include "backend/measure/cuda/profile_cuda_compute.h"
#include "backend/measure/cuda/profile_cuda_copies.h"
#include "backend/measure/cuda/profile_cuda_extent.h"
#include "backend/measure/profile_cpu.h"
#include "backend/measure/profile_operations.h"
#include "backend/train/make_device.h"
#include "sim/base/error.h"

namespace ballast {

namespace {

constexpr int64_t kUsualGpuBucket = int64_t{16} << 20;  // parameters

// No probe begins another of its sizes later than so many seconds after the profile began.
constexpr double kWholeSeconds = 165;

std::string version_text(int version) {  // 13020 is 13.2
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

Curve curve_of(const std::vector<OperationTime>& copies, std::string source) {
  Curve curve{{}, std::move(source), true};
  for (const OperationTime& copy : copies) {
    const auto bytes = static_cast<double>(bytes_of(copy.op.work).count);
    curve.points.push_back({bytes, bytes / copy.median.seconds()});
  }
  return curve;
}

// Which probe measures what; the names stand in the report and in messages.
constexpr const char* kLibraries = "memory of context and libraries";
constexpr const char* kLaunch = "least operation";
constexpr const char* kHandover = "hand-over between streams";
constexpr const char* kMemory = "memory of the GPU";
constexpr const char* kArithmetic = "fp32 arithmetic";
constexpr const char* kCopyIn = "copy host to device";
constexpr const char* kCopyOut = "copy device to host";
constexpr const char* kKernelReads = "kernel reads CPU memory";
constexpr const char* kKernelWrites = "kernel writes CPU memory";
constexpr const char* kPageable = "copies of pageable memory";
constexpr const char* kBothWays = "copy both ways at once";
constexpr const char* kSquares = "square products";
constexpr const char* kSquaresFp8 = "square products in fp8";
constexpr const char* kProducts = "products of the models";
constexpr const char* kAttention = "attention by length";
constexpr const char* kCpuMemory = "memory of the CPU";
constexpr const char* kBeside = "Adam beside copies";

class CudaProfiler {
 public:
  CudaProfiler(const CudaProfileOptions& options, CudaProfileParts parts);
  Profile run();

 private:
  std::vector<Probe> probes();
  void describe();
  // Numbers that no probe measured: from a shipped machine with this GPU, or Error.
  void complete();
  std::string why_not(const char* probe) const;

  std::string libraries();
  std::string launch();
  std::string handover();
  std::string memory();
  std::string arithmetic();
  std::string copies(CopyDirection direction);
  std::string by_kernel(CopyDirection direction);
  std::string pageable();
  std::string both_ways();
  std::string squares();
  std::string squares_fp8();
  std::string products();
  std::string attention();
  std::string cpu_memory();
  std::string adam_beside_copies();
  std::string operations(const OperationCase& operation);
  void release();

  // Of the probe that runs: seconds that it may take, as long as the whole profile has them.
  void begin_probe(double seconds);
  bool time_is_up() const { return watch_.now() > deadline_; }
  // A number that this probe measured, with the conditions.
  template <class Quantity>
  Sourced<Quantity> measured(Quantity value) {
    return {value, true, source()};
  }
  std::string source();
  CudaProbeKernels& kernels() {
    if (!kernels_) kernels_ = parts_.make_kernels(*parts_.runtime);
    return *kernels_;
  }
  CudaWorkspace& workspace();
  CudaCompute& compute();
  CudaCopies& link();

  const CudaProfileOptions& options_;
  CudaProfileParts parts_;
  const HostFacts facts_;
  const CudaProperties gpu_;
  const CudaProfileExtent extent_;
  const std::string date_;
  const int threads_;
  const double began_;
  const Bytes free_at_first_;
  Profile result_;
  GpuWatch conditions_;
  CudaStopwatch watch_;
  CpuProfiler cpu_;
  double deadline_ = 0;
  Bandwidth cpu_copy_;  // what the CPU's threads read and write by copies
  std::vector<Beside> pairs_;
  std::unique_ptr<CudaProbeKernels> kernels_;
  std::unique_ptr<CudaWorkspace> workspace_;
  std::unique_ptr<CudaCompute> compute_;
  std::unique_ptr<CudaCopies> copies_;
};

CudaProfiler::CudaProfiler(const CudaProfileOptions& options, CudaProfileParts parts)
    : options_(options),
      parts_(std::move(parts)),
      facts_(host_facts()),
      gpu_(parts_.runtime->properties()),
      extent_(
          cuda_profile_extent(options.effort, {parts_.runtime->free_memory(), facts_.available})),
      date_(measurement_source(options) + (parts_.bound.empty() ? "" : "; " + parts_.bound)),
      threads_(optimizer_threads(options, facts_)),
      began_(parts_.now()),
      free_at_first_(parts_.runtime->free_memory()),
      conditions_(*parts_.monitor),
      watch_(*parts_.runtime, parts_.now, extent_.held),
      cpu_({threads_, facts_.cores, extent_.largest_bucket, extent_.cpu_limits,
            [this] { return source(); }},
           result_.machine.cpu) {
  parts_.trainer.optimizer_threads = threads_;
}

std::string CudaProfiler::source() {
  const std::string conditions = conditions_.conditions();
  return conditions.empty() ? date_ : date_ + "; GPU " + conditions;
}

void CudaProfiler::begin_probe(double seconds) {
  deadline_ = std::min(parts_.now() + seconds, began_ + kWholeSeconds);
  conditions_.restart();
}

CudaWorkspace& CudaProfiler::workspace() {
  if (!workspace_) {
    workspace_ =
        std::make_unique<CudaWorkspace>(*parts_.runtime, watch_.stream(), extent_.workspace);
  }
  return *workspace_;
}

CudaCompute& CudaProfiler::compute() {
  if (!compute_) {
    compute_ = std::make_unique<CudaCompute>(*parts_.runtime, kernels(), watch_, workspace(),
                                             extent_.compute);
  }
  return *compute_;
}

CudaCopies& CudaProfiler::link() {
  if (!copies_) {
    copies_ = std::make_unique<CudaCopies>(*parts_.runtime, watch_, extent_.copies);
  }
  return *copies_;
}

Profile CudaProfiler::run() {
  describe();
  result_.probes = run_probes(probes(), options_.on_probe);
  release();
  keep_newest(result_.operations);
  std::erase_if(result_.operations, [](const OperationTime& time) { return time.median.ps <= 0; });
  complete();
  check(result_.machine);
  return std::move(result_);
}

std::vector<Probe> CudaProfiler::probes() {
  std::vector<Probe> all;
  const auto add = [&](std::string name, double seconds, std::function<std::string()> run) {
    all.push_back({std::move(name), [this, seconds, run = std::move(run)] {
                     begin_probe(seconds);
                     std::string text = run();
                     const std::string conditions = conditions_.conditions();
                     return conditions.empty() ? text : text + "; " + conditions;
                   }});
  };
  using enum CopyDirection;
  add(kLibraries, 5, [this] { return libraries(); });
  add(kLaunch, 2, [this] { return launch(); });
  add(kHandover, 2, [this] { return handover(); });
  add(kMemory, 3, [this] { return memory(); });
  add(kArithmetic, 2, [this] { return arithmetic(); });
  add(kCopyIn, 5, [this] { return copies(kHostToDevice); });
  add(kCopyOut, 5, [this] { return copies(kDeviceToHost); });
  if (gpu_.addresses_pinned_memory) {
    add(kKernelReads, 3, [this] { return by_kernel(kHostToDevice); });
    add(kKernelWrites, 3, [this] { return by_kernel(kDeviceToHost); });
  }
  add(kPageable, 8, [this] { return pageable(); });
  add(kBothWays, 2, [this] { return both_ways(); });
  add(kSquares, 5, [this] { return squares(); });
  add(kSquaresFp8, 3, [this] { return squares_fp8(); });
  add(kProducts, 25, [this] { return products(); });
  add(kAttention, 15, [this] { return attention(); });
  for (Probe& probe : cpu_.probes()) add(probe.name, 10, std::move(probe.run));
  add(kCpuMemory, 3, [this] { return cpu_memory(); });
  add(kBeside, 5, [this] {
    std::string text = adam_beside_copies();
    release();  // the models' layers want the memory
    return text;
  });
  std::vector<OperationCase> cases = operation_grid(extent_.largest_width);
  std::erase_if(
      cases, [](const OperationCase& operation) { return operation.plan.dtype != DType::kBf16; });
  for (OperationCase& operation : layer_grid(options_.models, extent_.largest_layer)) {
    cases.push_back(std::move(operation));
  }
  for (OperationCase& operation : cases) {
    std::string name = operation.name;
    add(std::move(name), 20,
        [this, operation = std::move(operation)] { return operations(operation); });
  }
  return all;
}

void CudaProfiler::release() {
  cpu_.release();
  copies_.reset();
  compute_.reset();
  workspace_.reset();
}

void CudaProfiler::describe() {
  Machine& machine = result_.machine;
  machine.name = "here";
  const std::string driver = parts_.monitor->driver();
  machine.description = fmt::format(
      "this machine: {}, {} multiprocessors, {:.0f} MB of L2, {:.1f} GB; {}, {} usable cores, "
      "{:.1f} GB; driver {}, CUDA {}",
      gpu_.name, gpu_.multiprocessors, static_cast<double>(gpu_.l2.count) / 1e6, gpu_.memory.gb(),
      facts_.processor, facts_.cores, facts_.memory.gb(),
      driver.empty() ? "for CUDA " + version_text(gpu_.driver_version) : driver,
      version_text(gpu_.runtime_version));
  machine.gpu.name = gpu_.name;
  machine.gpu.multiprocessors = gpu_.multiprocessors;
  machine.gpu.memory = measured(gpu_.memory);
  machine.cpu.name = facts_.processor;
  machine.cpu.cores = facts_.cores;
  machine.cpu.optimizer_threads = threads_;
  machine.cpu.memory = measured(facts_.memory);
  machine.cpu.reserved = measured(facts_.memory - facts_.available);
  machine.link.kind = gpu_.shares_page_tables ? "c2c" : "pcie";
  machine.link.latency = measured(Duration{});  // part of the smallest copy's rate
}

// --- One probe each ----------------------------------------------------------------------------

// The context is there from the first call on; cuBLASLt and the kernels come with their first use.
std::string CudaProfiler::libraries() {
  CudaWorkspace& memory = workspace();
  memory.fill(DType::kBf16);
  kernels().empty(watch_.stream());
  Op op;
  op.kind = OpKind::kGemm;
  op.work = GemmWork{128, 128, 128, DType::kBf16, false};
  compute().product(op, extent_.product_limits);
  const Bytes context = gpu_.memory - free_at_first_;
  const Bytes taken =
      gpu_.memory - parts_.runtime->free_memory() - extent_.workspace - watch_.held();
  result_.machine.gpu.reserved = measured(taken);
  return fmt::format("{:.0f} MB, of which {:.0f} MB before the first kernel",
                     static_cast<double>(taken.count) / 1e6,
                     static_cast<double>(context.count) / 1e6);
}

std::string CudaProfiler::launch() {
  const CudaCompute::LaunchTimes times = compute().launch();
  result_.machine.gpu.launch = measured(times.least);
  return fmt::format("{:.2f} us on the GPU; the host launches one in {:.2f} us", times.least.us(),
                     times.host.us());
}

std::string CudaProfiler::handover() {
  const Duration time = compute().handover();
  result_.machine.handover = measured(time);
  return fmt::format("{:.2f} us", time.us());
}

std::string CudaProfiler::memory() {
  const CudaCompute::MemoryRates rates = compute().memory();
  result_.machine.gpu.memory_bandwidth = measured(Bandwidth{std::max(rates.copy, rates.triad)});
  return fmt::format("copy {:.0f} GB/s, triad {:.0f} GB/s over arrays of {:.0f} MB",
                     rates.copy / 1e9, rates.triad / 1e9,
                     static_cast<double>(rates.each.count) / 1e6);
}

std::string CudaProfiler::arithmetic() {
  const double rate = compute().arithmetic();
  result_.machine.gpu.vector = measured(FlopRate{rate});
  return fmt::format("{:.1f} TFLOP/s", rate / 1e12);
}

std::string CudaProfiler::copies(CopyDirection direction) {
  std::vector<OperationTime> times = link().by_size(direction, HostMemory::kPinned, deadline_);
  Curve curve = curve_of(times, source());
  const std::string text = fmt::format(
      "{:.2f} GB/s at 4 KiB, {:.1f} GB/s at {:.0f} KiB", curve.points.front().rate / 1e9,
      curve.points.back().rate / 1e9, curve.points.back().size / 1024);
  Link& link = result_.machine.link;
  (direction == CopyDirection::kHostToDevice ? link.host_to_device : link.device_to_host) =
      std::move(curve);
  std::move(times.begin(), times.end(), std::back_inserter(result_.operations));
  return text;
}

std::string CudaProfiler::by_kernel(CopyDirection direction) {
  Link& machine = result_.machine.link;
  Curve& curve =
      direction == CopyDirection::kHostToDevice ? machine.kernel_reads : machine.kernel_writes;
  const Duration start = result_.machine.gpu.launch.value;
  curve = {link().by_kernel(direction, start, kernels(), deadline_), source(), true};
  const Curve::Point last = curve.points.back();
  return fmt::format("{:.1f} GB/s at {:.0f} KiB", last.rate / 1e9, last.size / 1024);
}

// One share for both directions: the mean of what each keeps of its pinned rate at the same size.
std::string CudaProfiler::pageable() {
  const Link& link = result_.machine.link;
  std::string text;
  double shares = 0;
  for (const auto direction : {CopyDirection::kHostToDevice, CopyDirection::kDeviceToHost}) {
    const bool in = direction == CopyDirection::kHostToDevice;
    const Curve& pinned = in ? link.host_to_device : link.device_to_host;
    if (pinned.empty()) {
      throw Error("copies of pinned memory", "did not run", "see why above");
    }
    std::vector<OperationTime> times =
        this->link().by_size(direction, HostMemory::kPageable, deadline_);
    const Curve::Point last = curve_of(times, "").points.back();
    shares += last.rate / pinned.rate_at(last.size) / 2;
    text += fmt::format("{}{} {:.1f} GB/s", text.empty() ? "" : ", ",
                        in ? "host to device" : "device to host", last.rate / 1e9);
    std::move(times.begin(), times.end(), std::back_inserter(result_.operations));
  }
  result_.machine.link.pageable_share = measured(std::min(shares, 1.0));
  return text + fmt::format(": {:.0f} % of pinned", 100 * shares);
}

std::string CudaProfiler::both_ways() {
  const CudaCopies::BothWays both = link().both_ways();
  result_.machine.link.both_total = measured(Bandwidth{both.in + both.out});
  return fmt::format("{:.1f} GB/s in all: {:.1f} in and {:.1f} out", (both.in + both.out) / 1e9,
                     both.in / 1e9, both.out / 1e9);
}

std::string CudaProfiler::squares() {
  std::string text;
  for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
    const double rate = compute().best_product(dtype);
    result_.machine.gpu.matmul[dtype] = measured(FlopRate{rate});
    text +=
        fmt::format("{}{} {:.1f} TFLOP/s", text.empty() ? "" : ", ", to_string(dtype), rate / 1e12);
  }
  return text;
}

std::string CudaProfiler::squares_fp8() {
  if (!gpu_.has_fp8()) {
    throw Error("products in fp8",
                fmt::format("need a GPU of compute capability 8.9 or newer, and {} has {}.{}",
                            gpu_.name, gpu_.major, gpu_.minor),
                "train with plan.products=as-stored");
  }
  const double rate = compute().best_product(DType::kE4m3);
  result_.machine.gpu.matmul[DType::kE4m3] = measured(FlopRate{rate});
  return fmt::format("{:.1f} TFLOP/s, without rounding their factors", rate / 1e12);
}

// Every eighth shape, then those next to them, and so on: what the time does not suffice for is
// spread over all sizes.
std::string CudaProfiler::products() {
  constexpr size_t kStride = 8;
  std::vector<Op> shapes = product_grid(options_.models, extent_.product_tokens);
  std::erase_if(shapes, [&](const Op& op) { return !compute().fits(std::get<GemmWork>(op.work)); });
  if (shapes.empty()) throw Error("models", "none has a product that fits", "name other models");
  workspace().fill(DType::kBf16);
  double slowest = 0;
  double fastest = 0;
  size_t timed = 0;
  for (size_t first = 0; first < kStride; ++first) {
    for (size_t i = first; i < shapes.size() && !(timed > 0 && time_is_up()); i += kStride) {
      const Timing timing = compute().product(shapes[i], extent_.product_limits);
      const double rate = flops_of(shapes[i].work).count / timing.median.seconds();
      slowest = timed == 0 ? rate : std::min(slowest, rate);
      fastest = std::max(fastest, rate);
      result_.operations.push_back({shapes[i], timing.median, timing.deviation});
      ++timed;
    }
  }
  Sourced<FlopRate>& best = result_.machine.gpu.matmul[DType::kBf16];
  if (fastest > best.value.flops_per_s) best = measured(FlopRate{fastest});
  return fmt::format("{} of {} shapes, {:.1f} to {:.1f} TFLOP/s", timed, shapes.size(),
                     slowest / 1e12, fastest / 1e12);
}

std::string CudaProfiler::attention() {
  workspace().fill(DType::kBf16);
  double best = 0;
  std::string text;
  std::vector<AttentionRates> all;
  const double share = (deadline_ - watch_.now()) / static_cast<double>(extent_.head_sizes.size());
  for (const int64_t head_size : extent_.head_sizes) {
    AttentionRates rates;
    rates.head_size = head_size;
    for (const CudaCompute::AttentionPoint& point :
         compute().attention(head_size, watch_.now() + share)) {
      rates.forward.points.push_back({static_cast<double>(point.length), point.forward});
      rates.backward.points.push_back({static_cast<double>(point.length), point.backward});
      best = std::max({best, point.forward, point.backward});
    }
    rates.forward.measured = rates.backward.measured = true;
    rates.forward.source = rates.backward.source = source();
    const Curve::Point forward = rates.forward.points.back();
    text += fmt::format("{}heads of {}: forward {:.0f}, backward {:.0f} TFLOP/s at {:.0f} tokens",
                        text.empty() ? "" : "; ", head_size, forward.rate / 1e12,
                        rates.backward.points.back().rate / 1e12, forward.size);
    all.push_back(std::move(rates));
  }
  Gpu& gpu = result_.machine.gpu;
  gpu.attention = std::move(all);
  const double matmul = gpu.matmul[DType::kBf16].value.flops_per_s;
  if (matmul > 0) gpu.attention_efficiency = measured(std::min(1.0, best / matmul));
  return text;
}

std::string CudaProfiler::cpu_memory() {
  const CpuProfiler::MemoryRates rates = cpu_.memory();
  cpu_copy_ = rates.all;
  return rates.text();
}

// The CPU's memory is what both share; see shared_capacity().
std::string CudaProfiler::adam_beside_copies() {
  const int64_t parameters = std::min(extent_.largest_bucket, kUsualGpuBucket);
  const Bytes bytes{extent_.copies.largest.count / 4};
  const Body step = [&](int) {
    cpu_.optimizer().adam(cpu_.workers(), kernels::best(), parameters);
  };
  const auto moved = static_cast<double>(kAdamBytes * parameters);
  const auto copied = static_cast<double>(bytes.count);
  const Timing step_alone = time_alone(step, extent_.cpu_limits);
  double least = std::max(cpu_copy_.bytes_per_s, rate_of(moved, step_alone));
  std::string text;
  for (const auto direction : {CopyDirection::kHostToDevice, CopyDirection::kDeviceToHost}) {
    const Body copy = [&](int repeat) { link().copy_and_wait(direction, bytes, repeat); };
    const Timing copy_alone = time_alone(copy, extent_.cpu_limits);
    const auto both = time_together(step, copy, extent_.together_seconds);
    pairs_.push_back({{rate_of(moved, step_alone), rate_of(copied, copy_alone)},
                      {step_alone.median.seconds() / both[0].median.seconds(),
                       copy_alone.median.seconds() / both[1].median.seconds()}});
    least = std::max(least, pairs_.back().demand[1]);
    text += fmt::format("{}{}: Adam at {:.0f} %, copy at {:.0f} % of the speed alone",
                        text.empty() ? "" : "; ",
                        direction == CopyDirection::kHostToDevice ? "in" : "out",
                        100 * pairs_.back().rate[0], 100 * pairs_.back().rate[1]);
  }
  result_.machine.cpu.memory_bandwidth = measured(Bandwidth{shared_capacity(pairs_, least)});
  return text;
}

// --- Operations of training --------------------------------------------------------------------

// By kind, what of its bound each reached: FLOP/s of products and attention, bytes per second of
// what goes over memory.
std::string CudaProfiler::operations(const OperationCase& operation) {
  if (time_is_up()) throw Error("the time of the profile", "is used up", "run it alone");
  const std::vector<OperationTime> fresh =
      time_case(operation, extent_.case_seconds, parts_.trainer);
  struct Sum {
    const char* unit = "";
    double amount = 0;
    double seconds = 0;
  };
  std::map<std::string, Sum> by_kind;
  for (const OperationTime& time : fresh) {
    const bool counts_flops = time.op.kind == OpKind::kGemm || time.op.kind == OpKind::kAttention;
    const bool on_gpu = kind_of(time.op.lane) == LaneKind::kCompute;
    if (!on_gpu || time.median.ps <= 0) continue;
    Sum& sum = by_kind[std::string(to_string(time.op.kind))];
    sum.unit = counts_flops ? "TFLOP/s" : "GB/s";
    sum.amount += counts_flops ? flops_of(time.op.work).count / 1e12
                               : static_cast<double>(bytes_of(time.op.work).count) / 1e9;
    sum.seconds += time.median.seconds();
  }
  std::string text = fmt::format("{} operations", fresh.size());
  for (const auto& [kind, sum] : by_kind) {
    text += fmt::format(", {} {:.0f} {}", kind, sum.amount / sum.seconds, sum.unit);
  }
  result_.operations.insert(result_.operations.end(), fresh.begin(), fresh.end());
  return text;
}

// --- What is missing ---------------------------------------------------------------------------

std::string CudaProfiler::why_not(const char* probe) const {
  for (const ProbeReport& report : result_.probes) {
    if (report.name == probe && !report.ran) return report.result;
  }
  return "it measured nothing";
}

void CudaProfiler::complete() {
  Machine& machine = result_.machine;
  const std::optional<Machine> shipped =
      options_.shipped ? options_.shipped(gpu_.name, gpu_.memory) : std::nullopt;
  const auto require = [&](bool is_there, const char* probe, const char* field) {
    if (is_there) return;
    throw Error(fmt::format("profile, probe '{}'", probe), why_not(probe),
                fmt::format("mend that: nothing else tells {}", field));
  };
  const auto fill = [&](auto& own, const auto& of_shipped, const char* probe, const char* field) {
    if (!own.source.empty()) return;
    require(shipped.has_value() && !of_shipped.source.empty(), probe, field);
    own = of_shipped;
    own.measured = false;
    own.source = fmt::format("not measured here; machine {}: {}", shipped->name, of_shipped.source);
  };
  const Gpu other = shipped ? shipped->gpu : Gpu{};
  Gpu& gpu = machine.gpu;
  fill(gpu.reserved, other.reserved, kLibraries, "gpu.reserved_gb");
  fill(gpu.launch, other.launch, kLaunch, "gpu.launch_us");
  fill(gpu.memory_bandwidth, other.memory_bandwidth, kMemory, "gpu.memory_bandwidth_gb_per_s");
  fill(gpu.vector, other.vector, kArithmetic, "gpu.vector_tflops");
  std::erase_if(gpu.matmul, [](const auto& rate) { return rate.second.source.empty(); });
  const auto fill_rate = [&](DType dtype, const char* probe) {
    if (gpu.matmul.contains(dtype)) return;
    const auto rate = other.matmul.find(dtype);
    fill(gpu.matmul[dtype], rate == other.matmul.end() ? Sourced<FlopRate>{} : rate->second, probe,
         "gpu.matmul_tflops");
  };
  fill_rate(DType::kBf16, kSquares);
  // A machine may be without it: only plans with products in fp8 need it.
  if (gpu_.has_fp8() && other.matmul.contains(DType::kE4m3)) {
    fill_rate(DType::kE4m3, kSquaresFp8);
  }
  fill(gpu.attention_efficiency, other.attention_efficiency, kAttention,
       "gpu.attention_efficiency");
  require(!machine.handover.source.empty(), kHandover, "handover_us");
  require(!machine.link.host_to_device.empty(), kCopyIn, "link.host_to_device");
  require(!machine.link.device_to_host.empty(), kCopyOut, "link.device_to_host");
  require(!machine.link.pageable_share.source.empty(), kPageable, "link.pageable_share");
  require(!machine.link.both_total.source.empty(), kBothWays, "link.both_total_gb_per_s");
  require(!machine.cpu.memory_bandwidth.source.empty(), kBeside, "cpu.memory_bandwidth_gb_per_s");
}

}  // namespace

Profile profile_cuda(const CudaProfileOptions& options, CudaProfileParts parts) {
  return CudaProfiler(options, std::move(parts)).run();
}

Profile profile_cuda(const CudaProfileOptions& options) {
  CudaProfileParts parts;
  parts.runtime = open_cuda_runtime(std::max(cuda_index_of(options.device), 0));
  // As a training does, before cores are counted and memory is touched.
  parts.bound = bind_to_node_of_gpu(parts.runtime->properties().bus, NumaBinding::kLocal);
  parts.make_kernels = [&](CudaRuntime& runtime) {
    return make_probe_kernels(runtime, options.algorithms);
  };
  parts.monitor = open_gpu_monitor(parts.runtime->properties().bus);
  parts.now = [] {
    const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
    return now.count();
  };
  parts.trainer.device = options.device;
  parts.trainer.gemm_algorithms = options.algorithms;
  return profile_cuda(options, std::move(parts));
}

}  // namespace ballast
