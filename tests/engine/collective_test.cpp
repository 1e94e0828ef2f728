#include "sim/engine/collective.h"

#include <gtest/gtest.h>

#include "tests/engine/tiny_machine.h"

namespace ballast {
namespace {

using tests::flat;
using tests::tiny_cluster;

constexpr int64_t kMega = 1'000'000;

CollectiveTime time_of(const CollectiveWork& work, const Machine& machine = tiny_cluster()) {
  return collective_time(work, machine, {});
}

double us_of(CollectiveKind kind, int64_t bytes, int64_t ranks, int64_t stride = 1) {
  return time_of({kind, Bytes{bytes}, ranks, stride}).time.us();
}

// Nodes of four, 100 GB/s and 1 us a hop inside, a card of 10 GB/s and 5 us a hop for each device.

// Four ranks in a node, six messages, 1.5 of the buffer sent. 400 MB: 600 MB at 100 GB/s = 6000 us;
// Simple adds 2.9 us to each hop and 8.4 once: 6 * 3.9 + 8.4 = 31.8 us.
TEST(Collective, a_large_all_reduce_in_a_node_is_a_ring) {
  const CollectiveTime result = time_of({CollectiveKind::kAllReduce, Bytes{400 * kMega}, 4});
  EXPECT_NEAR(result.time.us(), 6031.8, 1e-6);
  EXPECT_EQ(result.sent.count, 600 * kMega);
  EXPECT_EQ(result.wires, Wires::kNode);
  EXPECT_EQ(result.algorithm, CollectiveAlgorithm::kRing);
}

// 4 kB under LL: 6 kB at a quarter of 100 GB/s = 0.24 us, 6 hops of 1 us and 3.6 us.
// 400 kB under LL128: 600 kB at 92 GB/s = 6.522 us, 6 hops of 2.4 us and 10 us = 30.922 us; it
// would take 33.6 us under LL and 37.8 us under Simple.
TEST(Collective, small_messages_take_protocols_of_low_latency) {
  EXPECT_NEAR(us_of(CollectiveKind::kAllReduce, 4000, 4), 9.84, 1e-6);
  EXPECT_NEAR(us_of(CollectiveKind::kAllReduce, 400'000, 4), 30.9217, 1e-4);
}

// Half the messages and half the bytes: 3000 us, 3 * 3.9 + 8.4 us. A broadcast sends the whole
// buffer once around: 4000 us.
TEST(Collective, scatter_gather_and_broadcast_go_around_the_ring_once) {
  EXPECT_NEAR(us_of(CollectiveKind::kReduceScatter, 400 * kMega, 4), 3020.1, 1e-6);
  EXPECT_NEAR(us_of(CollectiveKind::kAllGather, 400 * kMega, 4), 3020.1, 1e-6);
  EXPECT_NEAR(us_of(CollectiveKind::kBroadcast, 400 * kMega, 4), 4020.1, 1e-6);
}

// Eight ranks on two nodes: rings leave each node over four cards, 40 GB/s. All-gather of 800 MB:
// 700 MB take 17500 us; one hop between nodes (5 + 6.9 us), six inside (3.9 us) and 8.4 us. Each
// card carries a quarter of what a ring passes on.
TEST(Collective, rings_cross_nodes_over_as_many_cards_as_there_are_ranks) {
  const CollectiveTime result = time_of({CollectiveKind::kAllGather, Bytes{800 * kMega}, 8});
  EXPECT_NEAR(result.time.us(), 17500 + 11.9 + 6 * 3.9 + 8.4, 1e-6);
  EXPECT_EQ(result.sent.count, 175 * kMega);
  EXPECT_EQ(result.passed.count, 700 * kMega);
  EXPECT_EQ(result.wires, Wires::kNetwork);
}

// Two nodes whose links are slower than four cards: a ring runs at the links' rate.
TEST(Collective, slow_links_in_a_node_bind_rings_over_nodes) {
  Machine machine = tiny_cluster();
  machine.node->bandwidth.value = Bandwidth::from_gb_per_s(20);
  const double us = time_of({CollectiveKind::kAllGather, Bytes{800 * kMega}, 8}, machine).time.us();
  EXPECT_NEAR(us, 35000 + 43.7, 1e-6);
}

// All-reduce of 800 MB over two nodes. A ring passes 1400 MB at 40 GB/s: 35000 us. In a tree each
// node sends 2 * 1/2 * 800 MB over its cards at 90 %: 22222.2 us; up and down a chain of three hops
// (1 + 27.5 us) and one level of nodes (5 + 47.3 us): 2 * (85.5 + 52.3) = 275.6 us.
TEST(Collective, two_nodes_all_reduce_in_a_tree) {
  const CollectiveTime result = time_of({CollectiveKind::kAllReduce, Bytes{800 * kMega}, 8});
  EXPECT_EQ(result.algorithm, CollectiveAlgorithm::kTree);
  EXPECT_NEAR(result.time.us(), 22222.222 + 275.6, 1e-3);
  EXPECT_EQ(result.sent.count, 200 * kMega);
}

// 64 ranks in as many nodes. 6400 MB: the ring sends 126/64 of it at 10 GB/s, 1.26 s; the tree as
// much at 9 GB/s. 4 kB: a ring makes 126 hops of 5 us; a tree of six levels 12 of 7.3 us, and 4.4
// us and 7875 B at 0.9 / 3.8 of 10 GB/s: 3.325 us.
TEST(Collective, many_nodes_take_a_ring_for_bandwidth_and_a_tree_for_latency) {
  const CollectiveTime large = time_of({CollectiveKind::kAllReduce, Bytes{6400 * kMega}, 64, 4});
  EXPECT_EQ(large.algorithm, CollectiveAlgorithm::kRing);
  EXPECT_NEAR(large.time.us(), 1'260'000 + 126 * 11.9 + 8.4, 1e-3);
  const CollectiveTime small = time_of({CollectiveKind::kAllReduce, Bytes{4000}, 64, 4});
  EXPECT_EQ(small.algorithm, CollectiveAlgorithm::kTree);
  EXPECT_NEAR(small.time.us(), 12 * 7.3 + 4.4 + 3.325, 1e-3);
}

// A switch that adds at a bus bandwidth of 200 GB/s: 600 MB in 3000 us, and 25 us. It reads each
// buffer and sends back a quarter of the sums: 1.25 * 400 MB leave each rank.
TEST(Collective, a_switch_that_adds_takes_large_all_reduces_alone) {
  Machine machine = tiny_cluster();
  machine.node->switch_reduction.emplace().value = Bandwidth::from_gb_per_s(200);
  const CollectiveTime large =
      time_of({CollectiveKind::kAllReduce, Bytes{400 * kMega}, 4}, machine);
  EXPECT_EQ(large.algorithm, CollectiveAlgorithm::kSwitch);
  EXPECT_NEAR(large.time.us(), 3025, 1e-6);
  EXPECT_EQ(large.sent.count, 500 * kMega);
  const auto other = [&](CollectiveKind kind, int64_t bytes) {
    return time_of({kind, Bytes{bytes}, 4}, machine).algorithm;
  };
  EXPECT_EQ(other(CollectiveKind::kAllReduce, 4000), CollectiveAlgorithm::kRing);
  EXPECT_EQ(other(CollectiveKind::kAllGather, 400 * kMega), CollectiveAlgorithm::kRing);
}

// Four ranks of a node, messages of 100 MB to three others: 300 MB at 100 GB/s, and 8.4 + 3.9 us.
// Eight ranks on two nodes, messages of 100 MB: four of them over each rank's own card, 40000 us,
// while those inside the node take 3000 us; and 8.4 + 11.9 us.
TEST(Collective, all_to_all_is_bound_by_each_ranks_own_card) {
  EXPECT_NEAR(us_of(CollectiveKind::kAllToAll, 400 * kMega, 4), 3012.3, 1e-6);
  const CollectiveTime result = time_of({CollectiveKind::kAllToAll, Bytes{800 * kMega}, 8});
  EXPECT_NEAR(result.time.us(), 40020.3, 1e-6);
  EXPECT_EQ(result.sent.count, 400 * kMega);
  EXPECT_EQ(result.passed.count, 700 * kMega);
}

// Tokens of 800 MB in all, two of eight experts each, one a rank: 400 MB of tokens. A token has two
// of eight ranks, and on two nodes of four both or one: 2 * (1 - (4 * 3) / (8 * 7)) = 1.571 nodes.
// Half of those copies leave the node: 400 * 1.571 / 2 = 314.3 MB at 10 GB/s, where rows of their
// own would be 400. To another rank of a node come three quarters of two copies: 600 MB at 100
// GB/s.
TEST(Collective, tokens_go_once_to_each_node_and_once_to_each_rank) {
  CollectiveWork work{CollectiveKind::kAllToAll, Bytes{800 * kMega}, 8};
  work.once = {8, 2, 1, 1};
  const CollectiveTime result = time_of(work);
  EXPECT_NEAR(result.time.us(), 31428.57 + 20.3, 0.01);
  EXPECT_NEAR(static_cast<double>(result.sent.count), 314.2857e6, 100);
  EXPECT_NEAR(static_cast<double>(result.passed.count), 914.2857e6, 100);
}

// In a node four ranks have two experts each, of which a token takes two: both of one rank with 1
// in 7, so 13/7 ranks. 400 MB of tokens: three quarters of 13/7 copies, 557.1 MB at 100 GB/s.
TEST(Collective, a_rank_with_several_experts_of_a_token_gets_it_once) {
  CollectiveWork work{CollectiveKind::kAllToAll, Bytes{800 * kMega}, 4};
  work.once = {8, 2, 1, 1};
  EXPECT_NEAR(time_of(work).time.us(), 5571.43 + 12.3, 0.01);
  // Out of one group of four it is two of two ranks: 2 * (1 - (2 * 1) / (4 * 3)) = 5/3.
  work.once = {8, 2, 2, 1};
  EXPECT_NEAR(time_of(work).time.us(), 5000 + 12.3, 0.01);
  // Two groups of four, both chosen, on two ranks: each has some of them, whatever is taken.
  work.ranks = 2;
  work.once = {8, 2, 2, 2};
  EXPECT_NEAR(time_of(work).time.us(), 4000 + 12.3, 0.01);
}

// 10 MB to a neighbour at 100 GB/s: 100 us and 12.3 us; four devices on, in the next node, at 10
// GB/s: 1000 us and 20.3 us, or on a measured curve of 5 GB/s 2000 us.
TEST(Collective, a_send_takes_the_wires_between_its_ends) {
  EXPECT_NEAR(us_of(CollectiveKind::kSendReceive, 10 * kMega, 2, 1), 112.3, 1e-6);
  EXPECT_NEAR(us_of(CollectiveKind::kSendReceive, 10 * kMega, 2, 2), 112.3, 1e-6);
  EXPECT_NEAR(us_of(CollectiveKind::kSendReceive, 10 * kMega, 2, 4), 1020.3, 1e-6);
  Machine machine = tiny_cluster();
  machine.network->point_to_point = flat(5e9);
  machine.network->point_to_point.measured = true;
  const CollectiveTime result =
      time_of({CollectiveKind::kSendReceive, Bytes{10 * kMega}, 2, 4}, machine);
  EXPECT_NEAR(result.time.us(), 2020.3, 1e-6);
  EXPECT_TRUE(result.corrected);
}

// A table says 50 GB/s of bus bandwidth for 400 MB over four ranks: 600 MB in 12000 us where the
// formula says 6031.8. All-gathers over the same wires take as much longer: 3020.1 * 12000 /
// 6031.8.
TEST(Collective, a_measured_table_corrects_every_ring_over_its_wires) {
  Machine machine = tiny_cluster();
  AllReduceTable table;
  table.ranks = 4;
  table.bus.points = {{400e6, 50e9}};
  table.bus.measured = true;
  machine.node->all_reduce = table;
  check(machine);
  const CollectiveTime reduced =
      time_of({CollectiveKind::kAllReduce, Bytes{400 * kMega}, 4}, machine);
  EXPECT_NEAR(reduced.time.us(), 12000, 1e-3);
  EXPECT_TRUE(reduced.corrected);
  const CollectiveTime gathered =
      time_of({CollectiveKind::kAllGather, Bytes{400 * kMega}, 4}, machine);
  EXPECT_NEAR(gathered.time.us(), 3020.1 * 12000 / 6031.8, 1e-3);
  // The network has no table.
  EXPECT_FALSE(time_of({CollectiveKind::kAllGather, Bytes{400 * kMega}, 8}, machine).corrected);
}

// Half of the bandwidth doubles the 6000 us of transfer, not the 31.8 us of latency.
TEST(Collective, a_share_of_the_bandwidth_leaves_the_latency) {
  const CollectiveWork work{CollectiveKind::kAllReduce, Bytes{400 * kMega}, 4};
  EXPECT_NEAR(collective_time(work, tiny_cluster(), {0.5, 1}).time.us(), 12031.8, 1e-6);
  EXPECT_NEAR(collective_time(work, tiny_cluster(), {1, 0.5}).time.us(), 6031.8, 1e-6);
}

// A send to a neighbour has the share of the node, one to the next node that of the network: twice
// the 100 and the 1000 us of above.
TEST(Collective, each_share_is_of_its_own_wires) {
  const auto us = [](int64_t stride, const WireShares& shares) {
    const CollectiveWork work{CollectiveKind::kSendReceive, Bytes{10 * kMega}, 2, stride};
    return collective_time(work, tiny_cluster(), shares).time.us();
  };
  EXPECT_NEAR(us(1, {0.5, 1}), 212.3, 1e-6);
  EXPECT_NEAR(us(1, {1, 0.5}), 112.3, 1e-6);
  EXPECT_NEAR(us(4, {0.5, 1}), 1020.3, 1e-6);
  EXPECT_NEAR(us(4, {1, 0.5}), 2020.3, 1e-6);
}

// A ring over two nodes of four runs at the 40 GB/s of a node's four cards while the wires inside
// reach more (100 GB/s), and at a quarter of those once they reach less.
TEST(Collective, a_ring_over_nodes_has_the_share_of_its_narrowest_wires) {
  const CollectiveWork work{CollectiveKind::kAllGather, Bytes{400 * kMega}, 8};
  const auto us = [&](const WireShares& shares) {
    return collective_time(work, tiny_cluster(), shares).time.us();
  };
  const double transfer = 400e6 * 7 / 8 / 40e9 * 1e6;
  EXPECT_NEAR(us({0.5, 1}), us({}), 1e-6);
  EXPECT_NEAR(us({1, 0.5}), us({}) + transfer, 1e-6);
  EXPECT_NEAR(us({0.25, 1}), us({}) + 0.6 * transfer, 1e-6);
}

TEST(Collective, a_group_of_one_takes_no_time) {
  const CollectiveTime result = time_of({CollectiveKind::kAllReduce, Bytes{400}, 1});
  EXPECT_EQ(result.time.ps, 0);
  EXPECT_EQ(result.wires, Wires::kNone);
}

std::string complaint(const CollectiveWork& work, const Machine& machine) {
  try {
    collective_time(work, machine, {});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Collective, lacking_wires_name_the_operation_and_the_key) {
  Machine machine = tiny_cluster();
  machine.network = std::nullopt;
  const CollectiveWork work{CollectiveKind::kReduceScatter, Bytes{400}, 8};
  const std::string network = complaint(work, machine);
  EXPECT_NE(network.find("tiny: network"), std::string::npos) << network;
  EXPECT_NE(network.find("reduce-scatter of 8 ranks"), std::string::npos) << network;
  EXPECT_NE(network.find("bandwidth_gb_per_s"), std::string::npos) << network;
  machine = tiny_cluster();
  machine.node = std::nullopt;
  EXPECT_NE(complaint(work, machine).find("tiny: node"), std::string::npos);
  // One rank a node needs no links inside it.
  EXPECT_EQ(complaint({CollectiveKind::kAllReduce, Bytes{400}, 8, 4}, machine), "");
}

// 20 of 100 multiprocessors over the node's links, none named for the network.
TEST(Collective, channels_are_a_share_of_the_multiprocessors) {
  Machine machine = tiny_cluster();
  machine.gpu.multiprocessors = 100;
  machine.node->multiprocessors.emplace().value = 20;
  CollectiveWork work;
  EXPECT_NEAR(multiprocessor_share(work, Wires::kNode, machine), 0.2, 1e-12);
  EXPECT_EQ(multiprocessor_share(work, Wires::kNetwork, machine), 0);
  // One that says how many it holds holds these, whatever its wires have.
  work.multiprocessors = 25;
  EXPECT_NEAR(multiprocessor_share(work, Wires::kNode, machine), 0.25, 1e-12);
  EXPECT_NEAR(multiprocessor_share(work, Wires::kNetwork, machine), 0.25, 1e-12);
}

}  // namespace
}  // namespace ballast
