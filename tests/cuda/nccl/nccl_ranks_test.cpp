// The communicators of NCCL by themselves: what arrives, in the order of streams, and that no
// failure leaves a rank waiting. Numbers are small integers, so sums are exact in every order.
#include <chrono>
#include <cstring>
#include <filesystem>
#include <set>

#include "tests/cuda/nccl/ranks.h"

namespace ballast::tests {
namespace {

using nccl_stand_in::Call;
using nccl_stand_in::Noted;

class nccl_ranks : public NcclOnThreads {};
class nccl_real : public NcclOnThreads {};  // apart: threads race for the text of its last error

constexpr LaneId kData = lane_of(0, LaneKind::kDataNetwork);
constexpr LaneId kTensor = lane_of(0, LaneKind::kTensorNetwork);

std::byte* bytes(float* values) { return reinterpret_cast<std::byte*>(values); }
std::byte* bytes(uint16_t* values) { return reinterpret_cast<std::byte*>(values); }
std::span<std::byte> span_of(float* values, size_t count) {
  return std::as_writable_bytes(std::span(values, count));
}

// Value `i` of this rank; sums of 4 ranks of less than 256 of them are exact in bf16 too.
float value_of(int rank, size_t i) {
  return static_cast<float>(rank + 1 + static_cast<int>(i) % 7);
}

std::vector<float> values_of(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = value_of(rank, i);
  return values;
}

float sum_of(const std::vector<int>& ranks, size_t i) {
  float sum = 0;
  for (const int rank : ranks) sum += value_of(rank, i);
  return sum;
}

const std::vector<NcclGroup> kGroups = {
    {kTensor, {2, 1}}, {kData, {2, 2}}, {kData, {4, 1}}, {kTensor, {4, 1}}};

TEST_F(nccl_ranks, sum_scatter_and_gather_in_every_group) {
  expect_none_throws(4, [&](Communicator& host, RankGpu& gpu) {
    NcclRanks ranks(functions_, gpu.cuda(), host, kGroups);
    for (const NcclGroup& group : kGroups) {
      const CudaStream stream = gpu.stream("network");
      const GroupMembers members = host.members_of(group.ranks);
      const auto count = static_cast<size_t>(group.ranks.ranks);
      constexpr size_t kShare = 5;
      float* const own = gpu.values(values_of(host.rank(), count * kShare));
      float* const whole = gpu.values(std::vector<float>(count * kShare));
      float* const share = gpu.values(std::vector<float>(kShare));
      const auto all = static_cast<int64_t>(count * kShare);
      ranks.all_reduce(group, bytes(own), bytes(whole), all, kernels::Format::kF32, stream);
      ranks.reduce_scatter(group, bytes(own), bytes(share), kShare, kernels::Format::kF32, stream);
      wait_for(ranks, gpu, stream);
      const auto begin = static_cast<size_t>(members.self) * kShare;
      for (size_t i = 0; i < count * kShare; ++i) EXPECT_EQ(whole[i], sum_of(members.ranks, i));
      for (size_t i = 0; i < kShare; ++i) EXPECT_EQ(share[i], sum_of(members.ranks, begin + i));
      ranks.all_gather(group, bytes(share), bytes(own), kShare * sizeof(float), stream);
      wait_for(ranks, gpu, stream);
      for (size_t i = 0; i < count * kShare; ++i) EXPECT_EQ(own[i], sum_of(members.ranks, i));
    }
    ranks.close();
  });
}

TEST_F(nccl_ranks, sum_in_16_bits_too) {
  expect_none_throws(3, [&](Communicator& host, RankGpu& gpu) {
    const NcclGroup group{kData, {3, 1}};
    NcclRanks ranks(functions_, gpu.cuda(), host, {group});
    const CudaStream stream = gpu.stream("network");
    // bf16 of 1, 2 and 3; of 6: the upper half of their fp32.
    const std::vector<uint16_t> mine = {0x3f80, 0x4000, 0x4040};
    uint16_t* const value =
        gpu.values(std::vector<uint16_t>{mine[static_cast<size_t>(host.rank())]});
    ranks.all_reduce(group, bytes(value), bytes(value), 1, kernels::Format::kBf16, stream);
    wait_for(ranks, gpu, stream);
    EXPECT_EQ(*value, 0x40c0);
    ranks.close();
  });
}

// Rank r owns r values of the first part, and the last rank those that rank 0 would.
TEST_F(nccl_ranks, scatter_and_gather_parts_of_any_owner_and_size) {
  expect_none_throws(3, [&](Communicator& host, RankGpu& gpu) {
    const NcclGroup group{kData, {3, 1}};
    NcclRanks ranks(functions_, gpu.cuda(), host, {group});
    const CudaStream stream = gpu.stream("network");
    const std::vector<std::pair<int, size_t>> owners = {{2, 3}, {0, 0}, {1, 4}, {2, 1}};
    float* const own = gpu.values(values_of(host.rank(), 8));
    float* const summed = gpu.values(std::vector<float>(8, -1.0f));
    float* const whole = gpu.values(std::vector<float>(8, -1.0f));
    std::vector<SummedPart> sums;
    std::vector<GatheredPart> gathers;
    size_t begin = 0;
    for (const auto& [owner, count] : owners) {
      const auto n = static_cast<int64_t>(count);
      sums.push_back({owner, bytes(own + begin), bytes(summed + begin), n});
      gathers.push_back({owner, bytes(summed + begin), bytes(whole + begin), n * 4});
      begin += count;
    }
    ranks.reduce_scatter(group, sums, kernels::Format::kF32, stream);
    ranks.all_gather(group, gathers, stream);
    wait_for(ranks, gpu, stream);
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ(whole[i], sum_of({0, 1, 2}, i)) << i;
    const int owner_of_first = 2;
    EXPECT_EQ(summed[0] != -1.0f, host.rank() == owner_of_first);
    ranks.close();
  });
}

// Rank r gives rank q of its group r + 2 q values, itself none.
TEST_F(nccl_ranks, exchange_parts_of_any_size) {
  expect_none_throws(4, [&](Communicator& host, RankGpu& gpu) {
    const NcclGroup group{kData, {4, 1}};
    NcclRanks ranks(functions_, gpu.cuda(), host, {group});
    const CudaStream stream = gpu.stream("network");
    const auto count = [](int from, int to) {
      return from == to ? size_t{0} : static_cast<size_t>(from + 2 * to);
    };
    const int self = host.rank();
    std::vector<ExchangedPart> parts;
    std::vector<float*> taken;
    for (int other = 0; other < 4; ++other) {
      const size_t given = count(self, other), got = count(other, self);
      float* const from = gpu.values(std::vector<float>(given + 1, static_cast<float>(self)));
      taken.push_back(gpu.values(std::vector<float>(got + 1, -1.0f)));
      parts.push_back({bytes(from), static_cast<int64_t>(given * 4), bytes(taken.back()),
                       static_cast<int64_t>(got * 4)});
    }
    ranks.all_to_all(group, parts, stream);
    wait_for(ranks, gpu, stream);
    for (int other = 0; other < 4; ++other) {
      const size_t got = count(other, self);
      const float* const values = taken[static_cast<size_t>(other)];
      for (size_t i = 0; i < got; ++i) EXPECT_EQ(values[i], static_cast<float>(other));
      EXPECT_EQ(values[got], -1.0f);
    }
    ranks.close();
  });
}

// One way round the ring of four, then what the last says, on all of them.
TEST_F(nccl_ranks, send_receive_and_broadcast) {
  expect_none_throws(4, [&](Communicator& host, RankGpu& gpu) {
    const NcclGroup group{kData, {4, 1}};
    NcclRanks ranks(functions_, gpu.cuda(), host, {group});
    const CudaStream stream = gpu.stream("network");
    float* const passed = gpu.values(std::vector<float>{1});
    const int self = host.rank();
    if (self > 0) ranks.receive(group, self - 1, span_of(passed, 1), stream);
    wait_for(ranks, gpu, stream);
    *passed *= 3;
    if (self < 3) ranks.send(group, self + 1, span_of(passed, 1), stream);
    ranks.broadcast(group, 3, span_of(passed, 1), stream);
    wait_for(ranks, gpu, stream);
    EXPECT_EQ(*passed, 81.0f);
    const CollectiveWork round{CollectiveKind::kSendReceive, Bytes{4}, 4, 1};
    float* const before = gpu.values(std::vector<float>{-1});
    *passed = static_cast<float>(self);
    ranks.run(kData, round, {bytes(passed), bytes(before), kernels::Format::kF32}, stream);
    wait_for(ranks, gpu, stream);
    EXPECT_EQ(*before, static_cast<float>((self + 3) % 4));
    ranks.close();
  });
}

// What a collective of a graph sums goes to the rank that has it, also where it does not divide:
// of seven values the first of three ranks have three each and the last has one.
TEST_F(nccl_ranks, run_what_does_not_divide) {
  expect_none_throws(3, [&](Communicator& host, RankGpu& gpu) {
    const NcclGroup group{kData, {3, 1}};
    NcclRanks ranks(functions_, gpu.cuda(), host, {group});
    const CudaStream stream = gpu.stream("network");
    float* const own = gpu.values(values_of(host.rank(), 7));
    float* const share = gpu.values(std::vector<float>(3, -1.0f));
    float* const whole = gpu.values(std::vector<float>(8, -1.0f));
    CollectiveWork work{CollectiveKind::kReduceScatter, Bytes{28}, 3, 1};
    ranks.run(kData, work, {bytes(own), bytes(share), kernels::Format::kF32}, stream);
    work.kind = CollectiveKind::kAllGather;
    ranks.run(kData, work, {bytes(share), bytes(whole), kernels::Format::kF32}, stream);
    wait_for(ranks, gpu, stream);
    for (size_t i = 0; i < 7; ++i) EXPECT_EQ(whole[i], sum_of({0, 1, 2}, i)) << i;
    EXPECT_EQ(whole[7], -1.0f);
    EXPECT_EQ(share[1] == -1.0f, host.rank() == 2);
    ranks.close();
  });
}

// Nothing of the host waits between them, and the streams dawdle.
TEST_F(nccl_ranks, follow_each_other_in_their_stream) {
  dawdle_one_in_ = 2;
  expect_none_throws(3, [&](Communicator& host, RankGpu& gpu) {
    const NcclGroup group{kData, {3, 1}};
    NcclRanks ranks(functions_, gpu.cuda(), host, {group});
    const CudaStream stream = gpu.stream("network");
    float* const value = gpu.values(std::vector<float>{1});
    float expected = 1;
    for (int round = 0; round < 9; ++round) {
      ranks.all_reduce(group, bytes(value), bytes(value), 1, kernels::Format::kF32, stream);
      expected *= 3;
    }
    wait_for(ranks, gpu, stream);
    EXPECT_EQ(*value, expected);
    ranks.close();
  });
}

// Rank 0 comes to the data lane's collective only after that of the tensor lane, which rank 1
// enqueued second, has ended: on one communicator both would wait forever.
TEST_F(nccl_ranks, lanes_do_not_queue_behind_each_other) {
  expect_none_throws(2, [&](Communicator& host, RankGpu& gpu) {
    const NcclGroup data{kData, {2, 1}}, tensor{kTensor, {2, 1}};
    NcclRanks ranks(functions_, gpu.cuda(), host, {tensor, data});
    const CudaStream of_data = gpu.stream("data"), of_tensor = gpu.stream("tensor");
    float* const one = gpu.values(std::vector<float>{1});
    float* const two = gpu.values(std::vector<float>{2});
    const auto sum = [&](const NcclGroup& group, float* value, CudaStream stream) {
      ranks.all_reduce(group, bytes(value), bytes(value), 1, kernels::Format::kF32, stream);
    };
    if (host.rank() == 1) sum(data, one, of_data);
    sum(tensor, two, of_tensor);
    wait_for(ranks, gpu, of_tensor);
    EXPECT_EQ(*two, 4.0f);
    if (host.rank() == 0) sum(data, one, of_data);
    wait_for(ranks, gpu, of_data);
    EXPECT_EQ(*one, 2.0f);
    ranks.close();
  });
}

// Ids are made by the first rank of a group; ends begin and end in one order on every rank.
TEST_F(nccl_ranks, begin_and_end_in_one_order) {
  expect_none_throws(4, [&](Communicator& host, RankGpu& gpu) {
    NcclRanks ranks(functions_, gpu.cuda(), host, kGroups);
    const RankGroup all{4, 1};
    int64_t met = 0;  // nobody closes before all have come
    host.broadcast(Channel::kControl, all, 0, std::as_writable_bytes(std::span(&met, 1)));
    ranks.close();
  });
  const std::vector<Noted> noted = take_noted();
  // Two communicators for each of the first two groups, and one for each of the others.
  std::set<int> communicators;
  std::map<std::pair<int, int>, std::vector<Call>> by_end;
  for (const Noted& one : noted) {
    communicators.insert(one.communicator);
    by_end[{one.communicator, one.rank}].push_back(one.call);
  }
  EXPECT_EQ(communicators.size(), 6u);
  EXPECT_EQ(by_end.size(), 16u);
  for (const auto& [end, calls] : by_end) {
    EXPECT_EQ(calls, (std::vector<Call>{Call::kInit, Call::kFinalize, Call::kDestroy}));
  }
}

void expect_each(const std::vector<std::string>& thrown, const std::string& part) {
  for (const std::string& one : thrown) {
    EXPECT_NE(one.find(part), std::string::npos) << one;
    EXPECT_EQ(one.find('\n'), std::string::npos) << one;
  }
}

TEST_F(nccl_ranks, that_issue_other_calls_end) {
  const auto thrown = on_ranks(3, [&](Communicator& host, RankGpu& gpu) {
    const NcclGroup group{kData, {3, 1}};
    NcclRanks ranks(functions_, gpu.cuda(), host, {group});
    const CudaStream stream = gpu.stream("network");
    float* const values = gpu.values(std::vector<float>(4));
    const int64_t count = host.rank() == 2 ? 3 : 4;
    ranks.all_reduce(group, bytes(values), bytes(values), count, kernels::Format::kF32, stream);
    wait_for(ranks, gpu, stream);
    ADD_FAILURE() << "rank " << host.rank() << " went on";
  });
  expect_each(thrown, "ncclInvalidUsage (5)");
}

TEST_F(nccl_ranks, one_that_fails_ends_those_that_wait_for_it) {
  const auto thrown = on_ranks(3, [&](Communicator& host, RankGpu& gpu) {
    const NcclGroup group{kData, {3, 1}}, other{kTensor, {3, 1}};
    NcclRanks ranks(functions_, gpu.cuda(), host, {other, group});
    const CudaStream stream = gpu.stream("network");
    float* const value = gpu.values(std::vector<float>{1});
    if (host.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      ranks.fail("its disk is full");
      ranks.all_reduce(group, bytes(value), bytes(value), 1, kernels::Format::kF32, stream);
    }
    ranks.all_reduce(group, bytes(value), bytes(value), 1, kernels::Format::kF32, stream);
    wait_for(ranks, gpu, stream);
  });
  expect_each(thrown, "its disk is full");
  EXPECT_EQ(thrown[1],
            "NCCL, communicators were aborted: its disk is full; see the message of the rank that "
            "failed first");
  EXPECT_EQ(thrown[2],
            "NCCL, wait for stream network: rank 1: its disk is full; see the message of the rank "
            "that failed first");
  int aborts = 0;
  for (const Noted& one : take_noted()) aborts += one.call == Call::kAbort;
  EXPECT_EQ(aborts, 6);
}

// While its other thread waits, as lanes do.
TEST_F(nccl_ranks, one_that_fails_ends_its_own_waits) {
  const auto thrown = on_ranks(2, [&](Communicator& host, RankGpu& gpu) {
    const NcclGroup group{kData, {2, 1}};
    NcclRanks ranks(functions_, gpu.cuda(), host, {group});
    const CudaStream stream = gpu.stream("network");
    float* const value = gpu.values(std::vector<float>{1});
    if (host.rank() == 1) {  // it never comes to the sum, and only watches
      while (!host.failure()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      throw Error("watch", *host.failure(), "end");
    }
    std::jthread lane([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ranks.fail("a lane stopped");
    });
    ranks.all_reduce(group, bytes(value), bytes(value), 1, kernels::Format::kF32, stream);
    wait_for(ranks, gpu, stream);
  });
  expect_each(thrown, "a lane stopped");
}

// The ranks of the host, with something to do just before the others are told of a failure.
class BeforeTold : public Communicator {
 public:
  BeforeTold(Communicator& host, std::function<void()> before)
      : host_(host), before_(std::move(before)) {}
  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  void reduce_scatter(Channel channel, const RankGroup& group, std::span<const SummedPart> parts,
                      const SumFormat& format) override {
    host_.reduce_scatter(channel, group, parts, format);
  }
  void all_gather(Channel channel, const RankGroup& group,
                  std::span<const GatheredPart> parts) override {
    host_.all_gather(channel, group, parts);
  }
  void all_to_all(Channel channel, const RankGroup& group,
                  std::span<const ExchangedPart> parts) override {
    host_.all_to_all(channel, group, parts);
  }
  void fail(const std::string& why) override {
    before_();
    host_.fail(why);
  }
  std::optional<std::string> failure() const override { return host_.failure(); }

 private:
  Communicator& host_;
  std::function<void()> before_;
};

// What other threads of a rank fail with once it aborts is a consequence, which no other rank may
// be told first: a wait that would end with the abort comes too late, however long that takes.
TEST_F(nccl_ranks, one_that_fails_tells_the_others_before_its_own_waits_end) {
  const auto thrown = on_ranks(2, [&](Communicator& host, RankGpu& gpu) {
    BeforeTold told(host, [] { std::this_thread::sleep_for(std::chrono::milliseconds(40)); });
    const NcclGroup group{kData, {2, 1}};
    NcclRanks ranks(functions_, gpu.cuda(), told, {group});
    const CudaStream stream = gpu.stream("network");
    float* const value = gpu.values(std::vector<float>{1});
    if (host.rank() == 1) {  // it never comes to the sum, and only watches
      while (!host.failure()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      throw Error("watch", *host.failure(), "end");
    }
    std::jthread lane([&] { ranks.fail("a lane stopped"); });
    try {
      ranks.all_reduce(group, bytes(value), bytes(value), 1, kernels::Format::kF32, stream);
      wait_for(ranks, gpu, stream);
    } catch (const Error& error) {
      host.fail(error.what());  // as every lane that stops says so
      throw;
    }
  });
  EXPECT_EQ(thrown[1], "watch: rank 0: a lane stopped; end");
}

// NCCL's own errors: at once, and later on the stream of one rank.
TEST_F(nccl_ranks, errors_of_nccl_end_all_by_name) {
  for (const int rank : {-1, 0, 2}) {
    reset(false);
    const auto result = rank < 0 ? nccl::kInternalError : nccl::kUnhandledCudaError;
    fail({Call::kAllGather, 1, result, rank});
    const auto thrown = on_ranks(3, [&](Communicator& host, RankGpu& gpu) {
      const NcclGroup group{kData, {3, 1}};
      NcclRanks ranks(functions_, gpu.cuda(), host, {group});
      const CudaStream stream = gpu.stream("network");
      float* const one = gpu.values(std::vector<float>{1});
      float* const all = gpu.values(std::vector<float>(3));
      for (int round = 0; round < 3; ++round) {
        ranks.all_gather(group, bytes(one), bytes(all), 4, stream);
      }
      wait_for(ranks, gpu, stream);
    });
    expect_each(thrown, rank < 0 ? "ncclInternalError (3), the stand-in was told to fail: its last"
                                 : "ncclUnhandledCudaError (1)");
    expect_each(thrown, "communicator data-network of 3 ranks, 1 apart");
  }
}

// Of the network: who has not heard of the failure sees NCCL's own error.
TEST_F(nccl_ranks, a_remote_error_ends_those_that_wait) {
  reset(true);
  const auto thrown = on_ranks(2, [&](Communicator& host, RankGpu& gpu) {
    const NcclGroup group{kData, {2, 1}};
    std::optional<NcclRanks> ranks;
    ranks.emplace(functions_, gpu.cuda(), host, std::vector<NcclGroup>{group});
    const CudaStream stream = gpu.stream("network");
    float* const value = gpu.values(std::vector<float>{1});
    if (host.rank() == 1) {
      ranks.reset();  // aborts, and says nothing to the host
      while (!host.failure()) std::this_thread::yield();
      throw Error("rank", "ended later", "go");
    }
    ranks->all_reduce(group, bytes(value), bytes(value), 1, kernels::Format::kF32, stream);
    wait_for(*ranks, gpu, stream);
  });
  expect_each({thrown[0]}, "ncclRemoteError (6)");
}

// NCCL itself makes ids without a GPU, and refuses to make a communicator: by name, on every rank.
TEST_F(nccl_real, without_a_gpu_ends_all_by_name) {
  if (std::filesystem::exists("/dev/nvidiactl")) GTEST_SKIP() << "there is a GPU";
  const std::string library = nccl_library_name();
  const std::string missing = why_no_nccl(library);
  if (!missing.empty()) GTEST_SKIP() << library << ": " << missing;
  const NcclFunctions real = load_nccl(library);
  const auto thrown = on_ranks(2, [&](Communicator& host, RankGpu& gpu) {
    NcclRanks ranks(real, gpu.cuda(), host, {{kData, {2, 1}}});
  });
  expect_each(thrown, "of communicator data-network of 2 ranks, 1 apart: ncclUnhandledCudaError");
}

TEST_F(nccl_ranks, a_communicator_that_cannot_be_made_ends_all) {
  for (const Call call : {Call::kUniqueId, Call::kInit}) {
    for (const int number : {0, 2}) {
      reset(false);
      fail({call, number, nccl::kSystemError});
      const auto thrown = on_ranks(4, [&](Communicator& host, RankGpu& gpu) {
        NcclRanks ranks(functions_, gpu.cuda(), host, kGroups);
        ADD_FAILURE() << "rank " << host.rank() << " went on";
      });
      expect_each(thrown, "ncclSystemError (2)");
    }
  }
}

}  // namespace
}  // namespace ballast::tests
