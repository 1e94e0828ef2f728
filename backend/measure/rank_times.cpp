#include "backend/measure/rank_times.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <thread>

#include "backend/comm/local_ranks.h"
#include "backend/measure/profile_probes.h"
#include "kernels/threads.h"
#include "sim/graph/core/edit.h"

namespace ballast {
namespace {

constexpr int64_t kSmallestExchange = int64_t{1} << 12;
constexpr CollectiveKind kMeasuredKinds[] = {
    CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter, CollectiveKind::kAllGather,
    CollectiveKind::kAllToAll, CollectiveKind::kSendReceive};
constexpr SumFormat kExchangedSum{kernels::Format::kBf16, kernels::Format::kBf16};

// Whose exchange it is, of so many ranks that lie so far apart, while the other groups do the same.
std::vector<RankGroup> groups_of(int64_t ranks) {
  std::vector<RankGroup> groups;
  for (int64_t size = ranks; size > 1; --size) {
    for (int64_t stride = 1; size * stride <= ranks; ++stride) {
      if (ranks % (size * stride) == 0) groups.push_back({size, stride});
    }
  }
  return groups;
}

// One rank's buffers, and what it exchanges of them.
class Exchange {
 public:
  Exchange(Communicator& ranks, int64_t largest)
      : ranks_(ranks),
        all_{ranks.size(), 1},
        whole_(static_cast<size_t>(largest)),
        share_(whole_.size()),
        arrived_(whole_.size()) {}

  // Of a buffer of so many bytes on every rank of the group, in equal shares.
  void run(CollectiveKind kind, const RankGroup& group, int64_t bytes) {
    const int64_t values = bytes / size_of(DType::kBf16);
    if (kind == CollectiveKind::kAllToAll) return all_to_all(group, values / group.ranks);
    if (kind == CollectiveKind::kSendReceive) return swap(group, bytes);
    const int64_t each = div_ceil(values, group.ranks);
    std::vector<SummedPart> summed;
    std::vector<GatheredPart> gathered;
    for (int rank = 0; rank < group.ranks; ++rank) {
      const int64_t begin = std::min(values, rank * each);
      const int64_t count = std::min(values, begin + each) - begin;
      if (count == 0) break;
      std::byte* const at = whole_.data() + begin * size_of(DType::kBf16);
      summed.push_back({rank, at, share_.data(), count});
      gathered.push_back({rank, share_.data(), at, count * size_of(DType::kBf16)});
    }
    if (kind != CollectiveKind::kAllGather) {
      ranks_.reduce_scatter(Channel::kData, group, summed, kExchangedSum);
    }
    if (kind != CollectiveKind::kReduceScatter) ranks_.all_gather(Channel::kData, group, gathered);
  }

  // Returns when all ranks have called.
  void meet() { ranks_.all_reduce(Channel::kControl, all_, token_.data(), 1, kExchangedSum); }

 private:
  // So many values from every rank to every one.
  void all_to_all(const RankGroup& group, int64_t values) {
    const int64_t bytes = values * size_of(DType::kBf16);
    std::vector<ExchangedPart> parts;
    for (int rank = 0; rank < group.ranks; ++rank) {
      parts.push_back({whole_.data() + rank * bytes, bytes, arrived_.data() + rank * bytes, bytes});
    }
    ranks_.all_to_all(Channel::kData, group, parts);
  }

  // All of it from each of two to the other one.
  void swap(const RankGroup& group, int64_t bytes) {
    std::array<ExchangedPart, 2> parts;
    const int self = ranks_.members_of(group).self;
    parts[static_cast<size_t>(1 - self)] = {whole_.data(), bytes, arrived_.data(), bytes};
    ranks_.all_to_all(Channel::kData, group, parts);
  }

  Communicator& ranks_;
  RankGroup all_;
  std::vector<std::byte> whole_, share_, arrived_;
  std::vector<std::byte> token_ = std::vector<std::byte>(size_of(DType::kBf16));
};

// Of one kind in one group, by size.
std::vector<OperationTime> times_of(CollectiveKind kind, const RankGroup& group,
                                    ProfileEffort effort, int64_t largest, Exchange& exchange) {
  constexpr int kWarmUp = 2;
  const int repeats = effort == ProfileEffort::kQuick ? 3 : 11;  // as many on every rank
  std::vector<OperationTime> times;
  for (const int64_t bytes : sizes_from(kSmallestExchange, largest)) {
    std::vector<Duration> samples;
    for (int repeat = -kWarmUp; repeat < repeats; ++repeat) {
      exchange.meet();
      const auto begin = std::chrono::steady_clock::now();
      exchange.run(kind, group, bytes);
      const std::chrono::nanoseconds spent = std::chrono::steady_clock::now() - begin;
      if (repeat >= 0) samples.push_back(Duration::from_ns(spent.count()));
    }
    const Timing timing = summarise(std::move(samples));
    const CollectiveWork work{kind, {bytes}, group.ranks, group.stride};
    times.push_back({collective_op(LaneKind::kDataNetwork, work, Phase::kOptimizer, {}, {}),
                     timing.median, timing.deviation});
  }
  return times;
}

}  // namespace

std::vector<OperationTime> time_collectives(Communicator& ranks, ProfileEffort effort) {
  const int64_t largest = int64_t{1} << (effort == ProfileEffort::kQuick ? 18 : 26);
  Exchange exchange(ranks, largest);
  std::vector<OperationTime> times;
  for (const RankGroup& group : groups_of(ranks.size())) {
    for (const CollectiveKind kind : kMeasuredKinds) {
      // Host ranks send in rings of two.
      if (kind == CollectiveKind::kSendReceive && group.ranks != 2) continue;
      const auto of_kind = times_of(kind, group, effort, largest, exchange);
      times.insert(times.end(), of_kind.begin(), of_kind.end());
    }
  }
  return times;
}

std::vector<OperationTime> time_collectives_of_threads(int ranks, ProfileEffort effort) {
  LocalRanks all(ranks);
  const std::vector<cpu_set_t> cores = kernels::core_shares(ranks);  // as the trainer binds them
  std::vector<OperationTime> times;
  const auto time = [&](int rank) {
    std::optional<kernels::CoreBinding> bound;
    if (!cores.empty()) bound.emplace(cores[static_cast<size_t>(rank)]);
    return time_collectives(all.of(rank), effort);
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 1; rank < ranks; ++rank) {
      threads.emplace_back([&time, rank] { time(rank); });
    }
    times = time(0);
  }
  return times;
}

}  // namespace ballast
