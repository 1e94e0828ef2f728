#include "sim/engine/fair_rates.h"

#include "sim/engine/fair_share.h"

namespace ballast {
namespace {

class FairRates {
 public:
  explicit FairRates(std::span<const Capacity> capacities) : filled_(capacities.size()) {
    for (const Capacity& capacity : capacities) amounts_.push_back(capacity.amount);
  }

  void operator()(std::span<const std::span<const Demand>> running, std::span<double> rates) {
    CHECK(running.size() == rates.size());
    uses_.clear();
    for (size_t flow = 0; flow < running.size(); ++flow) {
      for (const Demand& demand : running[flow]) {
        if (demand.amount <= 0) continue;
        uses_.push_back({static_cast<int32_t>(flow), demand.capacity, demand.amount});
      }
    }
    fair_share(amounts_, uses_, rates, filled_);
  }

 private:
  std::vector<double> amounts_;
  std::vector<double> filled_;
  std::vector<FlowUse> uses_;
};

}  // namespace

std::function<void(std::span<const std::span<const Demand>>, std::span<double>)> fair_rates(
    std::span<const Capacity> capacities) {
  return FairRates(capacities);
}

}  // namespace ballast
