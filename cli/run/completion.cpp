#include "cli/run/completion.h"

#include <utility>

#include "autotune/complete/complete.h"

namespace ballast {

CompletedCase complete_case(Case of, const Measurements& measurements) {
  Completed completed = complete({of.model, of.plan, of.machine, of.stack}, &measurements);
  of.plan = std::move(completed.plan);
  return {std::move(of), std::move(completed.prediction)};
}

}  // namespace ballast
