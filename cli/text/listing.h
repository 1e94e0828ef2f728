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
  // What more a verb has: flags of its own, and what it does instead where they ask for it. Empty:
  // nothing.
  std::function<void(VerbParser& parser)> add_flags = nullptr;
  std::function<bool(const OutputFlags& output)> instead = nullptr;
  // The list as text or JSON, where it says more than names and descriptions.
  std::function<std::string(const OutputFlags& output)> list = nullptr;
};

// `store` is null where the things listed are never in a store.
int run_listing(const std::string& verb, Words words, const Listing& listing, StoreFlag* store);

}  // namespace ballast
