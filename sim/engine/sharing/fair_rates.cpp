#include "sim/engine/sharing/fair_rates.h"

#include <algorithm>

#include "sim/engine/sharing/fair_share.h"

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
    left_ = amounts_;
    for (size_t flow = 0; flow < running.size(); ++flow) {
      for (const Demand& demand : running[flow]) {
        if (demand.amount <= 0) continue;
        if (demand.held) {
          const auto capacity = static_cast<size_t>(demand.capacity);
          left_[capacity] =
              std::max(left_[capacity] - demand.amount, amounts_[capacity] * kLeastShare);
          continue;
        }
        uses_.push_back({static_cast<int32_t>(flow), demand.capacity, demand.amount});
      }
    }
    fair_share(left_, uses_, rates, filled_);
  }

 private:
  std::vector<double> amounts_;
  std::vector<double> left_;  // of them, beside what is held
  std::vector<double> filled_;
  std::vector<FlowUse> uses_;
};

}  // namespace

std::function<void(std::span<const std::span<const Demand>>, std::span<double>)> fair_rates(
    std::span<const Capacity> capacities) {
  return FairRates(capacities);
}

}  // namespace ballast
