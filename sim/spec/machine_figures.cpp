#include "sim/spec/machine_figures.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "sim/base/error.h"

namespace ballast {
namespace {

void scale(Curve& curve, double factor) {
  for (Curve::Point& point : curve.points) point.rate *= factor;
}
void scale(Sourced<Bandwidth>& bandwidth, double factor) { bandwidth.value.bytes_per_s *= factor; }
void scale(Sourced<Bytes>& memory, double factor) {
  memory.value.count =
      static_cast<int64_t>(std::llround(static_cast<double>(memory.value.count) * factor));
}

void scale(Interconnect& interconnect, double factor) {
  scale(interconnect.bandwidth, factor);
  if (interconnect.switch_reduction) scale(*interconnect.switch_reduction, factor);
  if (interconnect.all_reduce) scale(interconnect.all_reduce->bus, factor);
  scale(interconnect.point_to_point, factor);
}

// Fused attention multiplies 16-bit factors, whatever the products around it do.
void scale_matmul(Machine& machine, DType dtype, double factor) {
  machine.gpu.matmul.at(dtype).value.flops_per_s *= factor;
  if (dtype == DType::kE4m3) return;
  for (AttentionRates& rates : machine.gpu.attention) {
    scale(rates.forward, factor);
    scale(rates.backward, factor);
  }
}

void scale_link(Machine& machine, double factor) {
  scale(machine.link.host_to_device, factor);
  scale(machine.link.device_to_host, factor);
  scale(machine.link.both_total, factor);
  scale(machine.link.kernel_reads, factor);
  scale(machine.link.kernel_writes, factor);
  if (machine.link.remote) scale(*machine.link.remote, factor);
}

void scale_cpu_bandwidth(Machine& machine, double factor) {
  scale(machine.cpu.memory_bandwidth, factor);
  if (machine.cpu.core_bandwidth) scale(*machine.cpu.core_bandwidth, factor);
}

void scale_adam(Machine& machine, double factor) {
  for (auto& [name, curve] : machine.cpu.adam) scale(curve, factor);
}

constexpr const char* kMatmul = "machine.gpu.matmul_tflops.";  // and the number format

double gb(double bytes) { return bytes * 1e-9; }
double plateau(const Curve& curve) { return curve.empty() ? 0 : gb(curve.points.back().rate); }

std::optional<double> fastest_adam(const Machine& machine) {
  double rate = 0;
  for (const auto& [name, curve] : machine.cpu.adam) {
    if (!curve.empty()) rate = std::max(rate, curve.points.back().rate);
  }
  if (rate <= 0) return std::nullopt;
  return gb(rate);
}

// A detail is a rate that few steps depend on: not worth the searches of a sensitivity.
enum class FigureKind : uint8_t { kRate, kMemory, kDetail };

// A figure that a machine has at most once: what it is worth, where the machine has it, and the
// machine with it changed.
struct FigureRow {
  const char* key;
  const char* name;
  const char* unit;
  FigureKind kind;
  std::optional<double> (*value)(const Machine& machine);
  void (*scale)(Machine& machine, double factor);
};

const FigureRow kFigures[] = {
    {"machine.gpu.memory_bandwidth_gb_per_s", "GPU memory bandwidth", "GB/s", FigureKind::kRate,
     [](const Machine& m) -> std::optional<double> {
       return m.gpu.memory_bandwidth.value.gb_per_s();
     },
     [](Machine& m, double factor) { scale(m.gpu.memory_bandwidth, factor); }},
    {"machine.gpu.memory_gb", "GPU memory", "GB", FigureKind::kMemory,
     [](const Machine& m) -> std::optional<double> { return m.gpu.memory.value.gb(); },
     [](Machine& m, double factor) { scale(m.gpu.memory, factor); }},
    {"machine.link.gb_per_s", "link both ways", "GB/s", FigureKind::kRate,
     [](const Machine& m) -> std::optional<double> { return plateau(m.link.host_to_device); },
     scale_link},
    {"machine.link.host_to_device_gb_per_s", "link to the GPU", "GB/s", FigureKind::kRate,
     [](const Machine& m) -> std::optional<double> { return plateau(m.link.host_to_device); },
     [](Machine& m, double factor) {
       scale(m.link.host_to_device, factor);
       scale(m.link.kernel_reads, factor);
     }},
    {"machine.link.device_to_host_gb_per_s", "link to the CPU", "GB/s", FigureKind::kRate,
     [](const Machine& m) -> std::optional<double> { return plateau(m.link.device_to_host); },
     [](Machine& m, double factor) {
       scale(m.link.device_to_host, factor);
       scale(m.link.kernel_writes, factor);
     }},
    {"machine.cpu.memory_bandwidth_gb_per_s", "CPU memory bandwidth", "GB/s", FigureKind::kRate,
     [](const Machine& m) -> std::optional<double> {
       return m.cpu.memory_bandwidth.value.gb_per_s();
     },
     scale_cpu_bandwidth},
    {"machine.cpu.memory_gb", "CPU memory", "GB", FigureKind::kMemory,
     [](const Machine& m) -> std::optional<double> { return m.cpu.memory.value.gb(); },
     [](Machine& m, double factor) { scale(m.cpu.memory, factor); }},
    {"machine.cpu.adam", "Adam on the CPU", "1e9 parameters/s", FigureKind::kRate, fastest_adam,
     scale_adam},
    {"machine.nvme.read_gb_per_s", "NVMe both ways", "GB/s", FigureKind::kRate,
     [](const Machine& m) -> std::optional<double> {
       if (!m.nvme) return std::nullopt;
       return plateau(m.nvme->read);
     },
     [](Machine& m, double factor) {
       scale(m.nvme->read, factor);
       scale(m.nvme->write, factor);
     }},
    {"machine.node.bandwidth_gb_per_s", "node", "GB/s", FigureKind::kRate,
     [](const Machine& m) -> std::optional<double> {
       if (!m.node || m.devices_per_node <= 1) return std::nullopt;
       return m.node->bandwidth.value.gb_per_s();
     },
     [](Machine& m, double factor) { scale(*m.node, factor); }},
    {"machine.network.bandwidth_gb_per_s", "network", "GB/s", FigureKind::kRate,
     [](const Machine& m) -> std::optional<double> {
       if (!m.network || m.devices <= m.devices_per_node) return std::nullopt;
       return m.network->bandwidth.value.gb_per_s();
     },
     [](Machine& m, double factor) { scale(*m.network, factor); }},
    {"machine.gpu.vector_tflops", "GPU vector arithmetic", "TFLOP/s", FigureKind::kDetail,
     [](const Machine& m) -> std::optional<double> { return m.gpu.vector.value.tflops(); },
     [](Machine& m, double factor) { m.gpu.vector.value.flops_per_s *= factor; }},
    {"machine.cpu.cast", "casts on the CPU", "1e9 elements/s", FigureKind::kDetail,
     [](const Machine& m) -> std::optional<double> {
       return m.cpu.cast.empty() ? std::nullopt : std::optional(plateau(m.cpu.cast));
     },
     [](Machine& m, double factor) { scale(m.cpu.cast, factor); }},
};

std::vector<MachineFigure> matmul_figure(const Machine& machine, DType dtype, const char* name) {
  const auto rate = machine.gpu.matmul.find(dtype);
  if (rate == machine.gpu.matmul.end()) return {};
  return {{kMatmul + std::string(to_string(dtype)), name, "TFLOP/s", rate->second.value.tflops()}};
}

void add_if_known(const FigureRow& row, const Machine& machine,
                  std::vector<MachineFigure>& figures) {
  const std::optional<double> value = row.value(machine);
  if (value) figures.push_back({row.key, row.name, row.unit, *value});
}

}  // namespace

std::vector<MachineFigure> machine_figures(const Machine& machine, DType dtype) {
  std::vector<MachineFigure> figures = matmul_figure(machine, dtype, "GPU matrix products");
  for (const FigureRow& row : kFigures) {
    if (row.kind != FigureKind::kDetail) add_if_known(row, machine, figures);
  }
  return figures;
}

std::vector<MachineFigure> machine_rates(const Machine& machine, const Plan& plan) {
  std::vector<MachineFigure> rates = matmul_figure(machine, plan.dtype, "GPU matrix products");
  if (plan.products == ProductFormat::kFp8) {
    for (MachineFigure& rate : matmul_figure(machine, DType::kE4m3, "GPU products in fp8")) {
      rates.push_back(std::move(rate));
    }
  }
  for (const FigureRow& row : kFigures) {
    if (row.kind != FigureKind::kMemory) add_if_known(row, machine, rates);
  }
  return rates;
}

Machine with_figure(const Machine& machine, const MachineFigure& figure, double factor) {
  CHECK(factor > 0);
  Machine result = machine;
  for (const FigureRow& row : kFigures) {
    if (figure.key != row.key) continue;
    row.scale(result, factor);
    return result;
  }
  CHECK(figure.key.starts_with(kMatmul));
  for (const auto& [dtype, rate] : machine.gpu.matmul) {
    if (figure.key == kMatmul + std::string(to_string(dtype))) scale_matmul(result, dtype, factor);
  }
  return result;
}

}  // namespace ballast
