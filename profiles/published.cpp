#include "profiles/published.h"

#include <fmt/format.h>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "profiles/load.h"
#include "profiles/names/clusters.h"
#include "profiles/published_reader.h"
#include "profiles/shipped.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

constexpr const char* kPublishedSchema = "ballast.published/1";

PublishedCase read_case(const Json& document, const std::string& source) {
  JsonReader reader(document, source, "");
  PublishedCase result;
  result.id = reader.text("id");
  result.machine = reader.text("machine");
  result.stack = reader.text("stack");
  if (reader.raw("model").is_string()) {
    result.model = load_model(reader.text("model"));
  } else {
    read_model(reader.object("model"), result);
  }
  read_run(reader.object("run"), result, source + ": run");
  result.plan.model = result.id;
  result.plan.machine = result.machine;
  result.model.max_positions = result.plan.sequence_length;
  read_measured(reader.object("measured"), result);
  const std::vector<std::string> ways = {"text", "table", "figure", "log", "csv", "derived"};
  result.read = ways[reader.choice("read", ways)];
  if (reader.has("note")) result.note = reader.text("note");
  reader.finish();
  check(result.plan, result.model);
  return result;
}

// The id of a case even where the rest of it is not one.
std::string id_of(const Json& document, size_t index) {
  const bool named = document.is_object() && document.contains("id") && document["id"].is_string();
  return named ? document["id"].get<std::string>() : fmt::format("case {}", index + 1);
}

PublishedEntry read_entry(const Json& document, const std::string& file, size_t index) {
  PublishedEntry entry;
  entry.id = id_of(document, index);
  try {
    entry.published = read_case(document, file + ": case " + in_quotes(entry.id));
  } catch (const Error& error) {
    entry.error = error.what();
    // A plan that cannot be run is refused without the name of its file.
    if (!entry.error.starts_with(file)) {
      entry.error = file + ": case " + in_quotes(entry.id) + ": " + entry.error;
    }
  }
  return entry;
}

}  // namespace

PublishedFile parse_published(std::string_view text, const std::string& file) {
  const Json document = parse_json(text, file);
  JsonReader reader(document, file, "");
  reader.choice("schema", {kPublishedSchema});
  PublishedFile result;
  result.path = file;
  result.title = reader.text("title");
  result.source = reader.text("source");
  if (reader.has("notes")) result.notes = reader.texts("notes");
  const Json& cases = reader.raw("cases");
  if (!cases.is_array() || cases.empty()) {
    reader.fail("cases", "must be a list of cases", "write it as [{...}, {...}]");
  }
  reader.finish();
  std::set<std::string> ids;
  std::map<std::string, std::string> frameworks;  // by the name in the file, read once each
  for (size_t i = 0; i < cases.size(); ++i) {
    result.entries.push_back(read_entry(cases[i], file, i));
    PublishedEntry& entry = result.entries.back();
    if (entry.published) {
      const auto [framework, is_new] = frameworks.try_emplace(entry.published->stack);
      if (is_new) framework->second = framework_of(entry.published->stack, result.source);
      entry.published->stack = framework->second;
      entry.published->machine = entry.published->plan.machine =
          cluster_of(entry.published->machine, result.source);
    }
    if (!ids.insert(entry.id).second) {
      entry.published.reset();
      entry.error = file + ": case " + in_quotes(entry.id) + ": its id is taken; rename it";
    }
  }
  return result;
}

PublishedFile load_published(const std::string& path) {
  const Found found = find_file(path, "published");
  return parse_published(read_text_file(found.path), found.path);
}

std::vector<std::string> shipped_published() {
  std::vector<std::string> paths;
  for (const std::string& name : shipped_names("published")) {
    const std::string path = find_file(name, "published").path;
    const Json document = parse_json(read_text_file(path), path);
    if (document.contains("schema") && document["schema"] == kPublishedSchema)
      paths.push_back(path);
  }
  return paths;
}

}  // namespace ballast
