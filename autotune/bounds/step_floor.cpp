#include "autotune/bounds/step_floor.h"

#include <algorithm>
#include <fmt/format.h>
#include <vector>

#include "autotune/bounds/operation_times.h"
#include "autotune/bounds/part_costs.h"
#include "sim/graph/core/edit.h"

namespace ballast {
namespace {

constexpr double kMargin = 0.99;
constexpr int kLeastSize = 20, kLargestSize = 32;  // powers of two, bytes in 16 bits

StepFloor rates_of(const Plan& layout, bool talks, const CostModel& costs) {
  StepFloor rates;
  if (costs.is_measured()) return rates;
  const bool splits = layout.zero_stage > 0;
  Prices prices(layout);
  std::vector<int64_t> counts;
  for (int power = kLeastSize; power <= kLargestSize; ++power) {
    const Bytes bytes{int64_t{1} << power};
    const int64_t count = bytes.count / size_of(layout.dtype);
    counts.push_back(count);
    prices.add_adam(count, Site::kGpu, false);
    prices.add_adam(count, Site::kCpu, false);
    prices.add_transfer(LaneKind::kCopyOut, CopyDirection::kDeviceToHost, count, layout.dtype);
    prices.add_transfer(LaneKind::kCopyIn, CopyDirection::kHostToDevice, count, layout.dtype);
    prices.add_exchange(splits ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce, count,
                        talks);
    prices.add_exchange(CollectiveKind::kAllGather, count, talks && splits);
  }
  prices.price(costs);
  const bool direct = moves_state_by_kernels(layout.optimizer);
  rates.fetch_host = prices.host_ps(direct ? OpKind::kUnpack : OpKind::kCopy);
  for (const int64_t count : counts) {
    for (double* rate : {&rates.gpu_adam, &rates.cpu_adam, &rates.out, &rates.fetch, &rates.reduce,
                         &rates.gather}) {
      const double each = kMargin * static_cast<double>(prices.next()) / static_cast<double>(count);
      *rate = count == counts.front() ? each : std::min(*rate, each);
    }
  }
  return rates;
}

// Adds what it takes to send a byte for a shared turn.
void add_sending(const Plan& layout, const CostModel& costs, StepFloor& rates) {
  if (!layout.multiplex || costs.is_measured()) return;
  const int64_t ranks = layout.sequence * layout.pipeline;
  Prices prices(layout);
  for (int power = kLeastSize; power <= kLargestSize; ++power) {
    const Bytes bytes{int64_t{1} << power};
    const auto add = [&](LaneKind lane, CollectiveKind kind, int64_t among, int64_t stride) {
      prices.add(OpKind::kCollective, lane, CollectiveWork{kind, bytes, among, stride});
    };
    add(LaneKind::kPipelineNetwork, CollectiveKind::kSendReceive, layout.pipeline,
        layout.devices / layout.pipeline);
    add(LaneKind::kDataNetwork, CollectiveKind::kBroadcast, ranks, layout.tensor);
    add(LaneKind::kDataNetwork, CollectiveKind::kReduceScatter, ranks, layout.tensor);
  }
  prices.price(costs);
  for (int power = kLeastSize; power <= kLargestSize; ++power) {
    for (double* rate : {&rates.send, &rates.broadcast, &rates.scatter}) {
      const double each =
          kMargin * static_cast<double>(prices.next()) / static_cast<double>(int64_t{1} << power);
      *rate = power == kLeastSize ? each : std::min(*rate, each);
    }
  }
}

}  // namespace

StepFloor StepFloors::of(const Plan& layout, const Space& space) {
  const bool talks = layout.replicas() > 1 && !gathers(layout);
  const RankGroup group = replica_group(layout);
  const int64_t sharing = layout.multiplex ? layout.pipeline : 0;
  const std::string key =
      fmt::format("{} {} {} {} {} {} {} {} {}", talks ? group.ranks : 0, talks ? group.stride : 0,
                  layout.zero_stage > 0, static_cast<int>(layout.optimizer.moments), sharing,
                  sharing > 0 ? layout.sequence : 0, sharing > 0 ? layout.tensor : 0,
                  sharing > 0 ? layout.devices : 0, moves_state_by_kernels(layout.optimizer));
  const auto [found, is_new] = rates_.try_emplace(key);
  if (is_new) {
    found->second = rates_of(layout, talks, costs_);
    add_sending(layout, costs_, found->second);
  }
  StepFloor floor = found->second;
  floor.most_flow = space.flow_share.back();
  floor.on_gpu = std::any_of(space.buckets.begin(), space.buckets.end(),
                             [](const BucketChoice& b) { return b.gpu_buckets.back() > 0; });
  return floor;
}

}  // namespace ballast
