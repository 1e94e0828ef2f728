#include "cli/report/origin.h"

#include <algorithm>
#include <cctype>
#include <ctime>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/flags/arguments.h"
#include "cli/report/page.h"
#include "sim/base/atomic_file.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string quoted(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("-_./=:,+@%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

// Whatever below `json` has a source, by its path.
void collect_figures(const OrderedJson& json, const std::string& path, OrderedJson& figures) {
  if (json.is_object() && json.contains("source") && json["source"].is_string()) {
    OrderedJson figure = {{"key", path}, {"value", json.value("value", OrderedJson())}};
    for (const auto& item : json.items()) {
      if (!item.value().is_array() || item.value().empty()) continue;
      // Of a curve the last list holds its rates.
      figure["key"] = path + "." + item.key();
      figure["value"] = *std::max_element(item.value().begin(), item.value().end());
      figure["points"] = item.value().size();
    }
    figure["measured"] = json.value("measured", false);
    figure["source"] = json["source"];
    figures.push_back(figure);
    return;
  }
  if (!json.is_structured()) return;
  for (const auto& item : json.items()) {
    collect_figures(item.value(), path.empty() ? item.key() : path + "." + item.key(), figures);
  }
}

}  // namespace

std::string command_line(std::string_view verb, Words words) {
  std::string line = fmt::format("ballast {}", verb);
  for (const std::string& word : words) line += " " + quoted(word);
  return line;
}

OrderedJson origin_json(const std::string& command) {
  return {{"command", command}, {"version", program_version()}, {"commit", program_commit()}};
}

OrderedJson machine_figures_json(const Machine& machine) {
  OrderedJson figures = OrderedJson::array();
  collect_figures(OrderedJson::parse(machine_json(machine)), "", figures);
  return {{"name", machine.name}, {"description", machine.description}, {"figures", figures}};
}

OrderedJson machines_json(const std::vector<std::string>& names, const StoreFlag& store) {
  OrderedJson machines = OrderedJson::array();
  for (const std::string& name : names) {
    try {
      machines.push_back(machine_figures_json(load_machine_or_here(name, store)));
    } catch (const Error& error) {
      machines.push_back({{"name", name}, {"missing", error.what()}});
    }
  }
  return machines;
}

void write_page(const PageFile& file, OrderedJson data) {
  const std::string now = fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr)));
  data["page"] = origin_json(file.command);
  data["page"]["created_utc"] = now;
  ReportText text;
  text.title = file.title;
  text.footer = fmt::format("Ballast {}{}{}, {}", program_version(),
                            program_commit().empty() ? "" : " ", program_commit(), now);
  atomic_write(file.path, report_page(text, data));
}

}  // namespace ballast
