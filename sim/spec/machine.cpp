#include "sim/spec/machine.h"

#include <algorithm>
#include <cmath>

namespace ballast {
namespace {

// Checks one machine's numbers; every complaint names the machine and the field.
class Checker {
 public:
  explicit Checker(const Machine& machine) : machine_(machine) {}

  void positive(const char* field, double value) const {
    if (!std::isfinite(value) || value <= 0) fail(field, "is missing, zero or negative");
  }

  void not_negative(const char* field, double value) const {
    if (!std::isfinite(value) || value < 0) fail(field, "is negative or not a number");
  }

  void share(const char* field, double value) const {
    if (!(value > 0 && value <= 1)) fail(field, "is not a share above 0 and at most 1");
  }

  void curve(const std::string& field, const Curve& value) const {
    double size_before = 0;
    for (const Curve::Point& point : value.points) {
      if (!std::isfinite(point.size) || point.size < 1 || point.size <= size_before) {
        fail(field, "has sizes that are below 1 or not strictly ascending");
      }
      if (!std::isfinite(point.rate) || point.rate <= 0) {
        fail(field, "has a rate that is zero or negative");
      }
      size_before = point.size;
    }
  }

  [[noreturn]] void fail(const std::string& field, const std::string& what) const {
    throw Error("machine " + machine_.name + ": " + field, what,
                "correct it in the machine's file");
  }

 private:
  const Machine& machine_;
};

void check_gpu(const Checker& checker, const Gpu& gpu) {
  checker.positive("gpu.memory", static_cast<double>(gpu.memory.value.count));
  checker.not_negative("gpu.reserved", static_cast<double>(gpu.reserved.value.count));
  if (gpu.reserved.value >= gpu.memory.value) {
    checker.fail("gpu.reserved", "leaves nothing of gpu.memory");
  }
  checker.positive("gpu.memory_bandwidth", gpu.memory_bandwidth.value.bytes_per_s);
  if (gpu.matmul.empty()) checker.fail("gpu.matmul", "names no number format");
  for (const auto& [dtype, rate] : gpu.matmul) {
    checker.positive(("gpu.matmul." + std::string(to_string(dtype))).c_str(),
                     rate.value.flops_per_s);
  }
  checker.positive("gpu.vector", gpu.vector.value.flops_per_s);
  checker.share("gpu.attention_efficiency", gpu.attention_efficiency.value);
  int64_t head_size_before = 0;
  for (const AttentionRates& rates : gpu.attention) {
    const std::string field = "gpu.attention." + std::to_string(rates.head_size);
    if (rates.head_size <= head_size_before) checker.fail(field, "does not ascend");
    if (rates.forward.empty() || rates.backward.empty()) checker.fail(field, "has no points");
    checker.curve(field + ".forward", rates.forward);
    checker.curve(field + ".backward", rates.backward);
    head_size_before = rates.head_size;
  }
  checker.not_negative("gpu.launch", static_cast<double>(gpu.launch.value.ps));
  checker.positive("gpu.multiprocessors", static_cast<double>(gpu.multiprocessors));
  checker.positive("gpu.compute_threads", static_cast<double>(gpu.compute_threads));
  if (gpu.compute_threads > 1 && !gpu.is_host_thread) {
    checker.fail("gpu.compute_threads", "is of a GPU whose lanes run on CPU cores");
  }
}

void check_cpu(const Checker& checker, const Cpu& cpu) {
  checker.positive("cpu.cores", static_cast<double>(cpu.cores));
  checker.positive("cpu.optimizer_threads", static_cast<double>(cpu.optimizer_threads));
  if (cpu.optimizer_threads > cpu.cores) {
    checker.fail("cpu.optimizer_threads", "is larger than cpu.cores");
  }
  checker.positive("cpu.memory", static_cast<double>(cpu.memory.value.count));
  checker.not_negative("cpu.reserved", static_cast<double>(cpu.reserved.value.count));
  if (cpu.reserved.value >= cpu.memory.value) {
    checker.fail("cpu.reserved", "leaves nothing of cpu.memory");
  }
  checker.positive("cpu.memory_bandwidth", cpu.memory_bandwidth.value.bytes_per_s);
  if (cpu.core_bandwidth) {
    checker.positive("cpu.core_bandwidth", cpu.core_bandwidth->value.bytes_per_s);
  }
  for (const auto& [name, curve] : cpu.adam) {
    if (curve.empty()) checker.fail("cpu.adam." + name, "has no points");
    checker.curve("cpu.adam." + name, curve);
  }
  checker.curve("cpu.cast", cpu.cast);
  if (cpu.dispatch) {
    checker.positive("cpu.dispatch", static_cast<double>(cpu.dispatch->value.ps));
  }
}

void check_link(const Checker& checker, const Link& link) {
  if (link.host_to_device.empty()) checker.fail("link.host_to_device", "has no points");
  if (link.device_to_host.empty()) checker.fail("link.device_to_host", "has no points");
  checker.curve("link.host_to_device", link.host_to_device);
  checker.curve("link.device_to_host", link.device_to_host);
  checker.positive("link.both_total", link.both_total.value.bytes_per_s);
  checker.share("link.pageable_share", link.pageable_share.value);
  checker.not_negative("link.latency", static_cast<double>(link.latency.value.ps));
  if (link.remote) checker.positive("link.remote", link.remote->value.bytes_per_s);
  if (link.network_share) checker.share("link.network_share", link.network_share->value);
  checker.curve("link.kernel_reads", link.kernel_reads);
  checker.curve("link.kernel_writes", link.kernel_writes);
}

void check_interconnect(const Checker& checker, const std::string& name,
                        const Interconnect& wires) {
  const auto field = [&](const char* key) { return name + "." + key; };
  checker.positive(field("bandwidth").c_str(), wires.bandwidth.value.bytes_per_s);
  checker.not_negative(field("latency").c_str(), static_cast<double>(wires.latency.value.ps));
  if (wires.switch_reduction) {
    checker.positive(field("switch_reduction").c_str(), wires.switch_reduction->value.bytes_per_s);
  }
  if (wires.multiprocessors) {
    checker.positive(field("multiprocessors").c_str(), wires.multiprocessors->value);
  }
  checker.curve(field("point_to_point"), wires.point_to_point);
  if (!wires.all_reduce) return;
  const AllReduceTable& table = *wires.all_reduce;
  if (table.bus.empty()) checker.fail(field("all_reduce"), "has no points");
  checker.curve(field("all_reduce"), table.bus);
  if (table.nodes < 1 || table.ranks < 2 || table.ranks % table.nodes != 0) {
    checker.fail(field("all_reduce"), "has ranks that cannot lie evenly on its nodes");
  }
}

// A table of all-reduces is compared with what the formulas say of the same group, so the wires
// of that group must be there.
void check_tables(const Checker& checker, const Machine& machine) {
  if (machine.node && machine.node->all_reduce && machine.node->all_reduce->nodes != 1) {
    checker.fail("node.all_reduce", "is of several nodes");
  }
  if (!machine.network || !machine.network->all_reduce) return;
  const AllReduceTable& table = *machine.network->all_reduce;
  if (table.nodes < 2) checker.fail("network.all_reduce", "is of one node");
  if (table.ranks > table.nodes && !machine.node) {
    checker.fail("network.all_reduce", "has several ranks a node, but node is missing");
  }
}

void check_nvme(const Checker& checker, const Nvme& nvme) {
  checker.positive("nvme.capacity", static_cast<double>(nvme.capacity.value.count));
  if (nvme.read.empty()) checker.fail("nvme.read", "has no points");
  if (nvme.write.empty()) checker.fail("nvme.write", "has no points");
  checker.curve("nvme.read", nvme.read);
  checker.curve("nvme.write", nvme.write);
  checker.not_negative("nvme.latency", static_cast<double>(nvme.latency.value.ps));
  if (!nvme.both_share) return;
  const double share = nvme.both_share->value;
  if (!(share >= 1 && share <= 2)) checker.fail("nvme.both_share", "is not from 1 to 2");
}

}  // namespace

std::string_view to_string(Provenance value) {
  switch (value) {
    case Provenance::kMeasured:
      return "measured";
    case Provenance::kInterpolated:
      return "interpolated";
    case Provenance::kRoofline:
      return "roofline";
  }
  return "";
}

double Curve::rate_at(double size) const {
  CHECK(!points.empty());
  if (size <= points.front().size) return points.front().rate;
  if (size >= points.back().size) return points.back().rate;
  const auto after =
      std::upper_bound(points.begin(), points.end(), size,
                       [](double value, const Point& point) { return value < point.size; });
  const Point& high = *after;
  const Point& low = *(after - 1);
  const double share = std::log(size / low.size) / std::log(high.size / low.size);
  return low.rate + share * (high.rate - low.rate);
}

double host_slowness(const Cpu& cpu) {
  return cpu.dispatch ? cpu.dispatch->value.seconds() / kReferenceDispatch.seconds() : 1;
}

double core_bandwidth(const Cpu& cpu) {
  return cpu.core_bandwidth
             ? cpu.core_bandwidth->value.bytes_per_s
             : cpu.memory_bandwidth.value.bytes_per_s / static_cast<double>(cpu.cores);
}

Bandwidth bandwidth_of(const Cpu& cpu, int64_t cores) {
  return {std::min(cpu.memory_bandwidth.value.bytes_per_s,
                   static_cast<double>(cores) * core_bandwidth(cpu))};
}

void check(const Machine& machine) {
  const Checker checker(machine);
  if (machine.name.empty()) checker.fail("name", "is empty");
  checker.positive("devices_per_node", static_cast<double>(machine.devices_per_node));
  checker.positive("devices", static_cast<double>(machine.devices));
  if (machine.power_watts) checker.positive("power_watts", machine.power_watts->value);
  check_gpu(checker, machine.gpu);
  check_cpu(checker, machine.cpu);
  if (machine.gpu.compute_threads > machine.cpu.cores) {
    checker.fail("gpu.compute_threads", "is larger than cpu.cores");
  }
  check_link(checker, machine.link);
  if (machine.node) {
    check_interconnect(checker, "node", *machine.node);
  } else if (machine.devices_per_node > 1) {
    checker.fail("node", "is missing, but a node has several devices");
  }
  if (machine.network) {
    check_interconnect(checker, "network", *machine.network);
  } else if (machine.devices > machine.devices_per_node) {
    checker.fail("network", "is missing, but the devices are spread over several nodes");
  }
  check_tables(checker, machine);
  if (machine.nvme) check_nvme(checker, *machine.nvme);
  checker.not_negative("handover", static_cast<double>(machine.handover.value.ps));
}

}  // namespace ballast
