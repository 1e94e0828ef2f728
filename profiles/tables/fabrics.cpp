#include "profiles/tables/fabrics.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "profiles/json_reader.h"
#include "profiles/json_records.h"
#include "profiles/tables/load_once.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

constexpr const char* kFabricSchema = "ballast.fabric/1";
constexpr NumberRange kFabricRate{0, 1e15, true};
constexpr WholeRange kRankCount{1, 1 << 24};

std::optional<Interconnect> read_wires(JsonReader& owner, const std::string& key) {
  if (!owner.has(key)) return std::nullopt;
  JsonReader reader = owner.object(key);
  Interconnect wires;
  wires.bandwidth.value =
      Bandwidth::from_gb_per_s(reader.number("bandwidth_gb_per_s", kFabricRate));
  wires.latency.value = Duration::from_us(reader.number("latency_us", {0, 1e6}));
  if (reader.has("switch_reduction_gb_per_s")) {
    wires.switch_reduction.emplace().value =
        Bandwidth::from_gb_per_s(reader.number("switch_reduction_gb_per_s", kFabricRate));
  }
  reader.finish();
  return wires;
}

FabricSeries read_series(JsonReader reader) {
  FabricSeries series;
  series.kind = read_choice<CollectiveKind>(reader, "kind", kCollectiveKinds);
  series.ranks = reader.whole("ranks", {2, 1 << 24});
  series.nodes = reader.whole("nodes", kRankCount);
  if (series.ranks % series.nodes != 0) {
    reader.fail("ranks", fmt::format("cannot lie evenly on {} nodes", series.nodes),
                "give a multiple of nodes");
  }
  series.source = reader.text("source");
  const std::vector<double> bytes = reader.numbers("bytes", kFabricRate);
  const std::vector<double> us = reader.numbers("us", kFabricRate);
  if (bytes.size() != us.size()) {
    reader.fail("us", fmt::format("has {} numbers for {} sizes", us.size(), bytes.size()),
                "give one time for each size");
  }
  for (size_t i = 0; i < us.size(); ++i) {
    series.points.push_back({Bytes{std::llround(bytes[i])}, Duration::from_us(us[i])});
  }
  reader.finish();
  return series;
}

}  // namespace

FabricTables parse_fabric(std::string_view text, const std::string& source) {
  const Json document = parse_json(text, source);
  JsonReader reader(document, source, "");
  reader.choice("schema", {kFabricSchema});
  FabricTables tables;
  tables.name = reader.text("name");
  reader.text("description");
  tables.node = read_wires(reader, "node");
  tables.network = read_wires(reader, "network");
  for (JsonReader& one : reader.objects("series")) {
    tables.series.push_back(read_series(std::move(one)));
    const FabricSeries& last = tables.series.back();
    const bool in_node = last.ranks > last.nodes;
    if ((in_node && !tables.node) || (last.nodes > 1 && !tables.network)) {
      reader.fail("series",
                  fmt::format("{} needs wires that the fabric lacks", tables.series.size() - 1),
                  "give 'node' for several ranks in one, 'network' for several nodes");
    }
  }
  reader.finish();
  return tables;
}

std::shared_ptr<const FabricModel> load_fabric(const std::string& name) {
  return load_once<FabricModel>(name, "fabrics", parse_fabric);
}

}  // namespace ballast
