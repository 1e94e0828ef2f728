#include "autotune/step_floor.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>

#include "autotune/profile.h"
#include "sim/graph/rewrite.h"

namespace ballast {
namespace {

constexpr double kMargin = 0.99;
constexpr int kLeastSize = 20, kLargestSize = 32;  // powers of two, bytes in 16 bits

Op operation(OpKind kind, LaneKind lane, Work work) {
  Op op;
  op.kind = kind;
  op.phase = Phase::kOptimizer;
  op.lane = lane_of(0, lane);
  op.work = std::move(work);
  return op;
}

Op adam(const Plan& plan, int64_t count, Site site) {
  const Bytes moved = optimizer_state(count, plan.optimizer) * 2 + bytes_of(count, plan.dtype);
  return operation(OpKind::kAdam, site == Site::kGpu ? LaneKind::kCompute : LaneKind::kCpu,
                   BucketWork{count, plan.dtype, plan.dtype, site, moved});
}

}  // namespace

StepFloor StepFloors::of(const Plan& layout, const Space& space) {
  const bool talks = layout.replicas() > 1 && !gathers(layout);
  const RankGroup group = replica_group(layout);
  const std::string key =
      fmt::format("{} {} {} {}", talks ? group.ranks : 0, talks ? group.stride : 0,
                  layout.zero_stage > 0, static_cast<int>(layout.optimizer.moments));
  auto [found, is_new] = rates_.try_emplace(key);
  StepFloor& rates = found->second;
  if (is_new && !costs_.is_measured()) {
    Graph graph;
    graph.lanes = kLaneKinds;
    std::vector<int64_t> counts;
    for (int power = kLeastSize; power <= kLargestSize; ++power) {
      const Bytes bytes{int64_t{1} << power};
      const int64_t count = bytes.count / bytes_of(1, layout.dtype).count;
      counts.push_back(count);
      std::vector<Op>& ops = graph.step.ops;
      ops.push_back(adam(layout, count, Site::kGpu));
      ops.push_back(adam(layout, count, Site::kCpu));
      ops.push_back(operation(OpKind::kCopy, LaneKind::kCopyOut,
                              CopyWork{bytes, CopyDirection::kDeviceToHost}));
      ops.push_back(operation(OpKind::kCopy, LaneKind::kCopyIn,
                              CopyWork{bytes, CopyDirection::kHostToDevice}));
      const auto exchange = [&](CollectiveKind kind, bool happens) {
        Work work;
        if (happens) work = CollectiveWork{kind, bytes, group.ranks, group.stride};
        ops.push_back(operation(OpKind::kCollective, LaneKind::kNetwork, std::move(work)));
      };
      const bool splits = layout.zero_stage > 0;
      exchange(splits ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce, talks);
      exchange(CollectiveKind::kAllGather, talks && splits);
    }
    const CostTable table = costs_.table(graph.step, graph);
    size_t next = 0;
    bool first = true;
    for (const int64_t count : counts) {
      for (double* rate : {&rates.gpu_adam, &rates.cpu_adam, &rates.out, &rates.fetch,
                           &rates.reduce, &rates.gather}) {
        const double each =
            kMargin * static_cast<double>(table.ops[next++].alone.ps) / static_cast<double>(count);
        *rate = first ? each : std::min(*rate, each);
      }
      first = false;
    }
  }
  StepFloor floor = rates;
  floor.most_flow = space.flow_share.back();
  floor.on_gpu = std::any_of(space.buckets.begin(), space.buckets.end(),
                             [](const BucketChoice& b) { return b.gpu_buckets.back() > 0; });
  return floor;
}

}  // namespace ballast
