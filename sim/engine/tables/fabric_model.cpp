#include "sim/engine/tables/fabric_model.h"

#include <algorithm>
#include <cmath>

namespace ballast {
namespace {

// Axes: octaves of bytes, of ranks in a node, of nodes; the kind. Sources list sizes by factors of
// two, which are thus an eighth apart.
constexpr TablePlace kTableReach = {8, 2.5, 4, 0, 2};

bool is_direct(CollectiveKind kind) {
  return kind == CollectiveKind::kAllToAll || kind == CollectiveKind::kSendReceive;
}

// Between nodes a ring's bytes count by card: groups of one rank a node load each card with what
// eight times as much does over eight ranks, and tables are mostly of whole nodes.
TablePlace table_place(CollectiveKind kind, Bytes bytes, const Layout& layout) {
  const int64_t cards = layout.nodes > 1 && !is_direct(kind) ? layout.per_node : 1;
  return {std::log2(static_cast<double>(std::max<int64_t>(bytes.count, 1))) -
              std::log2(static_cast<double>(cards)),
          std::log2(static_cast<double>(layout.per_node)),
          std::log2(static_cast<double>(layout.nodes)), 0, static_cast<double>(kind)};
}

// Assumed: the order of what NCCL takes for a byte in a node, and between nodes for each doubling.
constexpr double kStartUs = 20;
constexpr double kHopUs = 20;

Duration modelled(CollectiveKind kind, Bytes bytes, const Layout& layout, const Wiring& wiring) {
  const auto ranks = static_cast<double>(layout.ranks);
  double rate = 0;
  if (layout.per_node > 1) rate = wiring.node->bandwidth.value.bytes_per_s;
  double us = kStartUs;
  if (layout.nodes > 1) {
    const double card = wiring.network->bandwidth.value.bytes_per_s;
    // Rings leave a node over all of its cards; messages leave their own rank's.
    const double out = is_direct(kind) ? card : card * static_cast<double>(layout.per_node);
    rate = rate > 0 ? std::min(rate, out) : out;
    us += kHopUs * std::log2(static_cast<double>(layout.nodes));
  }
  const double rounds = kind == CollectiveKind::kAllReduce ? 2 : 1;
  const double sent = static_cast<double>(bytes.count) * rounds * (ranks - 1) / ranks;
  return Duration::from_us(us) + Duration::from_seconds(sent / rate);
}

}  // namespace

FabricModel::FabricModel(FabricTables tables) : tables_(std::move(tables)) {
  std::array<std::vector<Correction::Point>, 2> points;
  for (const FabricSeries& series : tables_.series) {
    const Layout layout{series.ranks, div_exact(series.ranks, series.nodes), series.nodes};
    const size_t across = series.nodes > 1;
    for (const FabricPoint& point : series.points) {
      const Duration model = modelled(series.kind, point.bytes, layout, wiring());
      points[across].push_back(
          {table_place(series.kind, point.bytes, layout), point.time.seconds() / model.seconds()});
      measured_[across][static_cast<size_t>(series.kind)] = true;
    }
  }
  for (size_t across = 0; across < 2; ++across) {
    corrections_[across] = Correction(std::move(points[across]), kTableReach);
  }
}

Wiring FabricModel::wiring() const {
  return {tables_.node ? &*tables_.node : nullptr, tables_.network ? &*tables_.network : nullptr};
}

std::optional<Duration> FabricModel::time(CollectiveKind kind, Bytes bytes, const Layout& layout,
                                          const Wiring& wiring) const {
  const size_t across = layout.nodes > 1;
  if (!measured_[across][static_cast<size_t>(kind)]) return std::nullopt;
  const Correction& correction = corrections_[across];
  return modelled(kind, bytes, layout, wiring) *
         correction.ratio_at(table_place(kind, bytes, layout));
}

}  // namespace ballast
