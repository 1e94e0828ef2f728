#include "sim/engine/collective.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <fmt/format.h>
#include <optional>

#include "sim/engine/tables/fabric_model.h"

namespace ballast {
namespace {

// What a protocol adds to the fastest one (LL), and what it leaves of the bandwidth: differences
// and ratios of the tables in NCCL's tuning.cc. A hop between nodes of a tree includes the time of
// one chunk.
struct Protocol {
  double ring_base_us, tree_base_us;
  double ring_node_us, ring_network_us;
  double tree_node_us, tree_network_us;
  double ring_share, tree_share;
};
constexpr std::array<Protocol, 3> kProtocols = {{
    {3.6, 4.4, 0.0, 0.0, 0.0, 2.3, 1.0 / 4, 0.9 / 3.8},  // LL
    {10.0, 4.4, 1.4, 1.3, 0.7, 5.8, 0.92, 0.9 * 0.915},  // LL128
    {8.4, 0.0, 2.9, 6.9, 27.5, 47.3, 1.0, 0.9},          // Simple
}};
constexpr const Protocol& kSimple = kProtocols[2];
// Of an all-reduce in the switch, which runs under Simple only. Assumed: eight H200 take 29 us
// beyond the transfer for 1 MB (profiles/published/hardware.json), of which the kernel's start is a
// part.
constexpr double kSwitchLatencyUs = 25;

Layout layout_of(const CollectiveWork& work, const Machine& machine) {
  CHECK(work.ranks >= 1 && work.stride >= 1);
  const int64_t per_node =
      std::clamp<int64_t>(machine.devices_per_node / work.stride, 1, work.ranks);
  return {work.ranks, per_node, div_ceil(work.ranks, per_node)};
}

double share_sent(const Layout& layout, int64_t rounds) {
  return static_cast<double>(rounds * (layout.ranks - 1)) / static_cast<double>(layout.ranks);
}

int64_t depth_of_tree(int64_t nodes) {
  return static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(nodes - 1)));
}

Bytes scaled(Bytes bytes, double factor) {
  return {std::llround(static_cast<double>(bytes.count) * factor)};
}

// Share of the ways to take `taken` of `all` that take none of `these`.
double share_without(int64_t all, int64_t these, int64_t taken) {
  double share = 1;
  for (int64_t i = 0; i < taken; ++i) {
    share *=
        static_cast<double>(std::max<int64_t>(all - these - i, 0)) / static_cast<double>(all - i);
  }
  return share;
}

// How many of `places`, each with as many experts, have any of a token's, on average.
double places_of_token(const TokenRouting& routing, int64_t places) {
  const auto all = static_cast<double>(places);
  const int64_t groups = std::max<int64_t>(routing.groups, 1);
  if (groups == 1 || places <= groups) {
    // Where a place is whole groups, each group that was chosen has an expert of the token.
    const int64_t units = groups == 1 ? routing.experts : groups;
    const int64_t chosen = groups == 1 ? routing.per_token : routing.chosen_groups;
    return all * (1 - share_without(units, div_ceil(units, places), chosen));
  }
  const int64_t candidates = routing.experts / groups * routing.chosen_groups;
  const double near =
      all * static_cast<double>(routing.chosen_groups) / static_cast<double>(groups);
  const int64_t each = div_ceil(routing.experts, places);
  return near * (1 - share_without(candidates, each, routing.per_token));
}

// The formulas, on the wires of one group.
class Formulas {
 public:
  Formulas(const Wiring& wiring, const Layout& layout, const WireShares& shares)
      : wiring_(wiring), layout_(layout), shares_(shares) {}

  CollectiveTime best(CollectiveKind kind, Bytes bytes) const {
    switch (kind) {
      case CollectiveKind::kAllReduce:
        return all_reduce(bytes);
      case CollectiveKind::kReduceScatter:
      case CollectiveKind::kAllGather:
        return ring(bytes, {1, share_sent(layout_, 1)});
      case CollectiveKind::kBroadcast:
        return ring(bytes, {1, 1.0});
      case CollectiveKind::kAllToAll:
        return all_to_all(bytes);
      case CollectiveKind::kSendReceive:
        return send(bytes);
    }
    CHECK(false);
    return {};
  }

  CollectiveTime tokens(Bytes bytes, const TokenRouting& routing) const {
    const double tokens = static_cast<double>(bytes.count) / static_cast<double>(routing.per_token);
    // One of so many copies needs no wires: it is where it has to be.
    const auto moved = [&](int64_t places, int64_t alike) {
      const auto of = static_cast<double>(alike);
      return Bytes{std::llround(tokens * places_of_token(routing, places) * (of - 1) / of)};
    };
    return all_to_all(moved(layout_.ranks, layout_.per_node), moved(layout_.nodes, layout_.nodes));
  }

  CollectiveTime all_reduce(Bytes bytes) const {
    CollectiveTime best = ring(bytes, {2, share_sent(layout_, 2)});
    const auto consider = [&](const CollectiveTime& other) {
      if (other.time < best.time) best = other;
    };
    if (layout_.nodes > 1) consider(tree(bytes));
    if (layout_.nodes == 1 && wiring_.node->switch_reduction) consider(in_switch(bytes));
    return best;
  }

 private:
  struct Rounds {
    int64_t count = 1;  // trips around the ring
    double sent = 0;    // of the buffer, by each rank
  };

  bool crosses() const { return layout_.nodes > 1; }
  Wires wires() const { return crosses() ? Wires::kNetwork : Wires::kNode; }
  double node_us() const { return wiring_.node ? wiring_.node->latency.value.us() : 0; }
  double network_us() const { return wiring_.network ? wiring_.network->latency.value.us() : 0; }

  // Bytes per second that all network cards of the group's ranks in one node carry.
  double cards() const {
    return static_cast<double>(layout_.per_node) * shares_.network *
           wiring_.network->bandwidth.value.bytes_per_s;
  }
  double node_rate() const { return wiring_.node->bandwidth.value.bytes_per_s * shares_.node; }
  // Bus bandwidth of a ring through all ranks.
  double ring_rate() const {
    if (!crosses()) return node_rate();
    return layout_.per_node > 1 ? std::min(cards(), node_rate()) : cards();
  }
  // What leaves a node, by each of its cards.
  Bytes by_card(Bytes bytes) const { return {div_ceil(bytes.count, layout_.per_node)}; }

  CollectiveTime ring(Bytes bytes, const Rounds& rounds) const {
    const Bytes passed = scaled(bytes, rounds.sent);
    const auto between_nodes = static_cast<double>(rounds.count * (layout_.nodes - 1));
    const auto in_nodes = static_cast<double>(rounds.count * (layout_.ranks - layout_.nodes));
    std::optional<Duration> best;
    for (const Protocol& protocol : kProtocols) {
      const double latency = protocol.ring_base_us +
                             in_nodes * (node_us() + protocol.ring_node_us) +
                             between_nodes * (network_us() + protocol.ring_network_us);
      const Bandwidth rate{ring_rate() * protocol.ring_share};
      const Duration time = Duration::from_us(latency) + passed / rate;
      best = std::min(best.value_or(time), time);
    }
    const Bytes sent = crosses() ? by_card(passed) : passed;
    return {*best, sent, passed, wires(), CollectiveAlgorithm::kRing};
  }

  CollectiveTime tree(Bytes bytes) const {
    const auto nodes = static_cast<double>(layout_.nodes);
    const Bytes leaves_node = scaled(bytes, 2 * (nodes - 1) / nodes);
    const Bytes passed = bytes * 2;  // up the chain of the node, and down
    const auto chain = static_cast<double>(layout_.per_node - 1);
    const auto depth = static_cast<double>(depth_of_tree(layout_.nodes));
    std::optional<Duration> best;
    for (const Protocol& protocol : kProtocols) {
      const double latency = protocol.tree_base_us +
                             2 * chain * (node_us() + protocol.tree_node_us) +
                             2 * depth * (network_us() + protocol.tree_network_us);
      const double share = protocol.tree_share;
      Duration transfer = leaves_node / Bandwidth{cards() * share};
      if (chain > 0) transfer = std::max(transfer, passed / Bandwidth{node_rate() * share});
      best = std::min(best.value_or(Duration::from_us(latency) + transfer),
                      Duration::from_us(latency) + transfer);
    }
    return {*best, by_card(leaves_node), passed, Wires::kNetwork, CollectiveAlgorithm::kTree};
  }

  CollectiveTime in_switch(Bytes bytes) const {
    const double rate = wiring_.node->switch_reduction->value.bytes_per_s * shares_.node;
    const Duration time = Duration::from_us(kSwitchLatencyUs) +
                          scaled(bytes, share_sent(layout_, 2)) / Bandwidth{rate};
    // The switch reads every rank's buffer and sends each rank the sums that it stores.
    const auto ranks = static_cast<double>(layout_.ranks);
    const Bytes sent = scaled(bytes, (ranks + 1) / ranks);
    return {time, sent, sent, Wires::kNode, CollectiveAlgorithm::kSwitch};
  }

  Bandwidth message_rate(const Interconnect& wires, double share, Bytes message) const {
    const double rate = wires.point_to_point.empty()
                            ? wires.bandwidth.value.bytes_per_s
                            : wires.point_to_point.rate_at(static_cast<double>(message.count));
    return {rate * share};
  }

  CollectiveTime all_to_all(Bytes bytes) const {
    const Bytes message{div_ceil(bytes.count, layout_.ranks)};
    return all_to_all(message * (layout_.per_node - 1),
                      message * (layout_.ranks - layout_.per_node));
  }

  // The messages inside the node and those between nodes move at the same time.
  CollectiveTime all_to_all(Bytes near, Bytes far) const {
    Duration time;
    if (near.count > 0) {
      const Bytes message{div_ceil(near.count, layout_.per_node - 1)};
      time = near / message_rate(*wiring_.node, shares_.node, message);
    }
    if (far.count > 0) {
      const Bytes message{div_ceil(far.count, layout_.ranks - layout_.per_node)};
      time = std::max(time, far / message_rate(*wiring_.network, shares_.network, message));
    }
    return {time + hop(), crosses() ? far : near, near + far, wires(),
            CollectiveAlgorithm::kDirect};
  }

  CollectiveTime send(Bytes bytes) const {
    const Bandwidth rate = crosses() ? message_rate(*wiring_.network, shares_.network, bytes)
                                     : message_rate(*wiring_.node, shares_.node, bytes);
    return {bytes / rate + hop(), bytes, bytes, wires(), CollectiveAlgorithm::kDirect};
  }

  // Of one message under Simple, its kernel's start included.
  Duration hop() const {
    const double us =
        crosses() ? network_us() + kSimple.ring_network_us : node_us() + kSimple.ring_node_us;
    return Duration::from_us(kSimple.ring_base_us + us);
  }

  const Wiring& wiring_;
  const Layout& layout_;
  WireShares shares_;
};

Wiring wiring_of(const Machine& machine) {
  return {machine.node ? &*machine.node : nullptr, machine.network ? &*machine.network : nullptr};
}

// Measured over computed time of an all-reduce of `bytes`, where the machine has a table.
double correction(const AllReduceTable& table, const Machine& machine, Bytes bytes) {
  const Layout layout{table.ranks, div_exact(table.ranks, table.nodes), table.nodes};
  Curve ratio;
  for (const Curve::Point& point : table.bus.points) {
    const Bytes size{std::llround(point.size)};
    const double measured = point.size * share_sent(layout, 2) / point.rate;
    const CollectiveTime formula =
        formula_time(CollectiveKind::kAllReduce, size, layout, wiring_of(machine), {});
    ratio.points.push_back({point.size, measured / formula.time.seconds()});
  }
  return ratio.rate_at(static_cast<double>(bytes.count));
}

// The wires that a group needs must be there: the network for several nodes, the node's own for
// several ranks in one.
void check_wires(const CollectiveWork& work, const Layout& layout, const Machine& machine) {
  const auto fail = [&](const char* key, const char* between) {
    throw Error(fmt::format("machine {}: {}", machine.name, key),
                fmt::format("is missing, but {} of {} ranks that lie {} apart moves data "
                            "between {}",
                            to_string(work.kind), work.ranks, work.stride, between),
                fmt::format("add '{}' with its bandwidth_gb_per_s and latency_us to the machine's "
                            "file, or use fewer devices",
                            key));
  };
  if (layout.nodes > 1 && !machine.network) fail("network", "nodes");
  if (layout.per_node > 1 && !machine.node) fail("node", "the devices of a node");
}

}  // namespace

std::string_view to_string(CollectiveAlgorithm value) {
  static constexpr std::array<std::string_view, 5> names = {"none", "ring", "tree", "switch",
                                                            "direct"};
  return names.at(static_cast<size_t>(value));
}

CollectiveTime formula_time(CollectiveKind kind, Bytes bytes, const Layout& layout,
                            const Wiring& wiring, const WireShares& shares) {
  return Formulas(wiring, layout, shares).best(kind, bytes);
}

CollectiveTime collective_time(const CollectiveWork& work, const Machine& machine,
                               const WireShares& shares) {
  CHECK(shares.node > 0 && shares.node <= 1);
  CHECK(shares.network > 0 && shares.network <= 1);
  if (work.ranks == 1) return {};
  const Layout layout = layout_of(work, machine);
  check_wires(work, layout, machine);
  const Wiring wiring = wiring_of(machine);
  CollectiveTime result = work.once.experts > 0
                              ? Formulas(wiring, layout, shares).tokens(work.bytes, work.once)
                              : formula_time(work.kind, work.bytes, layout, wiring, shares);
  const Interconnect& wires = layout.nodes > 1 ? *machine.network : *machine.node;
  if (wires.fabric_model) {
    const auto measured = wires.fabric_model->time(work.kind, work.bytes, layout, wiring);
    if (measured) {
      // A share of the bandwidth leaves the latency.
      const Duration whole = formula_time(work.kind, work.bytes, layout, wiring, {}).time;
      result.time = *measured * (result.time.seconds() / whole.seconds());
      result.corrected = true;
      return result;
    }
  }
  if (result.algorithm == CollectiveAlgorithm::kDirect) {
    result.corrected = wires.point_to_point.measured;
    return result;
  }
  if (wires.all_reduce) {
    result.time = result.time * correction(*wires.all_reduce, machine, work.bytes);
    result.corrected = wires.all_reduce->bus.measured;
  }
  return result;
}

double multiprocessor_share(const CollectiveWork& work, Wires wires, const Machine& machine) {
  if (wires == Wires::kNone) return 0;
  const Interconnect& used = wires == Wires::kNetwork ? *machine.network : *machine.node;
  double held = static_cast<double>(work.multiprocessors);
  if (held == 0 && used.multiprocessors) held = used.multiprocessors->value;
  return std::min(held / static_cast<double>(machine.gpu.multiprocessors), 0.9);
}

}  // namespace ballast
