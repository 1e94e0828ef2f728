#include "cli/text/listing.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/text/tables.h"
#include "sim/base/error.h"

namespace ballast {

int run_listing(const std::string& verb, Words words, const Listing& listing, StoreFlag* store) {
  VerbParser parser(verb);
  OutputFlags output;
  std::string action = "list";
  std::optional<std::string> name;
  parser.app().add_option("ACTION", action, "list, or show with a name [list]");
  parser.app().add_option("NAME", name, "What to show: a shipped name or a file");
  parser.add(output, "");
  if (store != nullptr) parser.add(*store);
  if (listing.add_flags) listing.add_flags(parser);
  if (!parser.parse(words)) return kDone;
  if (listing.instead && listing.instead(output)) return kDone;

  if (action == "show") {
    if (!name) throw Error("ballast " + verb + " show", "no name is given", "add one of the list");
    fmt::print("{}\n", listing.show(name_meant("ballast " + verb + " show", *name, verb)));
    return kDone;
  }
  if (action == "list" && name) {
    throw Error("ballast " + verb + " list", "takes no name, and is given '" + *name + "'",
                "write ballast " + verb + " show " + *name);
  }
  if (action != "list") {
    throw Error("ballast " + verb, "'" + action + "' is not list or show",
                "write ballast " + verb + " show NAME");
  }
  if (listing.list) {
    fmt::print("{}", listing.list(output));
    return kDone;
  }
  if (output.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const Shipped& entry : listing.all()) {
      list.push_back({{"name", entry.name}, {"description", entry.description}});
    }
    fmt::print("{}\n", list.dump(1));
    return kDone;
  }
  Table table({{"name", true}, {"description", true}});
  for (const Shipped& entry : listing.all()) table.add({entry.name, entry.description});
  fmt::print("{}", table.text());
  return kDone;
}

}  // namespace ballast
