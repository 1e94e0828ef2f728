#include <fmt/format.h>

#include "cli/flags/inputs.h"
#include "cli/text/listing.h"
#include "profiles/store.h"

namespace ballast {

int run_machines(Words words) {
  StoreFlag store;
  return run_listing(
      "machines", words,
      {.all =
           [&] {
             std::vector<Shipped> list = shipped_machines();
             if (const auto here = profile_of_here(store)) {
               list.push_back({kHere, "this machine, measured: " + here->description});
             }
             return list;
           },
       .show =
           [&](const std::string& name) {
             return machine_json(load_machine_or_here(name, store));
           }},
      &store);
}

}  // namespace ballast
