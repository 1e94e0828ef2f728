#include "profiles/templates/machine_template.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fmt/format.h>

#include "profiles/load.h"
#include "profiles/names/meant.h"
#include "profiles/names/words.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

constexpr const char* kNone = "none";

std::optional<double> number_in(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  if (!std::isfinite(value) || !(value > 0)) return std::nullopt;
  return value;
}

// Assembles one machine, and remembers what nobody said.
class Assembly {
 public:
  Assembly(const MachineRequest& request, const Machine& like) : request_(request), like_(like) {
    made_.machine = like;
    made_.like = like.name;
  }

  MachineTemplate make() {
    Machine& machine = made_.machine;
    machine.name = request_.name;
    machine.devices_per_node = request_.gpus;
    machine.devices = request_.gpus * request_.nodes;
    set_cpu(machine.cpu);
    set_link(machine.link);
    set_node(machine.node);
    set_network(machine.network);
    if (machine.nvme) {
      assume(machine.nvme->capacity, "nvme.capacity", "");
      assume(machine.nvme->read, machine.nvme->write);
    }
    machine.description = fmt::format(
        "{} {} of {} {}, {}, made from {}: a source that begins with 'assumed' is no "
        "fact of this machine",
        request_.nodes, request_.nodes == 1 ? "node" : "nodes", request_.gpus, machine.gpu.name,
        machine.network ? "with a network" : "no network", like_.name);
    check(machine);
    return std::move(made_);
  }

 private:
  std::string as_there(const std::string& source) const {
    const std::string there = "assumed: as " + like_.name + " has it";
    return source.empty() ? there : there + "; " + source;
  }
  void note(const std::string& key, const std::string& value) {
    made_.assumed.push_back(key + ": " + value);
  }

  // Keeps the value of the shipped machine.
  template <class Quantity>
  void assume(Sourced<Quantity>& value, const std::string& key, const std::string& shown) {
    value.source = as_there(value.source);
    value.measured = false;
    note(key, (shown.empty() ? "" : shown + ", ") + "as " + like_.name + " has it");
  }
  void assume(Curve& one, Curve& other) {
    for (Curve* curve : {&one, &other}) {
      curve->source = as_there(curve->source);
      curve->measured = false;
    }
  }

  // The share of one GPU.
  void set_cpu(Cpu& cpu) {
    if (request_.cpu_memory) {
      const Bytes whole = *request_.cpu_memory;
      cpu.memory = {Bytes{whole.count / request_.gpus}, false,
                    fmt::format("given: {:g} GB for {} GPUs",
                                static_cast<double>(whole.count) * 1e-9, request_.gpus)};
    } else {
      assume(cpu.memory, "cpu.memory_gb",
             fmt::format("{:g} GB a GPU", static_cast<double>(cpu.memory.value.count) * 1e-9));
    }
    if (request_.cpu_cores) {
      cpu.cores = std::max<int64_t>(*request_.cpu_cores / request_.gpus, 1);
      cpu.optimizer_threads = std::max<int64_t>(cpu.cores - 1, 1);
      cpu.name = fmt::format("{} cores for {} GPUs", *request_.cpu_cores, request_.gpus);
    } else {
      note("cpu.cores", fmt::format("{} a GPU, as {} has it", cpu.cores, like_.name));
      cpu.name = "assumed: " + cpu.name + " a GPU";
    }
    set_cpu_bandwidth(cpu);
  }

  // The speed of the optimizer's step goes with it, for that is bound by memory.
  void set_cpu_bandwidth(Cpu& cpu) {
    const auto& whole = request_.cpu_bandwidth_gb_per_s;
    if (!whole) {
      assume(cpu.memory_bandwidth, "cpu.memory_bandwidth_gb_per_s",
             fmt::format("{:g} GB/s a GPU", cpu.memory_bandwidth.value.bytes_per_s * 1e-9));
      for (auto& [name, curve] : cpu.adam) {
        curve.source = as_there(curve.source);
        curve.measured = false;
      }
      return;
    }
    const Bandwidth share = Bandwidth::from_gb_per_s(*whole / static_cast<double>(request_.gpus));
    const double faster = share.bytes_per_s / cpu.memory_bandwidth.value.bytes_per_s;
    cpu.memory_bandwidth = {share, false,
                            fmt::format("given: {:g} GB/s for {} GPUs", *whole, request_.gpus)};
    if (cpu.core_bandwidth && cpu.core_bandwidth->value.bytes_per_s > share.bytes_per_s) {
      cpu.core_bandwidth->value = share;
      cpu.core_bandwidth->source = "derived: no more than all cores together";
      cpu.core_bandwidth->measured = false;
    }
    scale(cpu.cast, faster);
    for (auto& [name, curve] : cpu.adam) scale(curve, faster);
    note("cpu.adam, cpu.cast",
         fmt::format("{:.3g} times what {} has, as its CPU memory is so much faster", faster,
                     like_.name));
  }

  static void scale(Curve& curve, double factor) {
    if (curve.empty()) return;
    for (Curve::Point& point : curve.points) point.rate *= factor;
    curve.measured = false;
    curve.source =
        fmt::format("assumed: {:.3g} times, as the CPU's memory is; {}", factor, curve.source);
  }

  void set_link(Link& link) {
    if (!request_.link) {
      assume(link.host_to_device, link.device_to_host);
      if (!link.kernel_reads.empty()) assume(link.kernel_reads, link.kernel_writes);
      note("link", fmt::format("{}, as {} has it", link.kind, like_.name));
      return;
    }
    if (*request_.link == link.kind && link.kind != "pcie") return;
    const std::string& text = *request_.link;
    const size_t times = text.find('x');
    const auto generation = text.starts_with("pcie") && times != std::string::npos
                                ? number_in(std::string_view(text).substr(4, times - 4))
                                : std::nullopt;
    const auto lanes =
        generation ? number_in(std::string_view(text).substr(times + 1)) : std::nullopt;
    if (!lanes || *generation < 3 || *generation > 7 || *generation != std::floor(*generation) ||
        (*lanes != 4 && *lanes != 8 && *lanes != 16)) {
      throw Error("--link '" + text + "'", "is not a link that is known",
                  "write pcie4x16 (generation 3 to 7, 4, 8 or 16 lanes)" +
                      (link.kind == "pcie" ? std::string() : ", or " + link.kind));
    }
    link = pcie_link(*generation, *lanes);
    note("link", fmt::format("{:g} GB/s a direction, 78 % of the nominal rate",
                             link.host_to_device.points.back().rate * 1e-9));
  }

  // A lane of generation 3 carries 1 GB/s in a direction, nominal, and each generation doubles it.
  static Link pcie_link(double generation, double lanes) {
    constexpr double kReached = 0.78;
    const double nominal = std::exp2(generation - 3) * lanes * 1e9;
    const double rate = kReached * nominal;
    Link link;
    link.kind = "pcie";
    link.host_to_device.points = {{65536, rate / 4}, {1048576, rate * 3 / 4}, {16777216, rate}};
    link.host_to_device.source = fmt::format(
        "assumed: 78 % of {:g} GB/s, nominal of PCIe {:g} x{:g} in one direction; below 16 MiB "
        "assumed: three quarters at 1 MiB, a quarter at 64 KiB",
        nominal * 1e-9, generation, lanes);
    link.device_to_host = link.host_to_device;
    link.both_total = {Bandwidth{1.8 * rate}, false, "assumed: 1.8 times one direction"};
    link.pageable_share = {0.4, false, "assumed: staging through pinned buffers of the driver"};
    link.latency = {Duration::from_us(5), false, "assumed: set-up of an asynchronous copy"};
    return link;
  }

  void set_node(std::optional<Interconnect>& node) {
    if (request_.gpus == 1) {
      node.reset();
      return;
    }
    if (request_.node) {
      if (const auto rate = number_in(*request_.node)) {
        node = wires(Bandwidth::from_gb_per_s(*rate), "given", like_latency());
        return;
      }
      node = shipped("--node", *request_.node, &Machine::node);
      return;
    }
    if (node) {
      assume(node->bandwidth, "node",
             fmt::format("{:g} GB/s between GPUs", node->bandwidth.value.bytes_per_s * 1e-9));
      return;
    }
    const double half = made_.machine.link.host_to_device.points.back().rate / 2;
    node = wires(Bandwidth{half},
                 "assumed: half of a GPU's link, for what GPUs exchange without wires of their own "
                 "goes into the CPU's memory and out of it",
                 made_.machine.link.latency.value);
    note("node", fmt::format("{:g} GB/s between GPUs, through the CPU's memory", half * 1e-9));
  }

  void set_network(std::optional<Interconnect>& network) {
    if (request_.network == kNone) {
      if (request_.nodes > 1) {
        throw Error(fmt::format("--nodes {}", request_.nodes), "no network joins them",
                    "say --network, for example --network 400gbit");
      }
      network.reset();
      return;
    }
    constexpr std::string_view kUnit = "gbit";
    if (request_.network.ends_with(kUnit)) {
      const auto rate = number_in(
          std::string_view(request_.network).substr(0, request_.network.size() - kUnit.size()));
      if (!rate) refuse_network();
      constexpr double kReached = 0.96;
      network = wires(Bandwidth{kReached * *rate / 8 * 1e9},
                      fmt::format("assumed: 96 % of {:g} Gbit/s of a GPU's network card", *rate),
                      Duration::from_us(kHopUs));
      note("network", fmt::format("96 % of {:g} Gbit/s, {:g} us for a hop", *rate, kHopUs));
      return;
    }
    network = shipped("--network", request_.network, &Machine::network);
  }

  [[noreturn]] void refuse_network() const {
    throw Error("--network '" + request_.network + "'", "is no rate and no shipped machine",
                "write none, 400gbit (a GPU's card) or the name of a machine");
  }

  static constexpr double kHopUs = 2.7;  // NCCL 2.10, src/graph/tuning.cc, LL between nodes

  Duration like_latency() const {
    return like_.node ? like_.node->latency.value : made_.machine.link.latency.value;
  }

  static Interconnect wires(Bandwidth rate, const std::string& source, Duration latency) {
    Interconnect wires;
    wires.bandwidth = {rate, false, source};
    wires.latency = {latency, false, "assumed: of a hop over such wires"};
    return wires;
  }

  // The wires of a shipped machine.
  std::optional<Interconnect> shipped(const char* flag, const std::string& name,
                                      std::optional<Interconnect> Machine::* which) {
    const Machine machine = load_machine(meant_by(name, "machines").name);
    const std::optional<Interconnect>& wires = machine.*which;
    if (!wires) {
      throw Error(fmt::format("{} {}", flag, name), machine.name + " has no such wires",
                  "name another machine, or a rate");
    }
    note(std::string(flag).substr(2), "as " + machine.name + " has it");
    return wires;
  }

  const MachineRequest& request_;
  const Machine& like_;
  MachineTemplate made_;
};

std::vector<Machine> all_machines() {
  std::vector<Machine> machines;
  for (const Shipped& shipped : shipped_machines()) machines.push_back(load_machine(shipped.name));
  return machines;
}

std::vector<std::string> gpus_of(const std::vector<Machine>& machines) {
  std::vector<std::string> names;
  for (const Machine& machine : machines) names.push_back(machine.gpu.name);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

// Of those with this GPU, the one with as many in a node; else the first by name.
const Machine& most_alike(const std::vector<Machine>& machines, const std::string& gpu,
                          int64_t gpus) {
  const Machine* best = nullptr;
  for (const Machine& machine : machines) {
    if (machine.gpu.name != gpu) continue;
    if (best == nullptr || (best->devices_per_node != gpus && machine.devices_per_node == gpus)) {
      best = &machine;
    }
  }
  CHECK(best != nullptr);
  return *best;
}

}  // namespace

std::vector<std::string> shipped_gpus() { return gpus_of(all_machines()); }

MachineTemplate machine_template(const MachineRequest& request) {
  const std::vector<Machine> machines = all_machines();
  const std::vector<std::string> gpus = gpus_of(machines);
  std::vector<std::string> found = containing(request.gpu, gpus);
  if (std::find(gpus.begin(), gpus.end(), request.gpu) != gpus.end()) found = {request.gpu};
  if (found.size() != 1) {
    throw Error("--gpu '" + request.gpu + "'",
                found.empty() ? "is the GPU of no shipped machine" : "may be several GPUs",
                suggestion(request.gpu, gpus));
  }
  return Assembly(request, most_alike(machines, found[0], request.gpus)).make();
}

Bytes parse_memory(const std::string& flag, const std::string& text) {
  double unit = 0;
  if (text.ends_with("GB")) unit = 1e9;
  if (text.ends_with("TB")) unit = 1e12;
  const auto value =
      unit > 0 ? number_in(std::string_view(text).substr(0, text.size() - 2)) : std::nullopt;
  if (!value || *value * unit > 1e17) {
    throw Error(flag + " '" + text + "'", "is not an amount of memory", "write 256GB or 2TB");
  }
  return Bytes{std::llround(*value * unit)};
}

}  // namespace ballast
