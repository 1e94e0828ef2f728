// What machines, models and strategies have in common: `list` (the default) and `show NAME`.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/flags/arguments.h"
#include "profiles/load.h"

namespace ballast {

struct Listing {
  std::function<std::vector<Shipped>()> all;
  std::function<std::string(const std::string& name)> show;  // JSON text of one
};

// `store` is null where the things listed are never in a store.
int run_listing(const std::string& verb, Words words, const Listing& listing, StoreFlag* store);

}  // namespace ballast
