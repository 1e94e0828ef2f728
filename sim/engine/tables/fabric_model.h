// What collectives were measured to take on a fabric (nodes and the network between them), as a
// ratio to a simple model (a start, and the bytes at the rate of the narrowest wires),
// interpolated by bytes, ranks and nodes (correction.h). The model has none of the steps between
// protocols that NCCL's own formulas have (sim/engine/collective.h): they lie elsewhere on every
// fabric, and points tell where.
//
// The ratio is of the fabric's own bandwidths, which its tables name, so that a machine with others
// (an override, a study) scales with them.
// Will not do: read files (profiles/tables/fabrics.cpp).
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "sim/engine/collective.h"
#include "sim/engine/tables/correction.h"

namespace ballast {

struct FabricPoint {
  Bytes bytes;  // as CollectiveWork::bytes
  Duration time;
};
// One kind over `ranks` devices of `nodes` nodes.
struct FabricSeries {
  CollectiveKind kind{};
  int64_t ranks = 0;
  int64_t nodes = 1;
  std::string source;
  std::vector<FabricPoint> points;
};
struct FabricTables {
  std::string name;
  std::optional<Interconnect> node, network;  // bandwidth, latency and the switch's alone
  std::vector<FabricSeries> series;
};

class FabricModel {
 public:
  explicit FabricModel(FabricTables tables);

  const FabricTables& tables() const { return tables_; }
  // On wires whose bandwidths may be other ones than the fabric's. None where this kind was
  // not measured on these wires, inside or between nodes: rings of NCCL pay for every hop, which an
  // all-reduce over trees says nothing of.
  std::optional<Duration> time(CollectiveKind kind, Bytes bytes, const Layout& layout,
                               const Wiring& wiring) const;
  // On the fabric's own.
  Wiring wiring() const;

 private:
  FabricTables tables_;
  // Inside a node and between nodes; all kinds share their points.
  std::array<Correction, 2> corrections_;
  std::array<std::array<bool, kCollectiveKinds>, 2> measured_{};
};

}  // namespace ballast
