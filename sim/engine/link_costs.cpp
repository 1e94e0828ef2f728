// The part of the cost model that times what crosses the link between the memories of GPU and CPU:
// copies, and kernels of the GPU that read and write CPU memory themselves.
#include <algorithm>

#include "sim/engine/cost.h"

namespace ballast {
namespace {

struct LinkRate {
  double bytes_per_s = 0;
  bool measured = false;
};

// Of one direction, or of the way to another chip's memory where that is slower.
LinkRate rate_of(const Curve& curve, double bytes, const Link& link, NumaBinding numa) {
  const double rate = curve.rate_at(bytes);
  if (numa == NumaBinding::kRemote && link.remote->value.bytes_per_s < rate) {
    return {link.remote->value.bytes_per_s, link.remote->measured};
  }
  return {rate, curve.measured};
}

}  // namespace

CostModel::Alone CostModel::copy(const CopyWork& work) const {
  const Link& link = machine_.link;
  const Curve& curve =
      work.direction == CopyDirection::kHostToDevice ? link.host_to_device : link.device_to_host;
  const auto each = static_cast<double>(div_ceil(work.bytes.count, work.calls));
  auto [rate, measured] = rate_of(curve, each, link, numa_);
  if (work.host == HostMemory::kPageable) rate *= link.pageable_share.value;
  return {work.bytes / Bandwidth{rate} + link.latency.value * static_cast<double>(work.calls),
          measured ? Provenance::kInterpolated : Provenance::kRoofline};
}

void CostModel::check_direct() const {
  if (!has_direct_kernels_) {
    throw Error("stack " + stack_ + ": optimizer.transfers",
                "no framework has kernels that read and write CPU memory for the optimizer",
                "predict it with --stack ballast, or set plan.optimizer.transfers=copies");
  }
  const Link& link = machine_.link;
  if (machine_.gpu.is_host_thread || (!link.kernel_reads.empty() && !link.kernel_writes.empty())) {
    return;
  }
  throw Error("machine " + machine_.name + ": link.kernel_reads, link.kernel_writes",
              "are missing, but a plan with optimizer.transfers direct has kernels that read and "
              "write CPU memory at those rates",
              "add them to the machine's file, measure this machine's with ballast profile, or set "
              "plan.optimizer.transfers=copies");
}

// A kernel streams: what it moves in the GPU's memory, in, and out overlaps, and the slowest of
// them is its time.
CostModel::Alone CostModel::direct(const BucketWork& work) const {
  check_direct();
  const Link& link = machine_.link;
  bool measured = true;
  const auto across = [&](const Curve& curve, Bytes bytes) -> Duration {
    if (bytes.count == 0) return {};
    const LinkRate rate = rate_of(curve, static_cast<double>(bytes.count), link, numa_);
    measured = measured && rate.measured;
    return bytes / Bandwidth{rate.bytes_per_s};
  };
  const Duration in = across(link.kernel_reads, work.from_host);
  const Duration out = across(link.kernel_writes, work.to_host);
  const Bytes crossing = work.from_host + work.to_host;
  Duration slowest = std::max({pass(work.moved - crossing), in, out});
  if (in.ps > 0 && out.ps > 0) slowest = std::max(slowest, crossing / link.both_total.value);
  return {launched(slowest), measured ? Provenance::kInterpolated : Provenance::kRoofline};
}

void CostModel::add_direct_demands(const BucketWork& work, OpCost& cost) const {
  const auto rate = [&](Bytes bytes) { return per_second(bytes, cost.alone); };
  const Bytes crossing = work.from_host + work.to_host;
  demand(cost, kHbm, rate(work.moved - crossing));
  demand(cost, kDram, rate(crossing));
  demand(cost, kLinkTotal, rate(crossing));
  if (work.from_host.count > 0) demand(cost, kHostToDevice, rate(work.from_host));
  if (work.to_host.count > 0) demand(cost, kDeviceToHost, rate(work.to_host));
  // Its blocks stay on their multiprocessors until it is done.
  const auto blocks = static_cast<double>(kDirectBlocks);
  hold_multiprocessors(blocks / static_cast<double>(machine_.gpu.multiprocessors), false, cost);
}

}  // namespace ballast
