#include "cli/text/listing.h"

namespace ballast {

int run_strategies(Words words) {
  return run_listing(
      "strategies", words,
      {.all = shipped_strategies,
       .show = [](const std::string& name) { return strategy_json(load_strategy(name)); }},
      nullptr);
}

}  // namespace ballast
