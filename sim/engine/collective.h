// What a collective takes on a machine, and over which wires: NCCL's own choice of algorithm and
// protocol from its own table of latencies, corrected by what was measured on the machine.
//
// A group of P ranks lies on n nodes with r = P / n ranks in each (see CollectiveWork::stride).
//
//   ring    2 (P-1)/P of the buffer leaves each rank of an all-reduce, half of it in a
//           reduce-scatter or all-gather (Thakur, Rabenseifner and Gropp, 2005, section 4). Rings
//           cross from node to node over r network cards at once.
//   tree    all-reduce over nodes, hierarchical: the ranks of a node in a chain, the nodes in two
//           binary trees that each carry half (Sanders, Speck and Traeff, 2009): 2 (n-1)/n of the
//           buffer leaves each node, over r network cards, in 2 log2(n) hops between nodes.
//   switch  all-reduce inside a node whose switch adds (NVLS).
//   direct  all-to-all and send and receive: every message straight to its receiver.
//   once    all-to-all of tokens that go once to each rank (CollectiveWork::once): once to each
//           other node over the network, and from there or from home to each rank over the node's
//           wires, as many as have any of a token's experts on average (DeepEP, HybridEP).
//
// Each of the first two runs under one of three protocols (LL, LL128, Simple), which trade latency
// for bandwidth. The least time wins, as in ncclTopoTuneModel (NCCL 2.10, src/graph/tuning.cc),
// whose tables are the source of the constants too.
// Will not do: share a link between collectives (sim/engine/sharing/fair_share).
#pragma once

#include <string_view>

#include "sim/graph/core/graph.h"
#include "sim/spec/machine.h"

namespace ballast {

enum class Wires : uint8_t { kNone, kNode, kNetwork };
enum class CollectiveAlgorithm : uint8_t { kNone, kRing, kTree, kSwitch, kDirect };
std::string_view to_string(CollectiveAlgorithm value);

struct CollectiveTime {
  Duration time;
  Bytes sent;    // by each rank over `wires`
  Bytes passed;  // by each rank out of its memory over any wires
  Wires wires = Wires::kNone;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kNone;
  bool corrected = false;  // by a measured table of these wires
};

// Where the ranks of a group lie.
struct Layout {
  int64_t ranks = 1;
  int64_t per_node = 1;
  int64_t nodes = 1;
};

// The wires of a machine; null where there are none.
struct Wiring {
  const Interconnect* node = nullptr;
  const Interconnect* network = nullptr;
};

// Of the bandwidth of the wires inside a node and of those between nodes that is reached, each
// above 0 and at most 1.
struct WireShares {
  double node = 1;
  double network = 1;
};

// The formulas alone, before anything measured. Requires the wires between the ranks.
CollectiveTime formula_time(CollectiveKind kind, Bytes bytes, const Layout& layout,
                            const Wiring& wiring, const WireShares& shares);

// A group of one takes no time. Throws Error naming the operation and the key of the machine's file
// if the machine has no wires between the ranks.
CollectiveTime collective_time(const CollectiveWork& work, const Machine& machine,
                               const WireShares& shares);

// Share of the multiprocessors that a collective over these wires keeps from other work.
double multiprocessor_share(const CollectiveWork& work, Wires wires, const Machine& machine);

}  // namespace ballast
