#include "sim/engine/checkpoint_cost.h"

#include <algorithm>
#include <cmath>

#include "sim/engine/cost.h"
#include "sim/engine/engine.h"

namespace ballast {

namespace {

// Devices that hold the same part of the state, of which one writes it.
int64_t copies_of(const Plan& plan) {
  const int64_t parts = plan.zero_stage > 0 ? plan.sharing() : plan.expert;
  return std::max<int64_t>(plan.replicas() / parts, 1);
}

// Passes over CPU memory for each byte that is written: it is read for its checksum, then copied
// into the system's cache (a read and a write), from which the disk takes it.
constexpr double kPassesByThread = 3;
constexpr double kSnapshotPasses = kPassesByThread + 1;
// A share of a capacity that is left in any case: what waits is never left without.
constexpr double kLeast = 0.05;

// By place, what of the optimizer's state lies there.
struct StateBytes {
  double gpu = 0, cpu = 0, nvme = 0;
};
StateBytes state_bytes(const Prediction& prediction) {
  StateBytes state;
  for (const PlacePeak& peak : prediction.peaks) {
    double bytes = 0;
    for (const Holder& holder : peak.holders) {
      const bool is_state =
          holder.category == Category::kMaster || holder.category == Category::kMoments;
      if (is_state) bytes += static_cast<double>(holder.bytes.count);
    }
    (peak.place == Place::kHbm    ? state.gpu
     : peak.place == Place::kDram ? state.cpu
                                  : state.nvme) += bytes;
  }
  return state;
}

// A device's part is copied by the threads of its optimizer and of the lanes, which rest: from its
// GPU over the link, from CPU memory by reading and writing it there, from NVMe at the rate at
// which that is read.
Duration copy_time(const CheckpointCost& cost, const Prediction& prediction,
                   const Machine& machine) {
  StateBytes state = state_bytes(prediction);
  if (state.gpu + state.cpu + state.nvme == 0) state.gpu = 1;  // the weights are the state
  const double all = state.gpu + state.cpu + state.nvme;
  const auto device = static_cast<double>(cost.device.count);
  const Cpu& cpu = machine.cpu;
  const int64_t threads = cpu.optimizer_threads + machine.gpu.compute_threads;
  const auto time = [&](double part, double rate) { return part / all * device / rate; };
  double seconds = time(state.gpu, machine.link.device_to_host.rate_at(device)) +
                   time(2 * state.cpu, bandwidth_of(cpu, threads).bytes_per_s);
  if (state.nvme > 0 && machine.nvme)
    seconds += time(state.nvme, machine.nvme->read.rate_at(device));
  return Duration::from_seconds(seconds);
}

// A step that begins with empty lanes has the next one's beginning to itself, and is longer by what
// successive steps overlap. Of a long step that repeats itself both ends are in the shorter one.
Duration refill_time(const Prediction& prediction) {
  const Prediction& whole = prediction.shorter ? *prediction.shorter : prediction;
  SimulateOptions once;
  once.max_steps = 1;
  once.record_steps = 0;
  const Timeline alone = simulate(whole.graph.step, whole.graph, whole.costs, once);
  return std::max(alone.step_time - whole.step_time, Duration{});
}

// A step of which a write takes a part of the CPU memory's bandwidth and, where its lanes are
// threads of this machine, of the cores.
Duration step_beside(const Prediction& prediction, const Plan& plan, const Machine& machine,
                     double bytes_per_s) {
  const auto costs_of = [&](const Prediction& simulated) {
    CostTable costs = simulated.costs;
    const auto lessen = [&](Capacity& capacity, double taken) {
      capacity.amount = std::max(capacity.amount - taken, kLeast * capacity.amount);
    };
    for (Capacity& capacity : costs.capacities) {
      if (capacity.name.starts_with("dram")) lessen(capacity, kSnapshotPasses * bytes_per_s);
      if (capacity.name.starts_with("cores")) {
        lessen(capacity,
               std::min(kPassesByThread * bytes_per_s / core_bandwidth(machine.cpu), 1.0));
      }
    }
    return costs;
  };
  return step_time_of(prediction, plan, costs_of);
}

}  // namespace

std::optional<CheckpointCost> checkpoint_cost(const Model& model, const Plan& plan,
                                              const Machine& machine) {
  if (plan.checkpoint_period_steps == 0) return std::nullopt;
  const int64_t values = plan.optimizer.sync == SyncMode::kDelay ? 4 : 3;
  CheckpointCost cost;
  cost.period_steps = plan.checkpoint_period_steps;
  cost.total = {parameter_count(model) * values * size_of(DType::kF32)};
  cost.device = {div_ceil(cost.total.count * copies_of(plan), plan.devices)};
  if (!machine.nvme || machine.nvme->write.empty()) return cost;
  const auto bytes = static_cast<double>(cost.device.count);
  cost.time = Duration::from_seconds(bytes / machine.nvme->write.rate_at(bytes));
  cost.time_per_step =
      Duration::from_seconds(cost.time->seconds() / static_cast<double>(cost.period_steps));
  return cost;
}

BackgroundCheckpoint background_checkpoint(const CheckpointCost& cost, const Prediction& prediction,
                                           const Plan& plan, const Machine& machine,
                                           std::optional<Duration> write) {
  BackgroundCheckpoint result;
  result.copy = copy_time(cost, prediction, machine);
  result.refill = refill_time(prediction);
  result.write = write ? write : cost.time;
  if (!result.write) return result;
  const double writing = result.write->seconds();
  const double step = prediction.step_time.seconds();
  if (writing > 0) {
    const double rate = static_cast<double>(cost.device.count) / writing;
    result.step_beside = step_beside(prediction, plan, machine, rate);
  } else {
    result.step_beside = prediction.step_time;
  }
  const double beside = std::max(result.step_beside->seconds(), step);
  const auto period = static_cast<double>(cost.period_steps);
  // Steps that the write lasts, at most all of the period; then training waits for the rest.
  const double slowed = std::min(writing / beside, period);
  const double waits = std::max(writing - period * beside, 0.0);
  const double rests = result.copy.seconds() + result.refill.seconds() + waits;
  result.overhead = (rests + slowed * (beside - step)) / (period * step);
  return result;
}

}  // namespace ballast
