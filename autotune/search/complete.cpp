#include "autotune/search/complete.h"

#include <fmt/format.h>

#include "sim/base/error.h"

namespace ballast {

bool has_auto(const Plan& plan) {
  return !plan.micro_batch || !plan.activations || !plan.optimizer.gpu_buckets ||
         !plan.weights.flow_share;
}

bool search_completes(const Plan& plan, const Stack& stack) {
  const bool split = plan.tensor * plan.pipeline * plan.sequence * plan.context * plan.expert > 1;
  const bool state_is_shared = plan.zero_stage == 1 || plan.zero_stage == 2;
  return stack.name == Stack{}.name && !split && (plan.replicas() == 1 || state_is_shared);
}

SearchOptions completing() {
  SearchOptions options;
  options.tolerance = 0.01;
  // Where memory is contended, bounds are too low to prove a best that was found at once.
  options.patience = 256;
  options.estimates = true;
  return options;
}

SearchResult search_open(const Model& model, const Plan& plan, const Machine& machine,
                         const Measurements* measurements, const SearchOptions& options) {
  OpenKnobs open;
  SearchResult result =
      search(model, plan, space_of(model, plan, open), machine, measurements, options);
  if (result.best || !result.complete() || plan.memory_reuse) return result;
  open.add(KnobId::kMemoryReuse);
  return search(model, plan, space_of(model, plan, open), machine, measurements, options);
}

Plan complete(const Model& model, const Plan& plan, const Machine& machine,
              const Measurements* measurements, const std::function<bool()>& interrupted) {
  if (!has_auto(plan)) return plan;
  SearchOptions options = completing();
  options.interrupted = interrupted;
  const SearchResult result = search_open(model, plan, machine, measurements, options);
  if (result.best) return result.best->plan;
  if (!result.complete()) {
    throw Error("the knobs that are \"auto\"", "the search of them was interrupted", "ask again");
  }
  CHECK(!result.reasons.empty());
  const InfeasibleReason& reason = result.reasons.front();
  throw Error(
      fmt::format("no plan fits machine {}", machine.name),
      fmt::format("of {} plans the nearest fails by this: {}", result.considered, reason.detail),
      "use a larger machine, more devices, a smaller model or a shorter sequence");
}

}  // namespace ballast
