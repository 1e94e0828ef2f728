// The collectives of whole graphs, by the executor that trainings have: a thread for every lane of
// every rank, which dawdle at random. What NCCL needs is that all ranks of a communicator call the
// same in the same order, and that order is the graph's.
#include <chrono>
#include <map>
#include <random>
#include <set>

#include "backend/execute/executor.h"
#include "sim/graph/build.h"
#include "tests/backend/split_training.h"
#include "tests/backend/temporary_folder.h"
#include "tests/cuda/nccl/ranks.h"

namespace ballast::tests {
namespace {

using nccl_stand_in::Call;
using nccl_stand_in::Noted;
using tiny::Degrees;

constexpr int kSteps = 2;

class nccl_graph : public NcclOnThreads {};

const CollectiveWork* collective_of(const Op& op) { return std::get_if<CollectiveWork>(&op.work); }

// Carries out collectives alone, each lane in a stream of its own; all else takes some time.
class CollectivesDevice : public Device {
 public:
  CollectivesDevice(const Graph& graph, NcclRanks& ranks, RankGpu& gpu, int rank)
      : ranks_(ranks), gpu_(gpu), rank_(rank) {
    for (const Op& op : graph.step.ops) {
      const CollectiveWork* const work = collective_of(op);
      if (work == nullptr) continue;
      Lane& lane = lanes_[op.lane];
      lane.bytes = std::max(lane.bytes, work->bytes.count);
    }
    for (auto& [id, lane] : lanes_) {
      lane.stream = gpu_.stream(to_string(kind_of(id)).data());
      lane.done = gpu_.event(lane.stream);
      lane.from = gpu_.memory(lane.bytes);
      lane.to = gpu_.memory(lane.bytes);
    }
  }

  void execute(const Program& program, OpId id, int32_t step) override {
    const Op& op = program.ops[static_cast<size_t>(id)];
    std::minstd_rand random(static_cast<unsigned>(1 + id + 1000 * step + 1000000 * rank_));
    random.discard(3);
    if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    const CollectiveWork* const work = collective_of(op);
    if (work == nullptr) return;
    const Lane& lane = lanes_.at(op.lane);
    ranks_.run(op.lane, *work, {lane.from, lane.to, kernels::Format::kF32}, lane.stream);
    gpu_.cuda().record(lane.done, lane.stream);
    ranks_.wait(lane.done);
  }
  bool commit(int32_t) override { return true; }
  void abandon(const std::string& why) override { ranks_.fail(why); }

  CudaStream stream_of(LaneId lane) const { return lanes_.at(lane).stream; }

 private:
  struct Lane {
    int64_t bytes = 0;
    CudaStream stream;
    CudaEvent done;
    std::byte* from = nullptr;
    std::byte* to = nullptr;
  };
  NcclRanks& ranks_;
  RankGpu& gpu_;
  int rank_;
  std::map<LaneId, Lane> lanes_;
};

// What a rank's calls on one end of a communicator were, group by group, without what differs among
// ranks: of messages only that they are messages.
std::vector<std::vector<std::tuple<Call, size_t, int>>> sequence_of(
    const std::vector<Noted>& calls) {
  std::vector<std::vector<std::tuple<Call, size_t, int>>> groups;
  int last = -1;
  for (const Noted& one : calls) {
    if (one.group != last) groups.emplace_back();
    last = one.group;
    const bool message = one.call == Call::kSend || one.call == Call::kReceive;
    if (message) {
      if (groups.back().empty()) groups.back().emplace_back(Call::kSend, 0, -1);
    } else {
      groups.back().emplace_back(one.call, one.count, one.other);
    }
  }
  return groups;
}

// By the graph: the first call of each collective of a group, in the order of the program.
std::vector<Call> calls_of(const Graph& graph, const NcclGroup& group) {
  std::vector<Call> calls;
  for (int step = 0; step < kSteps; ++step) {
    for (const Op& op : graph.step.ops) {
      const CollectiveWork* const work = collective_of(op);
      if (work == nullptr || op.lane != group.lane || work->ranks != group.ranks.ranks ||
          work->stride != group.ranks.stride) {
        continue;
      }
      const bool even = work->bytes.count % (work->ranks * 4) == 0;
      switch (work->kind) {
        case CollectiveKind::kAllReduce:
          calls.push_back(Call::kAllReduce);
          break;
        case CollectiveKind::kReduceScatter:
          calls.push_back(even ? Call::kReduceScatter : Call::kReduce);
          break;
        case CollectiveKind::kAllGather:
          calls.push_back(even ? Call::kAllGather : Call::kBroadcast);
          break;
        case CollectiveKind::kBroadcast:
          calls.push_back(Call::kBroadcast);
          break;
        case CollectiveKind::kAllToAll:
        case CollectiveKind::kSendReceive:
          calls.push_back(Call::kSend);
          break;
      }
    }
  }
  return calls;
}

// Of one plan's run: by communicator, the calls of each of its ranks.
using ByRank = std::map<int, std::vector<Noted>>;

// Every end of a communicator is created, used on one stream of its own and closed.
std::map<int, ByRank> by_communicator(const std::vector<Noted>& noted, const std::string& what) {
  std::map<int, ByRank> all;
  std::map<void*, std::set<int>> of_stream;
  for (const Noted& one : noted) {
    EXPECT_NE(one.call, Call::kAbort) << what;
    if (one.stream == nullptr) continue;  // creation and end
    std::vector<Noted>& calls = all[one.communicator][one.rank];
    if (!calls.empty()) EXPECT_EQ(calls.back().stream, one.stream) << what;
    calls.push_back(one);
  }
  return all;
}

struct Case {
  Model model;
  Degrees degrees;
  SyncMode sync = SyncMode::kWait;
};

std::vector<Case> cases() {
  const Model gpt2 = tiny::gpt2_model(), llama = tiny::llama_model();
  const Model experts = tiny::newer_models()[1];
  return {{gpt2, {.data = 2}},
          {gpt2, {.data = 4, .zero_stage = 1}},
          {llama, {.data = 2, .zero_stage = 2}, SyncMode::kSpeculate},
          {gpt2, {.data = 4, .zero_stage = 3}, SyncMode::kDelay},
          {llama, {.tensor = 2}},
          {gpt2, {.tensor = 4}},
          {llama, {.tensor = 2, .data = 2, .tensor_sequence = true, .zero_stage = 1}},
          {gpt2, {.tensor = 2, .data = 2, .zero_stage = 3}, SyncMode::kSpeculate},
          {gpt2, {.sequence = 2}},
          {gpt2, {.sequence = 2, .data = 2, .zero_stage = 2}},
          {llama, {.tensor = 2, .sequence = 2}},
          {gpt2, {.context = 2}},
          {llama, {.context = 2, .data = 2, .zero_stage = 1}},
          {experts, {.data = 2, .expert = 2}},
          {experts, {.data = 4, .expert = 2, .zero_stage = 2}},
          {experts, {.data = 4, .expert = 4, .zero_stage = 1}, SyncMode::kSpeculate}};
}

// Returns how many collectives a rank carried out.
size_t expect_same_sequences(const Case& one, const Graph& graph, const std::vector<Noted>& noted) {
  const std::string what = one.model.name + " " + tiny::text_of(one.degrees);
  const std::vector<NcclGroup> groups = nccl_groups_of(graph);
  // The graph's orders, as often as there are communicators with them.
  std::multiset<std::vector<Call>> expected, found;
  size_t collectives = 0;
  const int64_t devices = tiny::plan_of(one.degrees).devices;
  for (const NcclGroup& group : groups) {
    const std::vector<Call> calls = calls_of(graph, group);
    EXPECT_FALSE(calls.empty());
    collectives += calls.size();
    for (int64_t i = 0; i < devices / group.ranks.ranks; ++i) expected.insert(calls);
  }
  for (const auto& [communicator, ends] : by_communicator(noted, what)) {
    const auto first = sequence_of(ends.begin()->second);
    EXPECT_EQ(std::ssize(ends), ends.begin()->second.front().ranks) << what;
    for (const auto& [rank, calls] : ends) {
      EXPECT_EQ(sequence_of(calls), first) << what << " communicator " << communicator;
    }
    std::vector<Call> calls;
    for (const auto& together : first) calls.push_back(std::get<0>(together.front()));
    found.insert(calls);
  }
  EXPECT_EQ(found, expected) << what;
  return collectives;
}

TEST_F(nccl_graph, all_ranks_of_a_communicator_call_the_same_in_the_graphs_order) {
  for (const Case& one : cases()) {
    reset(false);
    const Plan plan = tiny::plan_of(one.degrees, one.sync);
    const Graph graph = build_to_run(one.model, plan);
    const std::vector<NcclGroup> groups = nccl_groups_of(graph);
    ASSERT_FALSE(groups.empty());
    const auto devices = static_cast<int>(plan.devices);
    expect_none_throws(devices, [&](Communicator& host, RankGpu& gpu) {
      NcclRanks ranks(functions_, gpu.cuda(), host, groups);
      CollectivesDevice device(graph, ranks, gpu, host.rank());
      RunOptions options;
      options.last_step = kSteps - 1;
      Executor(graph, device).run(options);
      ranks.close();
    });
    const size_t collectives = expect_same_sequences(one, graph, take_noted());
    std::printf("%-10s %-40s %zu groups of ranks, %3zu collectives a rank\n",
                one.model.name.c_str(), tiny::text_of(one.degrees).c_str(), groups.size(),
                collectives);
  }
}

// A rank whose graph has one collective more than the others': all end, within the test's time.
TEST_F(nccl_graph, a_rank_that_runs_another_program_ends_all) {
  const Plan plan = tiny::plan_of({.tensor = 2});
  const Graph graph = build_to_run(tiny::llama_model(), plan);
  Graph other = graph;
  for (Op& op : other.step.ops) {
    if (auto* const work = std::get_if<CollectiveWork>(&op.work)) {
      work->bytes.count /= 2;
      break;
    }
  }
  const std::vector<NcclGroup> groups = nccl_groups_of(graph);
  const auto thrown = on_ranks(2, [&](Communicator& host, RankGpu& gpu) {
    NcclRanks ranks(functions_, gpu.cuda(), host, groups);
    const Graph& its = host.rank() == 0 ? graph : other;
    CollectivesDevice device(its, ranks, gpu, host.rank());
    Executor(its, device).run({});
    ranks.close();
  });
  for (const std::string& one : thrown) {
    EXPECT_NE(one.find("ncclInvalidUsage (5)"), std::string::npos) << one;
  }
}

TEST_F(nccl_graph, stages_of_a_pipeline_are_refused_by_name) {
  const Graph graph = build_to_run(tiny::gpt2_model(), tiny::plan_of({.data = 2, .pipeline = 2}));
  EXPECT_EQ(error_of([&] { nccl_groups_of(graph); }),
            "NCCL: messages between stages of a pipeline have no communicator; train them on the "
            "host device, or choose plan.pipeline=1");
}

}  // namespace
}  // namespace ballast::tests
