#include "backend/measure/rank_times.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "backend/comm/local_ranks.h"
#include "backend/measure/profile_probes.h"
#include "sim/graph/core/edit.h"

namespace ballast {
namespace {

constexpr int64_t kSmallestExchange = int64_t{1} << 12;
constexpr CollectiveKind kMeasuredKinds[] = {CollectiveKind::kAllReduce,
                                             CollectiveKind::kReduceScatter,
                                             CollectiveKind::kAllGather, CollectiveKind::kAllToAll};
constexpr SumFormat kExchangedSum{kernels::Format::kBf16, kernels::Format::kBf16};

// One rank's buffers, and what it exchanges of them.
class Exchange {
 public:
  Exchange(Communicator& ranks, int64_t largest)
      : ranks_(ranks),
        all_{ranks.size(), 1},
        whole_(static_cast<size_t>(largest)),
        share_(static_cast<size_t>(div_ceil(largest, all_.ranks))) {}

  // Of a buffer of so many bytes on every rank, in equal shares.
  void run(CollectiveKind kind, int64_t bytes) {
    const int64_t values = bytes / size_of(DType::kBf16);
    const int64_t each = div_ceil(values, all_.ranks);
    if (kind == CollectiveKind::kAllToAll) return all_to_all(values / all_.ranks);
    std::vector<SummedPart> summed;
    std::vector<GatheredPart> gathered;
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      const int64_t begin = std::min(values, rank * each);
      const int64_t count = std::min(values, begin + each) - begin;
      if (count == 0) break;
      std::byte* const at = whole_.data() + begin * size_of(DType::kBf16);
      summed.push_back({rank, at, share_.data(), count});
      gathered.push_back({rank, share_.data(), at, count * size_of(DType::kBf16)});
    }
    if (kind != CollectiveKind::kAllGather) {
      ranks_.reduce_scatter(Channel::kData, all_, summed, kExchangedSum);
    }
    if (kind != CollectiveKind::kReduceScatter) ranks_.all_gather(Channel::kData, all_, gathered);
  }

  // So many values from every rank to every one.
  void all_to_all(int64_t values) {
    const int64_t bytes = values * size_of(DType::kBf16);
    arrived_.resize(whole_.size());
    std::vector<ExchangedPart> parts;
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      parts.push_back({whole_.data() + rank * bytes, bytes, arrived_.data() + rank * bytes, bytes});
    }
    ranks_.all_to_all(Channel::kData, all_, parts);
  }

  // Returns when all ranks have called.
  void meet() { ranks_.all_reduce(Channel::kControl, all_, token_.data(), 1, kExchangedSum); }

 private:
  Communicator& ranks_;
  RankGroup all_;
  std::vector<std::byte> whole_, share_, arrived_;
  std::vector<std::byte> token_ = std::vector<std::byte>(size_of(DType::kBf16));
};

}  // namespace

std::vector<OperationTime> time_collectives(Communicator& ranks, ProfileEffort effort) {
  using Clock = std::chrono::steady_clock;
  const bool quick = effort == ProfileEffort::kQuick;
  const int64_t largest = quick ? int64_t{1} << 18 : int64_t{1} << 26;
  constexpr int kWarmUp = 2;
  const int repeats = quick ? 3 : 11;  // as many on every rank
  Exchange exchange(ranks, largest);
  std::vector<OperationTime> times;
  for (const CollectiveKind kind : kMeasuredKinds) {
    for (const int64_t bytes : sizes_from(kSmallestExchange, largest)) {
      std::vector<Duration> samples;
      for (int repeat = -kWarmUp; repeat < repeats; ++repeat) {
        exchange.meet();
        const auto begin = Clock::now();
        exchange.run(kind, bytes);
        const std::chrono::nanoseconds spent = Clock::now() - begin;
        if (repeat >= 0) samples.push_back(Duration::from_ns(spent.count()));
      }
      const Timing timing = summarise(std::move(samples));
      const CollectiveWork work{kind, {bytes}, ranks.size(), 1};
      times.push_back({collective_op(LaneKind::kDataNetwork, work, Phase::kOptimizer, {}, {}),
                       timing.median, timing.deviation});
    }
  }
  return times;
}

std::vector<OperationTime> time_collectives_of_threads(int ranks, ProfileEffort effort) {
  LocalRanks all(ranks);
  std::vector<OperationTime> times;
  {
    std::vector<std::jthread> threads;
    for (int rank = 1; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] { time_collectives(all.of(rank), effort); });
    }
    times = time_collectives(all.of(0), effort);
  }
  return times;
}

}  // namespace ballast
