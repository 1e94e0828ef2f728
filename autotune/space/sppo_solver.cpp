#include "autotune/space/sppo_solver.h"

#include <algorithm>

#include "autotune/space/layout.h"

namespace ballast {
namespace {

SolverChoice choice_of(const Plan& layout) {
  SolverChoice choice{layout.sequence, layout.pipeline, layout.subsequences};
  const int64_t sequences = layout.global_batch / layout.data;
  choice.idle_share = static_cast<double>(layout.pipeline - 1) /
                      static_cast<double>(sequences * layout.subsequences);
  return choice;
}

bool is_within_rules(const Plan& layout, const Machine& machine, int64_t most_stages) {
  const int64_t tokens = layout.sequence_length / layout.sequence / layout.subsequences;
  return choice_of(layout).is_of(layout) && layout.sequence <= machine.devices_per_node &&
         layout.pipeline <= most_stages && tokens >= kLeastPartTokens && tokens <= kMostPartTokens;
}

}  // namespace

bool SolverChoice::is_of(const Plan& layout) const {
  return layout.sequence == sequence && layout.pipeline == pipeline &&
         layout.subsequences == subsequences && layout.tensor == 1 && layout.context == 1 &&
         layout.virtual_pipeline == 1;
}

std::optional<SolverChoice> sppo_choice(const std::vector<Plan>& layouts, const Machine& machine) {
  for (const int64_t most_stages : {machine.devices_per_node, machine.devices}) {
    std::optional<SolverChoice> best;
    for (const Plan& layout : layouts) {
      if (!is_within_rules(layout, machine, most_stages)) continue;
      const SolverChoice choice = choice_of(layout);
      if (!best || choice.idle_share < best->idle_share) best = choice;
    }
    if (best) return best;
  }
  return std::nullopt;
}

}  // namespace ballast
