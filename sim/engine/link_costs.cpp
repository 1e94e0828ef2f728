// The part of the cost model that times what crosses the link between the memories of GPU and CPU:
// copies, and kernels of the GPU that read and write CPU memory themselves.
#include <algorithm>

#include "sim/engine/cost.h"

namespace ballast {

CostModel::Alone CostModel::copy(const CopyWork& work) const {
  const Link& link = machine_.link;
  const Curve& curve =
      work.direction == CopyDirection::kHostToDevice ? link.host_to_device : link.device_to_host;
  double rate = curve.rate_at(static_cast<double>(div_ceil(work.bytes.count, work.calls)));
  bool measured = curve.measured;
  if (numa_ == NumaBinding::kRemote && link.remote->value.bytes_per_s < rate) {
    rate = link.remote->value.bytes_per_s;
    measured = link.remote->measured;
  }
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
    double rate = curve.rate_at(static_cast<double>(bytes.count));
    const bool remote = numa_ == NumaBinding::kRemote && link.remote->value.bytes_per_s < rate;
    measured = measured && (remote ? link.remote->measured : curve.measured);
    if (remote) rate = link.remote->value.bytes_per_s;
    return bytes / Bandwidth{rate};
  };
  const Duration in = across(link.kernel_reads, work.from_host);
  const Duration out = across(link.kernel_writes, work.to_host);
  const Bytes crossing = work.from_host + work.to_host;
  Duration slowest = std::max({pass(work.moved - crossing), in, out});
  if (in.ps > 0 && out.ps > 0) slowest = std::max(slowest, crossing / link.both_total.value);
  return {launched(slowest), measured ? Provenance::kInterpolated : Provenance::kRoofline};
}

void CostModel::add_direct_demands(const BucketWork& work, OpCost& cost) const {
  const auto rate = [&](Bytes bytes) {
    return static_cast<double>(bytes.count) / cost.alone.seconds();
  };
  const Bytes crossing = work.from_host + work.to_host;
  demand(cost, kHbm, rate(work.moved - crossing));
  demand(cost, kDram, rate(crossing));
  demand(cost, kLinkTotal, rate(crossing));
  if (work.from_host.count > 0) demand(cost, kHostToDevice, rate(work.from_host));
  if (work.to_host.count > 0) demand(cost, kDeviceToHost, rate(work.to_host));
  // Its blocks stay on their multiprocessors until it is done.
  hold_multiprocessors(
      static_cast<double>(kDirectBlocks) / static_cast<double>(machine_.gpu.multiprocessors), cost);
}

}  // namespace ballast
