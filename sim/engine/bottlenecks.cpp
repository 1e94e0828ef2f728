#include "sim/engine/bottlenecks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <numeric>

#include "sim/base/parallel.h"
#include "sim/engine/cost.h"

namespace ballast {
namespace {

// What a launch takes a framework's host: rates beside the machine's own.
struct HostTime {
  const char* key;
  const char* name;
  Duration StackConstants::* constant;
  Duration (*on)(const Cpu& cpu, const StackConstants& constants);
};
constexpr std::array<HostTime, 2> kHostTimes = {
    {{"stack.launch_us", "launches by the host", &StackConstants::launch, launch_on},
     {"stack.expert_launch_us", "launches of experts by the host", &StackConstants::expert_launch,
      expert_launch_on}}};

const HostTime* host_time_of(const MachineFigure& rate) {
  const auto* found = std::find_if(kHostTimes.begin(), kHostTimes.end(),
                                   [&](const HostTime& time) { return rate.key == time.key; });
  return found == kHostTimes.end() ? nullptr : found;
}

constexpr double kWorthSaying = 0.01;   // of a step: where all gain less, nothing of them ties
constexpr double kMostOfAll = 2.0 / 3;  // of what all gain: those that tie give it without the rest
constexpr double kMoreThanSum = 1.5;    // what those that tie give together, over one by one

// Of a list of things, those that are faster.
using Chosen = std::vector<bool>;
using GainOf = std::function<double(const Chosen&)>;

// The link as a whole stands for its two ways where everything is faster at once.
bool is_part_of_another(const MachineFigure& rate) {
  return rate.key == "machine.link.host_to_device_gb_per_s" ||
         rate.key == "machine.link.device_to_host_gb_per_s";
}

std::vector<bool> demanded(const CostTable& costs) {
  std::vector<bool> demanded(costs.capacities.size(), false);
  for (const OpCost& cost : costs.ops.kinds()) {
    for (int8_t i = 0; i < cost.demand_count; ++i) {
      demanded[static_cast<size_t>(cost.demands[static_cast<size_t>(i)].capacity)] = true;
    }
  }
  return demanded;
}

bool is_same(const CostTable& a, const CostTable& b) {
  const std::vector<bool> used = demanded(a);
  for (size_t c = 0; c < a.capacities.size(); ++c) {
    if (used[c] && a.capacities[c].amount != b.capacities[c].amount) return false;
  }
  return a.ops == b.ops;
}

class Study {
 public:
  explicit Study(const PredictedStep& step)
      : step_(step), rates_(machine_rates(step.machine, step.plan)) {
    for (const HostTime& time : kHostTimes) {
      const Duration value = time.on(step.machine.cpu, step.stack.constants);
      if (value.ps > 0) rates_.push_back({time.key, time.name, "us", value.us()});
    }
  }

  Bottlenecks run() {
    Bottlenecks result;
    add_rates(result);
    add_lanes(result);
    return result;
  }

 private:
  const Graph& graph() const { return step_.prediction.graph; }

  using CostsOf = std::function<CostTable(const Prediction&)>;

  double gain(const CostsOf& costs_of) const {
    return 1 - step_time_of(step_.prediction, step_.plan, costs_of).seconds() /
                   step_.prediction.step_time.seconds();
  }

  CostsOf with_rates(const Chosen& chosen) const {
    Machine machine = step_.machine;
    Stack stack = step_.stack;
    for (size_t i = 0; i < rates_.size(); ++i) {
      if (!chosen[i]) continue;
      if (const HostTime* time = host_time_of(rates_[i])) {
        Duration& constant = stack.constants.*time->constant;
        constant = constant * (1 / kFaster);
      } else {
        machine = with_figure(machine, rates_[i], kFaster);
      }
    }
    return [this, machine = std::move(machine),
            stack = std::move(stack)](const Prediction& simulated) {
      return costs_of(simulated, CostModel(machine, step_.plan, stack, step_.measurements));
    };
  }

  CostTable with_lanes(const Prediction& simulated, const std::vector<LaneGain>& groups,
                       const Chosen& chosen) const {
    CostTable costs = simulated.costs;
    std::vector<bool> faster(static_cast<size_t>(graph().lanes), false);
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (!chosen[i]) continue;
      for (const LaneId lane : groups[i].lanes) faster[static_cast<size_t>(lane)] = true;
    }
    std::vector<bool> seen(costs.ops.kinds().size(), false);
    for (size_t i = 0; i < costs.ops.size(); ++i) {
      const size_t kind = costs.ops.kind_at(i);
      if (seen[kind]) continue;
      seen[kind] = true;
      if (!faster[static_cast<size_t>(simulated.graph.step.ops[i].lane)]) continue;
      OpCost& cost = costs.ops.kinds()[kind];
      cost.alone = cost.alone * (1 / kFaster);
      for (Demand& demand : cost.demands) {
        if (demand.capacity < 0 || demand.held) continue;
        const Capacity& capacity = costs.capacities[static_cast<size_t>(demand.capacity)];
        if (!capacity.is_occupied) demand.amount *= kFaster;
      }
    }
    return costs;
  }

  void add_rates(Bottlenecks& result);
  void add_lanes(Bottlenecks& result) const;
  std::vector<LaneGain> groups() const;
  bool takes_time(const LaneGain& group) const;

  const PredictedStep& step_;
  std::vector<MachineFigure> rates_;
};

Chosen only(size_t count, size_t index) {
  Chosen chosen(count, false);
  chosen[index] = true;
  return chosen;
}

// Few without which most of what all together gain is lost.
std::optional<Tie> tie_among(const std::vector<std::string>& names,
                             const std::vector<double>& alone, double all, const GainOf& gain_of) {
  const size_t count = names.size();
  if (count < 2 || all < kWorthSaying) return std::nullopt;
  if (*std::max_element(alone.begin(), alone.end()) > all / 2) return std::nullopt;
  std::vector<double> without(count);
  parallel_for(count, hardware_threads(), [&](size_t i) {
    Chosen others(count, true);
    others[i] = false;
    without[i] = gain_of(others);
  });
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return without[a] < without[b]; });
  // Those that are needed least go first, as long as the rest gives most of it.
  Chosen chosen(count, true);
  double together = all;
  for (size_t k = count; k-- > 0;) {
    Chosen fewer = chosen;
    fewer[order[k]] = false;
    const double rest = gain_of(fewer);
    if (rest < kMostOfAll * all) continue;
    chosen = std::move(fewer);
    together = rest;
  }
  Tie tie{{}, together};
  double singly = 0;
  for (const size_t i : order) {
    if (!chosen[i]) continue;
    tie.names.push_back(names[i]);
    singly += std::max(alone[i], 0.0);
  }
  if (tie.names.size() < 2 || together < kMoreThanSum * singly) return std::nullopt;
  return tie;
}

void Study::add_rates(Bottlenecks& result) {
  const size_t known = rates_.size();
  std::vector<std::optional<double>> gains(known);
  parallel_for(known, hardware_threads(), [&](size_t i) {
    const auto costs_of = with_rates(only(known, i));
    CostTable of_step = costs_of(step_.prediction);
    if (is_same(step_.prediction.costs, of_step)) return;
    gains[i] = gain([&](const Prediction& simulated) {
      return &simulated == &step_.prediction ? std::move(of_step) : costs_of(simulated);
    });
  });
  // Whole ones, which together are everything.
  std::vector<size_t> whole;
  std::vector<std::string> names;
  std::vector<double> alone;
  for (size_t i = 0; i < known; ++i) {
    if (!gains[i]) continue;
    result.rates.push_back({rates_[i], *gains[i]});
    if (is_part_of_another(rates_[i])) continue;
    whole.push_back(i);
    names.push_back(rates_[i].name);
    alone.push_back(*gains[i]);
  }
  std::stable_sort(result.rates.begin(), result.rates.end(),
                   [](const RateGain& a, const RateGain& b) { return a.gain > b.gain; });
  if (whole.empty()) return;
  const GainOf gain_of = [&](const Chosen& chosen) {
    Chosen of_all(known, false);
    for (size_t i = 0; i < whole.size(); ++i) of_all[whole[i]] = chosen[i];
    return gain(with_rates(of_all));
  };
  result.all_rates = gain_of(Chosen(whole.size(), true));
  result.rate_tie = tie_among(names, alone, result.all_rates, gain_of);
}

// Lanes of operations that all last no time gain none.
bool Study::takes_time(const LaneGain& group) const {
  std::vector<bool> of_group(static_cast<size_t>(graph().lanes), false);
  for (const LaneId lane : group.lanes) of_group[static_cast<size_t>(lane)] = true;
  const CostTable& costs = step_.prediction.costs;
  for (size_t i = 0; i < costs.ops.size(); ++i) {
    const auto lane = static_cast<size_t>(graph().step.ops[i].lane);
    if (of_group[lane] && costs.ops[i].alone.ps > 0) return true;
  }
  return false;
}

// Of one device each lane. Of several each kind on all of them, and then each lane.
std::vector<LaneGain> Study::groups() const {
  const std::vector<LaneUse>& uses = step_.prediction.lanes;
  std::vector<LaneGain> kinds;
  std::vector<LaneGain> each;
  for (const LaneUse& use : uses) {
    each.push_back({lane_name(graph(), use.lane), {use.lane}, 1 - use.share, 0});
  }
  if (graph().lanes <= kLaneKinds) return each;
  for (int kind = 0; kind < kLaneKinds; ++kind) {
    LaneGain group;
    group.name = fmt::format("{} of all stages", to_string(static_cast<LaneKind>(kind)));
    for (const LaneUse& use : uses) {
      if (kind_of(use.lane) != static_cast<LaneKind>(kind)) continue;
      group.lanes.push_back(use.lane);
      group.idle += 1 - use.share;
    }
    if (group.lanes.empty()) continue;
    group.idle /= static_cast<double>(group.lanes.size());
    kinds.push_back(std::move(group));
  }
  return kinds;
}

void Study::add_lanes(Bottlenecks& result) const {
  result.lanes = groups();
  const size_t count = result.lanes.size();
  const GainOf gain_of = [&](const Chosen& chosen) {
    return gain(
        [&](const Prediction& simulated) { return with_lanes(simulated, result.lanes, chosen); });
  };
  std::vector<double> alone(count);
  parallel_for(count, hardware_threads(), [&](size_t i) {
    if (takes_time(result.lanes[i])) alone[i] = gain_of(only(count, i));
  });
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) {
    result.lanes[i].gain = alone[i];
    names.push_back(result.lanes[i].name);
  }
  result.all_lanes = gain_of(Chosen(count, true));
  result.lane_tie = tie_among(names, alone, result.all_lanes, gain_of);
}

}  // namespace

std::optional<Duration> step_time_on(const PredictedStep& step, const Machine& machine) {
  if (!shortfalls(step.prediction.peaks, machine).empty()) return std::nullopt;
  const CostModel costs(machine, step.plan, step.stack, step.measurements);
  return step_time_of(step.prediction, step.plan, costs);
}

Bottlenecks bottlenecks(const PredictedStep& step) {
  CHECK(step.prediction.fits);
  return Study(step).run();
}

}  // namespace ballast
