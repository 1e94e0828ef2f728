// `ballast knobs`: the table of what a plan says (sim/spec/knobs.h), for people, programs and
// docs/knobs.md.
#include "sim/spec/knobs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/flags/arguments.h"
#include "cli/text/tables.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

std::vector<std::string> names_of(const Knob& knob, std::span<const int64_t> choices) {
  std::vector<std::string> names;
  for (const int64_t choice : choices) names.emplace_back(knob.name_of(choice));
  return names;
}

// "1 to 1073741824 sequences", "keep, recompute, offload", or "true, false".
std::string legal_text(const Knob& knob) {
  std::string text;
  switch (knob.type) {
    case KnobType::kText:
      text = "a text";
      break;
    case KnobType::kBool:
      text = "true, false";
      break;
    case KnobType::kWhole:
    case KnobType::kBytes:
      text = fmt::format("{} to {}", knob.least, knob.most);
      if (!knob.unit.empty()) text += fmt::format(" {}", knob.unit);
      break;
    case KnobType::kShare:
      text = "0 to 1";
      break;
    case KnobType::kChoice:
    case KnobType::kFates:
      text = fmt::format("{}", fmt::join(names_of(knob, knob.choices), ", "));
      break;
    case KnobType::kGroup:
      text = "an object";
      break;
  }
  return knob.may_be_auto ? text + ", or auto" : text;
}

std::string default_text(const Knob& knob) {
  if (knob.type == KnobType::kFates) return "keep";
  const std::string text = text_of(knob, default_of(knob));
  return text.empty() ? "none" : text;
}

// What a search tries; "-" where it leaves the knob alone.
std::string tried_text(const Knob& knob) {
  if (knob.search == KnobSearch::kNone) return "-";
  std::vector<std::string> parts;
  if (!knob.tried.empty() && knob.choices.empty()) {
    parts.push_back(fmt::format("{} to {}", knob.tried.front(), knob.tried.back()));
  } else if (!knob.tried.empty()) {
    parts.push_back(fmt::format("{}", fmt::join(names_of(knob, knob.tried), ", ")));
  }
  if (!knob.tried_shares.empty()) {
    parts.push_back(fmt::format("{}", fmt::join(knob.tried_shares, ", ")));
  }
  if (!knob.tried_text.empty()) parts.emplace_back(knob.tried_text);
  return fmt::format("{}", fmt::join(parts, "; "));
}

std::string flag_text(const Knob& knob) {
  if (knob.type == KnobType::kFates) {
    return fmt::format("--set plan.{}.{}", knob.object(), to_string(saving_kinds().front()));
  }
  return knob.flag.name.empty() ? fmt::format("--set plan.{}", knob.path)
                                : std::string(knob.flag.name);
}

std::string help_text(const Knob& knob) {
  if (knob.matters.empty()) return std::string(knob.help);
  return fmt::format("{}. Matters {}", knob.help, knob.matters);
}

nlohmann::ordered_json json_of(const Knob& knob) {
  nlohmann::ordered_json json = {{"path", knob.path},
                                 {"group", to_string(knob.group)},
                                 {"type", to_string(knob.type)},
                                 {"values", legal_text(knob)},
                                 {"default", default_text(knob)},
                                 {"may_be_auto", knob.may_be_auto},
                                 {"searched", knob.search != KnobSearch::kNone},
                                 {"tried", tried_text(knob)}};
  json["flag"] = knob.flag.name.empty() ? nlohmann::ordered_json() : knob.flag.name;
  json["matters"] = knob.matters.empty() ? "always" : knob.matters;
  json["help"] = knob.help;
  return json;
}

void print_list() {
  Table table({{"knob", true}, {"default", true}, {"values", true}});
  for (const Knob& knob : knobs()) {
    table.add({std::string(knob.path), default_text(knob), legal_text(knob)});
  }
  fmt::print("{}", table.text());
}

void print_one(const Knob& knob) {
  Table table({{"knob", true}, {std::string(knob.path), true}});
  table.add({"what", std::string(knob.help)});
  table.add({"values", legal_text(knob)});
  table.add({"default", default_text(knob)});
  table.add({"matters", knob.matters.empty() ? "always" : std::string(knob.matters)});
  table.add({"searched", tried_text(knob)});
  table.add({"flag", flag_text(knob)});
  fmt::print("{}", table.text());
}

// The tables of docs/knobs.md, one for each group.
void print_markdown() {
  std::optional<KnobGroup> group;
  for (const Knob& knob : knobs()) {
    if (knob.group != group) {
      fmt::print("{}### {}\n\n", group ? "\n" : "", to_string(knob.group));
      fmt::print("| knob | values | default | a search tries | set by | what it is |\n");
      fmt::print("|---|---|---|---|---|---|\n");
      group = knob.group;
    }
    fmt::print("| `{}` | {} | {} | {} | `{}` | {} |\n", knob.path, legal_text(knob),
               default_text(knob), tried_text(knob), flag_text(knob), help_text(knob));
  }
}

const Knob& knob_named(const std::string& name) {
  const std::string path = name.starts_with("plan.") ? name.substr(5) : name;
  if (const Knob* knob = find_knob(path)) return *knob;
  throw Error("'" + name + "'", "is no knob of a plan", "ballast knobs lists them");
}

}  // namespace

int run_knobs(Words words) {
  VerbParser parser("knobs");
  OutputFlags output;
  std::string action = "list";
  std::optional<std::string> name;
  bool markdown = false;
  parser.app().add_option("ACTION", action, "list, or show with a name [list]");
  parser.app().add_option("NAME", name, "What to show: optimizer.cast");
  parser.app().add_flag("--markdown", markdown, "Print the tables of docs/knobs.md");
  parser.add(output, "");
  if (!parser.parse(words)) return kDone;
  const bool shows = action == "show";
  if (action != "list" && !shows) {
    throw Error("ballast knobs", "'" + action + "' is not list or show",
                "write ballast knobs show " + action);
  }
  if (shows != name.has_value()) {
    throw Error("ballast knobs " + action, shows ? "no name is given" : "takes no name",
                "write ballast knobs show optimizer.cast");
  }
  if (markdown && (shows || output.json)) {
    throw Error("ballast knobs", "--markdown prints the whole table as a page",
                "leave show and --json away");
  }
  if (markdown) {
    print_markdown();
  } else if (!output.json) {
    shows ? print_one(knob_named(*name)) : print_list();
  } else if (shows) {
    fmt::print("{}\n", json_of(knob_named(*name)).dump(1));
  } else {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const Knob& knob : knobs()) list.push_back(json_of(knob));
    fmt::print("{}\n", list.dump(1));
  }
  return kDone;
}

}  // namespace ballast
