#include "autotune/studies/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "autotune/studies/explain.h"
#include "sim/base/error.h"
#include "sim/engine/predict.h"

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

void scale(Interconnect& of, double factor) {
  scale(of.bandwidth, factor);
  if (of.switch_reduction) scale(*of.switch_reduction, factor);
  if (of.all_reduce) scale(of.all_reduce->bus, factor);
  scale(of.point_to_point, factor);
}

void scale_matmul(Machine& machine, DType dtype, double factor) {
  machine.gpu.matmul.at(dtype).value.flops_per_s *= factor;
  for (AttentionRates& rates : machine.gpu.attention) {
    scale(rates.forward, factor);
    scale(rates.backward, factor);
  }
}

void scale_link(Machine& machine, double factor) {
  scale(machine.link.host_to_device, factor);
  scale(machine.link.device_to_host, factor);
  scale(machine.link.both_total, factor);
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

// A figure that a machine has at most once: what it is worth, where the machine has it, and the
// machine with it changed.
struct FigureRow {
  const char* key;
  const char* name;
  const char* unit;
  std::optional<double> (*value)(const Machine& machine);
  void (*scale)(Machine& machine, double factor);
};

const FigureRow kFigures[] = {
    {"machine.gpu.memory_bandwidth_gb_per_s", "GPU memory bandwidth", "GB/s",
     [](const Machine& m) -> std::optional<double> {
       return m.gpu.memory_bandwidth.value.gb_per_s();
     },
     [](Machine& m, double factor) { scale(m.gpu.memory_bandwidth, factor); }},
    {"machine.gpu.memory_gb", "GPU memory", "GB",
     [](const Machine& m) -> std::optional<double> { return m.gpu.memory.value.gb(); },
     [](Machine& m, double factor) { scale(m.gpu.memory, factor); }},
    {"machine.link.gb_per_s", "link, both ways", "GB/s",
     [](const Machine& m) -> std::optional<double> { return plateau(m.link.host_to_device); },
     scale_link},
    {"machine.link.host_to_device_gb_per_s", "link to the GPU", "GB/s",
     [](const Machine& m) -> std::optional<double> { return plateau(m.link.host_to_device); },
     [](Machine& m, double factor) { scale(m.link.host_to_device, factor); }},
    {"machine.link.device_to_host_gb_per_s", "link to the CPU", "GB/s",
     [](const Machine& m) -> std::optional<double> { return plateau(m.link.device_to_host); },
     [](Machine& m, double factor) { scale(m.link.device_to_host, factor); }},
    {"machine.cpu.memory_bandwidth_gb_per_s", "CPU memory bandwidth", "GB/s",
     [](const Machine& m) -> std::optional<double> {
       return m.cpu.memory_bandwidth.value.gb_per_s();
     },
     scale_cpu_bandwidth},
    {"machine.cpu.memory_gb", "CPU memory", "GB",
     [](const Machine& m) -> std::optional<double> { return m.cpu.memory.value.gb(); },
     [](Machine& m, double factor) { scale(m.cpu.memory, factor); }},
    {"machine.cpu.adam", "Adam on the CPU", "1e9 parameters/s", fastest_adam, scale_adam},
    {"machine.nvme.read_gb_per_s", "NVMe, both ways", "GB/s",
     [](const Machine& m) -> std::optional<double> {
       if (!m.nvme) return std::nullopt;
       return plateau(m.nvme->read);
     },
     [](Machine& m, double factor) {
       scale(m.nvme->read, factor);
       scale(m.nvme->write, factor);
     }},
    {"machine.node.bandwidth_gb_per_s", "node", "GB/s",
     [](const Machine& m) -> std::optional<double> {
       if (!m.node || m.devices_per_node <= 1) return std::nullopt;
       return m.node->bandwidth.value.gb_per_s();
     },
     [](Machine& m, double factor) { scale(*m.node, factor); }},
    {"machine.network.bandwidth_gb_per_s", "network", "GB/s",
     [](const Machine& m) -> std::optional<double> {
       if (!m.network || m.devices <= m.devices_per_node) return std::nullopt;
       return m.network->bandwidth.value.gb_per_s();
     },
     [](Machine& m, double factor) { scale(*m.network, factor); }},
};

class Study {
 public:
  Study(const SensitivityQuestion& question, const Measurements* measurements,
        const SensitivityOptions& options, const Ask& ask)
      : question_(question), measurements_(measurements), options_(options), ask_(ask) {}

  // Nothing: interrupted before its points were known.
  std::optional<Sensitivity> of(const MachineFigure& figure) const {
    Sensitivity result;
    result.figure = figure;
    for (const double factor : options_.factors) {
      std::optional<SensitivityPoint> point = at(figure, factor);
      if (!point) return std::nullopt;
      result.points.push_back(*std::move(point));
    }
    result.elasticity = elasticity(result.points);
    result.switches_at = nearest_switch(figure, result.points);
    return result;
  }

 private:
  std::optional<SensitivityPoint> at(const MachineFigure& figure, double factor) const {
    SearchQuestion search = question_.search;
    search.machine = with_figure(search.machine, figure, factor);
    search.label = fmt::format("{} x {:.3g}", figure.name, factor);
    SensitivityPoint point;
    point.factor = factor;
    point.value = figure.value * factor;
    const Plan& same = question_.best.plan;
    const Prediction prediction = predict(search.model, same, search.machine, measurements_);
    if (prediction.fits) point.same_plan = prediction.step_time;
    const std::optional<SearchResult> found = ask_(search);
    if (!found || found->stop == SearchStop::kInterrupt) return std::nullopt;
    if (found->best) {
      point.step_time = found->best->step_time;
      point.differs = differing_knobs(found->best->plan, same);
    }
    // A search with a tolerance, or one that was stopped, may miss what is known already.
    if (point.same_plan && (!point.step_time || *point.same_plan <= *point.step_time)) {
      point.step_time = point.same_plan;
      point.differs.clear();
    }
    point.decided = point.step_time || found->complete();
    return point;
  }

  double elasticity(const std::vector<SensitivityPoint>& points) const {
    const double here = question_.best.step_time.seconds();
    struct End {
      double factor;
      double seconds;
    };
    End low{1, here};
    End high{1, here};
    for (const SensitivityPoint& point : points) {
      if (!point.step_time) continue;
      const End end{point.factor, point.step_time->seconds()};
      if (point.factor < 1) low = end;  // the last one below 1
      if (point.factor > 1 && high.factor == 1) high = end;
    }
    if (low.factor == high.factor) return 0;
    return std::log(high.seconds / low.seconds) / std::log(high.factor / low.factor);
  }

  bool is_switch(const SensitivityPoint& point) const {
    if (!point.step_time || point.differs.empty()) return false;
    return !point.same_plan ||
           point.same_plan->seconds() > (1 + options_.lead) * point.step_time->seconds();
  }

  std::optional<PlanSwitch> nearest_switch(const MachineFigure& figure,
                                           const std::vector<SensitivityPoint>& points) const {
    const SensitivityPoint* nearest = nullptr;
    for (const SensitivityPoint& point : points) {
      if (!is_switch(point)) continue;
      const bool nearer =
          !nearest || std::abs(std::log(point.factor)) < std::abs(std::log(nearest->factor));
      if (nearer) nearest = &point;
    }
    if (!nearest) return std::nullopt;
    double same = 1;  // the last factor on the way there at which this plan still wins
    for (const SensitivityPoint& point : points) {
      const bool between = nearest->factor < 1 ? point.factor < 1 && point.factor > nearest->factor
                                               : point.factor > 1 && point.factor < nearest->factor;
      const bool farther = std::abs(std::log(point.factor)) > std::abs(std::log(same));
      if (between && farther) same = point.factor;
    }
    SensitivityPoint other = *nearest;
    while (std::max(other.factor / same, same / other.factor) > options_.resolution) {
      const std::optional<SensitivityPoint> middle = at(figure, std::sqrt(same * other.factor));
      if (!middle) break;
      if (is_switch(*middle)) {
        other = *middle;
      } else {
        same = middle->factor;
      }
    }
    return PlanSwitch{other.factor, other.value, other.differs};
  }

  const SensitivityQuestion& question_;
  const Measurements* measurements_;
  const SensitivityOptions& options_;
  const Ask& ask_;
};

}  // namespace

std::vector<MachineFigure> machine_figures(const Machine& machine, DType dtype) {
  std::vector<MachineFigure> figures;
  const auto& matmul = machine.gpu.matmul;
  if (const auto rate = matmul.find(dtype); rate != matmul.end()) {
    figures.push_back({kMatmul + std::string(to_string(dtype)), "GPU matrix products", "TFLOP/s",
                       rate->second.value.tflops()});
  }
  for (const FigureRow& row : kFigures) {
    const std::optional<double> value = row.value(machine);
    if (value) figures.push_back({row.key, row.name, row.unit, *value});
  }
  return figures;
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

std::vector<Sensitivity> sensitivities(const SensitivityQuestion& question,
                                       const Measurements* measurements,
                                       const SensitivityOptions& options, const Ask& ask) {
  const Study study(question, measurements, options, ask);
  std::vector<Sensitivity> results;
  for (const MachineFigure& figure :
       machine_figures(question.search.machine, question.best.plan.dtype)) {
    std::optional<Sensitivity> one = study.of(figure);
    if (!one) break;
    results.push_back(*std::move(one));
  }
  std::stable_sort(results.begin(), results.end(), [](const Sensitivity& a, const Sensitivity& b) {
    return std::abs(a.elasticity) > std::abs(b.elasticity);
  });
  return results;
}

}  // namespace ballast
