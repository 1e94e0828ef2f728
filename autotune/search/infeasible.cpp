#include "autotune/search/infeasible.h"

#include <algorithm>
#include <fmt/format.h>

#include "sim/engine/predict.h"

namespace ballast {

void Infeasible::refuse(const Plan& plan, int64_t count, const std::vector<PlacePeak>& peaks) {
  count_ += count;
  for (const PlacePeak& peak : peaks) {
    const Bytes excess = peak.arena - usable_[static_cast<size_t>(peak.place)];
    if (excess.count <= 0) continue;
    static constexpr std::string_view kNames[] = {"GPU memory", "CPU memory", "NVMe"};
    std::string name(kNames[static_cast<size_t>(peak.place)]);
    if (!peak.holders.empty()) {
      name += fmt::format(", mostly {}", to_string(peak.holders.front().category));
    }
    InfeasibleReason& reason = reasons_[name];
    reason.reason = name;
    const bool first = reason.count == 0;
    reason.count += count;
    if (first || excess < reason.excess) {
      reason.excess = excess;
      reason.example = plan;
      reason.detail = reason_not_to_fit(peaks, reason.example, machine_);
    }
    return;
  }
}

void Infeasible::refuse_for_devices(const Plan& plan, int64_t count) {
  count_ += count;
  InfeasibleReason& reason = reasons_["devices"];
  reason.reason = "devices";
  reason.count += count;
  reason.example = plan;
  reason.detail = fmt::format("the plan uses {} devices, and machine {} has {}; use fewer devices",
                              plan.devices, machine_.name, machine_.devices);
}

std::vector<InfeasibleReason> Infeasible::reasons() const {
  std::vector<InfeasibleReason> sorted;
  for (const auto& [name, reason] : reasons_) sorted.push_back(reason);
  std::stable_sort(
      sorted.begin(), sorted.end(),
      [](const InfeasibleReason& a, const InfeasibleReason& b) { return a.count > b.count; });
  return sorted;
}

}  // namespace ballast
