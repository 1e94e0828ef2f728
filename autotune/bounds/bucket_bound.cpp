#include "autotune/bounds/bucket_bound.h"

#include <algorithm>
#include <limits>

#include "autotune/bounds/operation_times.h"
#include "sim/graph/core/edit.h"

namespace ballast {
namespace {

constexpr size_t kGpuSite = 0;
constexpr size_t kCpuSite = 1;

}  // namespace

BucketBound::BucketBound(const std::vector<Module>& modules, const Plan& base, const Space& space,
                         const BucketChoice& bucket, const CostModel& costs)
    : base_(base), space_(space), choice_(bucket) {
  OptimizerPlan plan = base.optimizer;
  plan.bucket_bytes = bucket.bytes;
  plan.gpu_buckets = 0;
  buckets_ = buckets_of(modules, plan);
  times_.resize(buckets_.size());
  if (!costs.is_measured()) fill_times(costs);
  fill_state(modules);
}

void BucketBound::fill_state(const std::vector<Module>& modules) {
  const bool splits = base_.zero_stage > 0 && !gathers(base_);
  Plan plan = base_;
  Graph graph;  // of which flowing_modules reads these two
  graph.modules = modules;
  graph.buckets = buckets_;
  for (size_t i = 0; i < choice_.gpu_buckets.size(); ++i) {
    int64_t elements = 0;
    for (size_t b = border_of(i); b < buckets_.size(); ++b) {
      elements += splits ? buckets_[b].count / base_.replicas() : buckets_[b].count;
      graph.buckets[b].site = Site::kGpu;
    }
    for (size_t b = 0; b < border_of(i); ++b) graph.buckets[b].site = Site::kCpu;
    const Bytes state = optimizer_state(elements, base_.optimizer);
    residences_.emplace_back();
    for (const double share : space_.flow_share) {
      plan.weights.flow_share = share;
      Residence residence;
      residence.flowing = flowing_modules(graph, plan);
      for (size_t m = 0; m < modules.size(); ++m) {
        residence.staying += residence.flowing[m] ? 0 : modules[m].count;
      }
      residence.on_gpu = state + bytes_of(residence.staying, base_.dtype);
      residences_.back().push_back(std::move(residence));
    }
  }
}

void BucketBound::fill_times(const CostModel& costs) {
  const bool talks = base_.replicas() > 1 && !gathers(base_);
  const bool splits = base_.zero_stage > 0;
  // What ranks have of different experts they do not exchange.
  const bool exchanges = talks && base_.expert == 1;
  const DType types[] = {base_.dtype, DType::kF32};
  const DType gradient = gradient_dtype(base_, {});
  // Unless it is scattered in between.
  const bool packs_into_cpu_memory = moves_state_by_kernels(base_.optimizer) && !(splits && talks);
  Prices prices(base_);
  for (const Bucket& bucket : buckets_) {
    const int64_t whole = bucket.count;
    const int64_t count = splits && talks ? whole / base_.replicas() : whole;
    for (const Site site : {Site::kGpu, Site::kCpu}) {
      for (const bool exact : {false, true}) prices.add_adam(count, site, exact);
      const LaneKind lane = site == Site::kGpu ? LaneKind::kCompute : LaneKind::kCpu;
      const Bytes snapshot = bytes_of(count, DType::kF32) +
                             bytes_of((kSnapshotArrays - 1) * count, base_.optimizer.moments);
      prices.add(
          OpKind::kSnapshot, lane,
          elementwise(snapshot.count / size_of(DType::kF32), DType::kF32, DType::kF32, site));
    }
    BucketWork norm{count, gradient, DType::kF64, Site::kGpu, bytes_of(count, gradient)};
    prices.add(OpKind::kSumOfSquares, LaneKind::kCompute, norm);
    prices.add(OpKind::kCast, LaneKind::kCpu,
               elementwise(count, DType::kF32, base_.dtype, Site::kCpu));
    for (const DType type : types) {
      const DType out = gradient == DType::kF32 ? gradient : type;
      BucketWork pack = elementwise(whole, gradient, out, Site::kGpu);
      if (packs_into_cpu_memory) pack.to_host = bytes_of(whole, out);
      prices.add(OpKind::kPack, LaneKind::kCopyOut, pack);
      prices.add_transfer(LaneKind::kCopyOut, CopyDirection::kDeviceToHost, count, out);
      prices.add_transfer(LaneKind::kUpload, CopyDirection::kHostToDevice, count, type);
    }
    prices.add_exchange(splits ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce, whole,
                        exchanges);
    prices.add_exchange(CollectiveKind::kAllGather, whole, exchanges && splits);
  }
  prices.price(costs);
  for (Times& t : times_) {
    for (const size_t site : {kGpuSite, kCpuSite}) {
      t.adam[site][kNothing] = prices.next();
      t.adam[site][kBits] = prices.next();
      t.adam[site][kCopy] = t.adam[site][kNothing] + prices.next();
    }
    t.norm = prices.next();
    t.cast = prices.next();
    for (size_t width = 0; width < 2; ++width) {
      t.pack[width] = prices.next();
      t.out[width] = prices.next();
      if (packs_into_cpu_memory) t.out[width] = 0;
      t.home[width] = prices.next();
    }
    t.reduce = prices.next();
    t.gather = prices.next();
  }
}

// How many buckets the CPU steps: those before the last ones.
size_t BucketBound::border_of(size_t index) const {
  if (base_.optimizer.placement == OptimizerPlacement::kGpu) return 0;
  const auto on_gpu = static_cast<size_t>(choice_.gpu_buckets[index]);
  return buckets_.size() - std::min(on_gpu, buckets_.size());
}

// The busiest lane. Weights that flow need not come home by bucket.
std::array<int64_t, 2> BucketBound::lanes(const ForwardBackwardProfile& compute,
                                          const Chosen& chosen) const {
  std::array<int64_t, kLaneKinds> lane = compute.work.lane;
  const auto at = [&](LaneKind kind) -> int64_t& { return lane[static_cast<size_t>(kind)]; };
  int64_t gathers_ps = 0;
  for (size_t b = 0; b < times_.size(); ++b) {
    const Times& t = times_[b];
    at(LaneKind::kDataNetwork) += t.reduce;
    gathers_ps += t.gather;
    if (b >= chosen.border) {
      at(LaneKind::kCompute) += t.adam[kGpuSite][chosen.record] + t.norm;
      continue;
    }
    at(LaneKind::kCopyOut) += t.pack[chosen.width] + t.out[chosen.width];
    at(LaneKind::kCpu) += t.adam[kCpuSite][chosen.record] + (chosen.cpu_casts ? t.cast : 0);
  }
  std::array<int64_t, 2> busiest{};
  busiest[1] = *std::max_element(lane.begin(), lane.end());
  at(LaneKind::kDataNetwork) += gathers_ps;
  for (size_t b = 0; b < chosen.border; ++b) at(LaneKind::kUpload) += times_[b].home[chosen.width];
  busiest[0] = *std::max_element(lane.begin(), lane.end());
  return busiest;
}

std::vector<std::vector<int64_t>> BucketBound::flows(const ForwardBackwardProfile& compute,
                                                     const std::vector<FetchProfile>& fetch) const {
  int64_t reduce = 0;
  double gather = 0;  // picoseconds a parameter, of the bucket that takes least
  for (size_t b = 0; b < times_.size(); ++b) {
    reduce += times_[b].reduce;
    const double each =
        static_cast<double>(times_[b].gather) / static_cast<double>(buckets_[b].count);
    gather = b == 0 ? each : std::min(gather, each);
  }
  std::vector<std::vector<int64_t>> least;
  for (const std::vector<Residence>& by_share : residences_) {
    least.emplace_back();
    for (const Residence& residence : by_share) {
      Workload work = compute.work;
      for (size_t m = 0; m < fetch.size(); ++m) {
        if (residence.flowing[m]) work.add(fetch[m].one, static_cast<double>(fetch[m].visits));
      }
      work.lane[static_cast<size_t>(LaneKind::kDataNetwork)] +=
          reduce + static_cast<int64_t>(gather * static_cast<double>(residence.staying));
      least.back().push_back(work.busiest_ps());
    }
  }
  return least;
}

// The longest way around: gradient, CPU, weights, and the first use of these in the next step.
std::array<int64_t, 2> BucketBound::chain(const ForwardBackwardProfile& compute,
                                          const Chosen& chosen) const {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  const auto first_use = [&](size_t b) {
    int64_t first = kNone;
    for (const Bucket::Piece& piece : buckets_[b].pieces) {
      const int64_t use = compute.first_use_ps[static_cast<size_t>(piece.module)];
      if (use >= 0) first = std::min(first, use);
    }
    return first;
  };
  std::array<int64_t, 2> longest{};
  int64_t out = kLongAgo, cpu = kLongAgo, home = kLongAgo, landed = kLongAgo;
  const auto step = [&](size_t b, int64_t arrived) {
    const Times& t = times_[b];
    // A copy of the state is made before the gradient arrives.
    const bool copies = chosen.record == kCopy;
    if (copies) cpu += t.adam[kCpuSite][kCopy] - t.adam[kCpuSite][kNothing];
    cpu = std::max(cpu, arrived) + t.adam[kCpuSite][copies ? kNothing : chosen.record];
    if (chosen.cpu_casts) cpu += t.cast;
    home = std::max(home, cpu) + t.home[chosen.width];
    const int64_t first = first_use(b);
    if (first == kNone) return;
    longest[0] = std::max(longest[0], home + t.gather - first);
    longest[1] = std::max(longest[1], cpu - first);
  };
  for (size_t b = 0; b < chosen.border; ++b) {
    const Times& t = times_[b];
    int64_t ready = 0;
    for (const Bucket::Piece& piece : buckets_[b].pieces) {
      ready = std::max(ready, compute.gradient_ready_ps[static_cast<size_t>(piece.module)]);
    }
    out = std::max(out, ready) + t.pack[chosen.width] + t.reduce + t.out[chosen.width];
    landed = out;
    if (chosen.sync == SyncMode::kSpeculate) step(b, landed);
  }
  if (chosen.sync == SyncMode::kWait && chosen.border > 0) {
    const auto lane = static_cast<size_t>(LaneKind::kCompute);
    const int64_t decided = std::max(landed, compute.work.lane[lane]);
    for (size_t b = chosen.border; b-- > 0;) step(b, decided);
  }
  return longest;
}

StepBound BucketBound::steps(const ForwardBackwardProfile& compute, CastPlacement cast) const {
  StepBound bound;
  for (const SyncChoice& sync : space_.sync) {
    Chosen chosen;
    chosen.sync = sync.mode;
    chosen.cpu_casts = cast == CastPlacement::kCpu && base_.dtype != DType::kF32;
    chosen.width = chosen.cpu_casts ? 0 : 1;
    if (sync.mode == SyncMode::kSpeculate) {
      chosen.record = sync.undo == UndoKind::kExact ? kBits : kCopy;
    }
    bound.emplace_back();
    for (size_t i = 0; i < choice_.gpu_buckets.size(); ++i) {
      chosen.border = border_of(i);
      const std::array<int64_t, 2> busy = lanes(compute, chosen);
      const std::array<int64_t, 2> around = chain(compute, chosen);
      bound.back().push_back({std::max(busy[0], around[0]), std::max(busy[1], around[1])});
    }
  }
  return bound;
}

}  // namespace ballast
