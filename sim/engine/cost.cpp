#include "sim/engine/cost.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <unordered_map>

#include "sim/engine/collective.h"
#include "sim/engine/kernels.h"
#include "sim/graph/core/edit.h"
#include "sim/graph/core/stages.h"

namespace ballast {
namespace {

// Ranks that run beside each other, each with all stages of its pipeline.
int64_t ranks_of(const Plan& plan) {
  return plan.data * plan.tensor * plan.sequence * plan.context;
}

// Beyond this factor outside the measured sizes of a group nothing is known about the rate.
constexpr double kReach = 2;

// PyTorch's Adam on the CPU goes over memory tensor by tensor (torch/optim/adamw.py,
// _single_tensor_adamw). Values of 32 bits read or written for each parameter: decay 2, lerp of the
// first moment 3, scaling of the second 2 and its addcmul 3, square root 2, division 2 and epsilon
// 2 of a temporary, addcdiv 4. At the rate of arXiv 2509.21271 Table 3 these are the 348 GB/s that
// STREAM reaches on the same chip; on x86 the rate of a core is derived from a step by this count.
constexpr Bytes kTorchAdamBytes{20 * 4};

// Two operations that must cost the same, so that each cost is computed once a table.
struct Identity {
  OpKind kind{};
  Phase phase{};
  LaneId lane = 0;
  Work work;
  bool operator==(const Identity&) const = default;
};

// The sizes that tell works of one kind apart; equality looks at the rest.
struct Mixer {
  size_t hash = 0;

  // One round of multiply and shift (Fibonacci hashing, Knuth, vol. 3, section 6.4).
  void mix(int64_t value) {
    hash = (hash ^ static_cast<size_t>(value)) * size_t{0x9E3779B97F4A7C15};
    hash ^= hash >> 29;
  }
  void operator()(std::monostate) {}
  void operator()(const GemmWork& w) {
    mix(w.m), mix(w.n), mix(w.k), mix(w.accumulate), mix(static_cast<int64_t>(w.format));
    mix(w.experts), mix(w.wide_output);
  }
  void operator()(const AttentionWork& w) {
    mix(w.sequences), mix(w.length), mix(w.heads), mix(w.tokens_before), mix(w.window);
  }
  void operator()(const RowWork& w) { mix(w.rows), mix(w.columns), mix(w.moved.count); }
  void operator()(const BucketWork& w) {
    mix(w.elements), mix(w.moved.count), mix(w.from_host.count), mix(w.to_host.count);
  }
  void operator()(const CopyWork& w) { mix(w.bytes.count), mix(w.calls); }
  void operator()(const CollectiveWork& w) { mix(w.bytes.count), mix(w.ranks); }
  void operator()(const IoWork& w) { mix(w.bytes.count); }
  void operator()(const BlockWork& w) { mix(w.block); }
};

struct IdentityHash {
  size_t operator()(const Identity& identity) const {
    Mixer mixer;
    mixer.mix(static_cast<int64_t>(identity.kind));
    mixer.mix(static_cast<int64_t>(identity.phase));
    mixer.mix(identity.lane);
    std::visit(mixer, identity.work);
    return mixer.hash;
  }
};

// The number that a group's measurements are ordered by, and that their rates are of.
double size_of_work(Flops flops, Bytes bytes) {
  return flops.count > 0 ? flops.count : static_cast<double>(bytes.count);
}

struct GroupOfWork {
  std::string operator()(std::monostate) const { return ""; }
  std::string operator()(const GemmWork& w) const {
    const bool fp8 = w.format == ProductFormat::kFp8;
    return fmt::format(" {}{}{}{}", to_string(w.dtype), fp8 ? " in fp8" : "",
                       to_string(w.weight_codes), w.sums_bias ? " summing the bias gradient" : "");
  }
  std::string operator()(const AttentionWork& w) const {
    return fmt::format(" head_size={} {}{}{}", w.head_size, to_string(w.dtype),
                       w.kind == AttentionKind::kEager ? " eager" : "",
                       w.window > 0 ? " window" : "");
  }
  std::string operator()(const RowWork& w) const { return fmt::format(" {}", to_string(w.dtype)); }
  std::string operator()(const BucketWork& w) const {
    return fmt::format(" {} to {} on {}{}{}", to_string(w.from), to_string(w.to),
                       w.site == Site::kGpu ? "gpu" : "cpu", w.exact_undo ? " exact undo" : "",
                       across_link(w));
  }
  std::string operator()(const CopyWork& w) const {
    const bool in = w.direction == CopyDirection::kHostToDevice;
    std::string text = in ? " host to device" : " device to host";
    if (w.host == HostMemory::kPageable) text += " pageable";
    return text;
  }
  std::string operator()(const CollectiveWork& w) const {
    return fmt::format(" {} ranks={} stride={}{}", to_string(w.kind), w.ranks, w.stride,
                       w.once.experts > 0 ? " once" : "");
  }
  std::string operator()(const IoWork& w) const {
    return w.direction == IoDirection::kRead ? " read" : " write";
  }
  std::string operator()(const BlockWork&) const { return ""; }
};

// Tokens in the order of their experts, before they go there.
bool sorts_tokens(const Op& op) {
  return op.kind == OpKind::kPermute &&
         (op.phase == Phase::kForward || op.phase == Phase::kRecompute);
}

bool runs_on_cpu(const Op& op) {
  const auto* bucket = std::get_if<BucketWork>(&op.work);
  return bucket != nullptr && bucket->site == Site::kCpu;
}

double fastest(const Curve& curve) {
  double rate = 0;
  for (const Curve::Point& point : curve.points) rate = std::max(rate, point.rate);
  return rate;
}

}  // namespace

std::string cost_group(const Op& op) {
  return fmt::format("{}{}{}", to_string(op.kind), cost_phase(op),
                     std::visit(GroupOfWork{}, op.work));
}

Measurement measurement_of(const Op& op, const Sample& sample) {
  Measurement result;
  result.median = sample.median;
  result.deviation = sample.deviation;
  result.group = cost_group(op);
  result.flops = flops_of(op.work);
  result.bytes = bytes_of(op.work);
  return result;
}

Duration launch_on(const Cpu& cpu, const StackConstants& constants) {
  return constants.launch * host_slowness(cpu);
}

Duration expert_launch_on(const Cpu&, const StackConstants& constants) {
  return constants.expert_launch;
}

CostModel::CostModel(const Machine& machine, const Plan& plan, const Stack& stack,
                     const Measurements* measurements)
    : machine_(machine),
      adam_(plan.optimizer.adam),
      numa_(plan.numa),
      by_kernels_(plan.optimizer.transfers == StateTransfers::kDirect),
      stack_(stack.name),
      has_direct_kernels_(stack.memory_is_planned()),
      ranks_here_(machine.gpu.is_host_thread ? ranks_of(plan) : 1),
      constants_(stack.constants),
      sustained_gemm_(constants_.sustained_gemm_of(machine.gpu.kernels.generation)),
      launch_(plan.cuda_graphs ? Duration{} : launch_on(machine.cpu, stack.constants)),
      expert_launch_(plan.cuda_graphs ? Duration{}
                                      : expert_launch_on(machine.cpu, stack.constants)),
      reads_norms_(plan.optimizer.sync == SyncMode::kWait),
      reads_routing_(stack.facts.reads_routing),
      bias_epilogue_(1 + static_cast<double>(stack.facts.bias_epilogue_percent) / 100),
      attention_kernel_(stack.facts.attention_kernel_of(machine.gpu.kernels.generation)),
      torch_adam_threads_(facts_of(stack.facts, plan).torch_adam_threads) {
  if (adam_ != "best" && !machine.cpu.adam.contains(adam_)) {
    std::string known = "best";
    for (const auto& [name, curve] : machine.cpu.adam) known += ", " + name;
    throw Error("optimizer.adam", "machine " + machine.name + " has no rate of '" + adam_ + "'",
                "use one of: " + known);
  }
  if (numa_ == NumaBinding::kRemote && !machine.link.remote) {
    throw Error("machine " + machine.name + ": link.remote_gb_per_s",
                "is missing, but a plan with numa remote copies to another chip's memory",
                "add it to the machine's file or set numa to local");
  }
  if (moves_state_by_kernels(plan.optimizer)) check_direct();
  if (plan.weights.keep_codes) check_kept_codes(stack);
  add_capacities();
  if (measurements == nullptr) return;
  for (const auto& [key, measurement] : *measurements) measured_[key] = measurement.median;
  for (const auto& [key, measurement] : *measurements) {
    const double size = size_of_work(measurement.flops, measurement.bytes);
    if (measurement.group.empty() || size <= 0 || measurement.median.ps <= 0) continue;
    groups_[measurement.group].push_back({std::log(size), size / measurement.median.seconds()});
  }
  group_measurements();
}

void CostModel::add_capacities() {
  double link_in = fastest(machine_.link.host_to_device);
  double link_out = fastest(machine_.link.device_to_host);
  double link_total = machine_.link.both_total.value.bytes_per_s;
  if (by_kernels_) {
    link_in = std::max(link_in, fastest(machine_.link.kernel_reads));
    link_out = std::max(link_out, fastest(machine_.link.kernel_writes));
  }
  if (numa_ == NumaBinding::kRemote) {
    const double remote = machine_.link.remote->value.bytes_per_s;
    link_in = std::min(link_in, remote);
    link_out = std::min(link_out, remote);
    link_total = std::min(link_total, link_in + link_out);
  }
  // In the order of CapacityIndex.
  capacities_ = {{"hbm", machine_.gpu.memory_bandwidth.value.bytes_per_s},
                 {"dram", machine_.cpu.memory_bandwidth.value.bytes_per_s},
                 {"link host to device", link_in},
                 {"link device to host", link_out},
                 {"link total", link_total},
                 {"cores", static_cast<double>(machine_.cpu.cores), true},
                 {"multiprocessors", 1, true}};
  const auto add = [&](const char* name, const std::optional<Interconnect>& interconnect) {
    if (!interconnect) return -1;
    capacities_.push_back({name, interconnect->bandwidth.value.bytes_per_s});
    return static_cast<int32_t>(capacities_.size()) - 1;
  };
  node_ = add("node", machine_.node);
  network_ = add("network", machine_.network);
  add_product_blocks();
  if (!machine_.nvme) return;
  // Of its time: a read alone, or a write, takes all of it.
  nvme_ = static_cast<int32_t>(capacities_.size());
  capacities_.push_back({"nvme", machine_.nvme->both_share ? machine_.nvme->both_share->value : 1});
}

// Sorts every group by size and gives works of equal size their mean rate.
void CostModel::group_measurements() {
  for (auto& [name, points] : groups_) {
    std::sort(points.begin(), points.end(), [](const GroupPoint& a, const GroupPoint& b) {
      return std::pair(a.log_size, a.rate) < std::pair(b.log_size, b.rate);
    });
    std::vector<GroupPoint> merged;
    for (size_t begin = 0; begin < points.size();) {
      size_t end = begin;
      double sum = 0;
      for (; end < points.size() && points[end].log_size == points[begin].log_size; ++end) {
        sum += points[end].rate;
      }
      merged.push_back({points[begin].log_size, sum / static_cast<double>(end - begin)});
      begin = end;
    }
    points = std::move(merged);
  }
}

CostTable CostModel::table(const Program& program, const Graph& graph) const {
  return table_on(program, devices_of(graph));
}

CostTable CostModel::table_of_block(const Program& block) const { return table_on(block, 1); }

CostTable CostModel::table(const Program& program, const Graph& graph,
                           const OpCosts& of_another) const {
  CHECK(of_another.size() == program.ops.size());
  CostTable table{capacities_of(devices_of(graph)), of_another};
  std::vector<bool> known(table.ops.kinds().size(), false);
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const size_t kind = table.ops.kind_at(i);
    if (known[kind]) continue;
    known[kind] = true;
    table.ops.kinds()[kind] = cost_of(program.ops[i]);
  }
  return table;
}

std::vector<Capacity> CostModel::capacities_of(int all_devices) const {
  std::vector<Capacity> capacities;
  // Stages that this machine runs itself are threads of one process: they share its cores and its
  // memory, while others have a GPU and a part of a CPU each. Of ranks, which do the same at the
  // same time, each has its part of both.
  const int devices = machine_.gpu.is_host_thread ? 1 : all_devices;
  for (int device = 0; device < devices; ++device) {
    for (Capacity capacity : capacities_) {
      if (devices > 1) capacity.name += fmt::format(" {}", device);
      capacity.amount /= static_cast<double>(ranks_here_);
      capacities.push_back(std::move(capacity));
    }
  }
  return capacities;
}

CostTable CostModel::table_on(const Program& program, int all_devices) const {
  CostTable table{capacities_of(all_devices), {}};
  std::unordered_map<Identity, int32_t, IdentityHash> known;
  table.ops.reserve(program.ops.size());
  for (const Op& op : program.ops) {
    const auto [entry, is_new] = known.try_emplace({op.kind, op.phase, op.lane, op.work});
    if (is_new) entry->second = table.ops.add_kind(cost_of(op));
    table.ops.append(entry->second);
  }
  return table;
}

OpCost CostModel::cost_of(const Op& op) const {
  OpCost cost;
  const Alone result = alone(op);
  cost.alone = result.time;
  cost.provenance = result.provenance;
  cost.handover = machine_.handover.value;
  const Duration launch = is_by_expert(op) ? expert_launch_ : launch_;
  const int64_t kernels = kernels_of(op);
  cost.host = {launch.ps * kernels};
  if (kernels > 0) cost.host_first = launch;
  // Where a step waits the host reads the norms to say how to go on; else the CPU's threads do.
  if (reads_norms_ && op.kind == OpKind::kDecide) cost.host_waits = HostWait::kOfEveryDevice;
  if (reads_routing_ && sorts_tokens(op)) cost.host_waits = HostWait::kOfItsDevice;
  if (cost.alone.ps > 0) add_demands(op, cost);
  const int32_t device = machine_.gpu.is_host_thread ? 0 : device_of(op.lane);
  const int32_t first = device * static_cast<int32_t>(capacities_.size());
  for (int8_t i = 0; i < cost.demand_count; ++i) {
    cost.demands[static_cast<size_t>(i)].capacity += first;
  }
  return cost;
}

CostModel::Alone CostModel::alone(const Op& op) const {
  if (std::holds_alternative<std::monostate>(op.work)) return {};
  // Measured steps are those of the fastest implementation; another one has its own curve.
  const bool other_adam = adam_ != "best" && op.kind == OpKind::kAdam && runs_on_cpu(op);
  // Stages on this machine are of one process: a message between them is a copy.
  const bool between_stages =
      machine_.gpu.is_host_thread && kind_of(op.lane) == LaneKind::kPipelineNetwork;
  // What was timed went to the device's own CPU memory.
  const auto* kernel = std::get_if<BucketWork>(&op.work);
  const bool crosses =
      std::holds_alternative<CopyWork>(op.work) || (kernel != nullptr && crosses_link(*kernel));
  const bool other_memory = numa_ == NumaBinding::kRemote && crosses;
  if (!measured_.empty() && !other_adam && !other_memory && !between_stages) {
    const auto measured = measured_.find(cost_key(op));
    if (measured != measured_.end()) return {measured->second, Provenance::kMeasured};
    if (const auto result = interpolated(op)) return *result;
  }
  return from_rates(op);
}

// Linear in log(size) between the two neighbours of its group, flat just beyond the ends.
std::optional<CostModel::Alone> CostModel::interpolated(const Op& op) const {
  const double size = size_of_work(flops_of(op.work), bytes_of(op.work));
  const auto group = groups_.find(cost_group(op));
  if (group == groups_.end() || size <= 0) return std::nullopt;
  const std::vector<GroupPoint>& points = group->second;
  const double at = std::log(size);
  const double reach = std::log(kReach);
  if (at < points.front().log_size - reach || at > points.back().log_size + reach) {
    return std::nullopt;
  }
  const auto above =
      std::find_if(points.begin(), points.end(), [&](const auto& p) { return p.log_size >= at; });
  double rate = 0;
  if (above == points.end()) {
    rate = points.back().rate;
  } else if (above == points.begin()) {
    rate = points.front().rate;
  } else {
    const GroupPoint& below = *(above - 1);
    const double share = (at - below.log_size) / (above->log_size - below.log_size);
    rate = below.rate + share * (above->rate - below.rate);
  }
  return Alone{Duration::from_seconds(size / rate), Provenance::kInterpolated};
}

CostModel::Alone CostModel::from_rates(const Op& op) const {
  const Gpu& gpu = machine_.gpu;
  if (const auto* gemm = std::get_if<GemmWork>(&op.work)) {
    if (gemm->format == ProductFormat::kFp8) return fp8_product(*gemm);
    // A host thread has no tiles in flight to fill: its products are bound by rate or traffic.
    if (gpu.is_host_thread) {
      return gpu_memory_bound(bytes_of(op.work), flops_of(op.work) / matmul_rate(gemm->dtype));
    }
    const Duration time = product_time(*gemm, 1);
    return {launched(gemm->sums_bias ? time * bias_epilogue_ : time), of_tables(gemm->dtype)};
  }
  if (const auto* work = std::get_if<AttentionWork>(&op.work)) {
    return work->kind == AttentionKind::kEager ? eager_attention(*work)
                                               : flash_attention(*work, op.phase);
  }
  if (const auto* row = std::get_if<RowWork>(&op.work)) {
    const Alone one = gpu_memory_bound(row->moved, row->flops / gpu.vector.value);
    const int64_t kernels = gpu.is_host_thread ? 1 : kernels_of(op);
    return {std::max(one.time, Duration{gpu.launch.value.ps * kernels})};
  }
  if (const auto* bucket = std::get_if<BucketWork>(&op.work)) {
    if (bucket->site == Site::kCpu) return on_cpu(op, *bucket);
    if (crosses_link(*bucket) && !gpu.is_host_thread) return direct(*bucket);
    const Alone one = gpu_memory_bound(bucket->moved, Duration{});
    return {std::max(one.time, Duration{gpu.launch.value.ps * bucket->launches})};
  }
  if (const auto* work = std::get_if<CopyWork>(&op.work)) return copy(*work);
  if (const auto* work = std::get_if<IoWork>(&op.work)) return io(*work);
  if (const auto* collective = std::get_if<CollectiveWork>(&op.work)) {
    if (gpu.is_host_thread) return between_stages(*collective);
    const CollectiveTime result = collective_time(*collective, machine_, wire_shares());
    return {result.time, result.corrected ? Provenance::kInterpolated : Provenance::kRoofline};
  }
  return {};
}

Duration CostModel::launched(Duration time) const { return time + machine_.gpu.launch.value; }

MatrixUnit CostModel::matrix_unit(DType dtype) const {
  const Gpu& gpu = machine_.gpu;
  const double rate = matmul_rate(dtype).flops_per_s * constants_.gemm;
  return {FlopRate{rate}, gpu.memory_bandwidth.value, gpu.multiprocessors};
}

Duration CostModel::pass(Bytes moved) const {
  const double rate = machine_.gpu.memory_bandwidth.value.bytes_per_s * constants_.elementwise;
  return moved / Bandwidth{rate};
}

CostModel::Alone CostModel::gpu_memory_bound(Bytes moved, Duration arithmetic) const {
  return {launched(std::max(pass(moved), arithmetic))};
}

CostModel::Alone CostModel::on_cpu(const Op& op, const BucketWork& work) const {
  const auto on_curve = [&](const Curve& curve) -> Alone {
    const auto elements = static_cast<double>(work.elements);
    return {Duration::from_seconds(elements / curve.rate_at(elements)),
            curve.measured ? Provenance::kInterpolated : Provenance::kRoofline};
  };
  const Cpu& cpu = machine_.cpu;
  const auto at_best = [&]() -> Alone {
    if (op.kind == OpKind::kAdam && !cpu.adam.empty()) return adam(work);
    if (op.kind == OpKind::kCast && !cpu.cast.empty()) return on_curve(cpu.cast);
    if (work.core_percent > 0) {
      const int64_t cores = std::max<int64_t>(1, cpu.cores * work.core_percent / 100);
      return {work.moved / bandwidth_of(cpu, cores)};
    }
    return {work.moved / cpu.memory_bandwidth.value};
  };
  // Rates are those of the kernels alone; a framework's own loops and threads reach a share.
  Alone result = at_best();
  result.time = result.time * (1 / constants_.cpu);
  return result;
}

CostModel::Alone CostModel::adam(const BucketWork& work) const {
  const auto elements = static_cast<double>(work.elements);
  const Curve* chosen = nullptr;
  for (const auto& [name, curve] : machine_.cpu.adam) {
    if (adam_ != "best" && name != adam_) continue;
    if (chosen == nullptr || curve.rate_at(elements) > chosen->rate_at(elements)) chosen = &curve;
  }
  CHECK(chosen != nullptr);
  double rate = chosen->rate_at(elements);
  if (adam_ == kTorchAdam) rate = std::min(rate, torch_adam_rate());
  const Duration computed = Duration::from_seconds(elements / rate);
  if (chosen->measured) return {computed, Provenance::kInterpolated};
  // A rate from elsewhere cannot move more than this memory does.
  return {std::max(computed, work.moved / machine_.cpu.memory_bandwidth.value)};
}

// Parameters per second that its threads can bring past their cores.
double CostModel::torch_adam_rate() const {
  const Cpu& cpu = machine_.cpu;
  const int64_t threads = torch_adam_threads_ > 0 ? torch_adam_threads_ : cpu.optimizer_threads;
  return static_cast<double>(threads) * core_bandwidth(cpu) /
         static_cast<double>(kTorchAdamBytes.count);
}

int64_t CostModel::threads_of(const Op& op) const {
  if (kind_of(op.lane) != LaneKind::kCpu) return 1;
  const bool torch = op.kind == OpKind::kAdam && adam_ == kTorchAdam;
  const int64_t lent = machine_.cpu.optimizer_threads;
  return torch && torch_adam_threads_ > 0 ? std::min(torch_adam_threads_, lent) : lent;
}

// In one process a message is one copy; a sum of two gradients is read and written by both.
CostModel::Alone CostModel::between_stages(const CollectiveWork& work) const {
  const bool sums = work.kind == CollectiveKind::kAllReduce;
  Alone one = copy({work.bytes, CopyDirection::kHostToDevice});
  if (sums) one.time = one.time * 2;
  return one;
}

CostModel::Alone CostModel::io(const IoWork& work) const {
  if (!machine_.nvme) {
    throw Error("machine " + machine_.name + ": nvme",
                "is missing, but a plan reads and writes state on NVMe",
                "add capacity_gb, read, write and latency_us to its file, measure this machine's "
                "with ballast profile --nvme DIR, or set optimizer.placement to cpu");
  }
  const Nvme& nvme = *machine_.nvme;
  const Curve& curve = work.direction == IoDirection::kRead ? nvme.read : nvme.write;
  const Bandwidth rate{curve.rate_at(static_cast<double>(work.bytes.count))};
  return {work.bytes / rate + nvme.latency.value,
          curve.measured ? Provenance::kInterpolated : Provenance::kRoofline};
}

FlopRate CostModel::matmul_rate(DType dtype) const {
  const auto rate = machine_.gpu.matmul.find(dtype);
  if (rate != machine_.gpu.matmul.end()) return rate->second.value;
  if (dtype == DType::kE4m3) {
    throw Error("machine " + machine_.name + ": gpu.matmul_tflops.fp8",
                "is missing, but a plan with products fp8 multiplies at that rate",
                "add it to the machine's file where the GPU has fp8, or set plan.products to "
                "as-stored");
  }
  throw Error("machine " + machine_.name + ": gpu.matmul",
              "has no rate for " + std::string(to_string(dtype)),
              "add it to the machine's file or choose another dtype");
}

// An operation alone on its machine runs at full speed by definition, so it never asks for more
// than there is (a measurement out of a cache may say so).
void CostModel::demand(OpCost& cost, int32_t capacity, double amount) const {
  const double most = capacities_[static_cast<size_t>(capacity)].amount;
  CHECK(static_cast<size_t>(cost.demand_count) < cost.demands.size());
  cost.demands[static_cast<size_t>(cost.demand_count++)] = {capacity, std::min(amount, most)};
}

double CostModel::most_cores() const {
  return static_cast<double>(machine_.cpu.cores) / static_cast<double>(ranks_here_);
}

void CostModel::add_demands(const Op& op, OpCost& cost) const {
  const double moved = per_second(bytes_of(op.work), cost.alone);
  if (runs_on_cpu(op)) {
    demand(cost, kDram, moved);
    demand(cost, kCores, static_cast<double>(threads_of(op)));
    return;
  }
  // A machine may lack a disk that measured transfers were of.
  if (std::holds_alternative<IoWork>(op.work) && nvme_ >= 0) demand(cost, nvme_, 1);
  const auto* copy = std::get_if<CopyWork>(&op.work);
  if (machine_.gpu.is_host_thread) {
    // A copy, as a message between stages is one, reads and writes the one memory that there is.
    const bool copies = copy != nullptr || std::holds_alternative<CollectiveWork>(op.work);
    demand(cost, kDram, copies ? 2 * moved : moved);
    const bool computes = kind_of(op.lane) == LaneKind::kCompute;
    double cores = computes ? static_cast<double>(machine_.gpu.compute_threads) : 1;
    // What ranks exchange was timed beside each other, on the cores that there are.
    if (op.kind == OpKind::kCollective) cores = std::min(cores, most_cores());
    demand(cost, kCores, cores);
    return;
  }
  if (copy != nullptr) {
    const bool in = copy->direction == CopyDirection::kHostToDevice;
    demand(cost, in ? kHostToDevice : kDeviceToHost, moved);
    demand(cost, kLinkTotal, moved);
    demand(cost, kDram, moved);
    demand(cost, kHbm, moved);
    return;
  }
  const auto* bucket = std::get_if<BucketWork>(&op.work);
  if (bucket != nullptr && crosses_link(*bucket)) return add_direct_demands(*bucket, cost);
  if (std::holds_alternative<IoWork>(op.work)) {
    demand(cost, kDram, moved);
    return;
  }
  if (const auto* collective = std::get_if<CollectiveWork>(&op.work)) {
    add_collective_demands(op, *collective, cost);
    return;
  }
  demand(cost, kHbm, moved);
  demand(cost, kMultiprocessors, 1);
  if (std::holds_alternative<GemmWork>(op.work)) add_product_demands(cost);
}

}  // namespace ballast
