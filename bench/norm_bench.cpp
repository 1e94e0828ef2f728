// What the gradient norms of CPU buckets cost: predicted from this machine's profile beside what
// the host device takes for them, bucket by bucket.
//
// Profiles the machine (half a minute), then times the operations of a plan for each size of
// buckets. Wants a machine on which nothing else runs. Usage: norm_bench
#include <fmt/format.h>
#include <string>
#include <vector>

#include "backend/measure/operation_times.h"
#include "backend/measure/profile_host.h"
#include "profiles/load.h"
#include "sim/engine/cost.h"
#include "sim/graph/build.h"

namespace ballast {
namespace {

Plan plan_with(int64_t bucket_bytes) {
  Plan plan;
  plan.global_batch = 1;
  plan.micro_batch = 1;
  plan.sequence_length = 64;
  plan.weights.flow_share = 0;
  plan.activations = ActivationPlan{};
  plan.optimizer.gpu_buckets = 0;
  plan.optimizer.sync = SyncMode::kWait;
  plan.optimizer.bucket_bytes = {bucket_bytes};
  return plan;
}

void show_norms(const Model& model, const Machine& machine, int64_t bucket_bytes) {
  TrainerOptions options;
  options.optimizer_threads = static_cast<int>(machine.cpu.optimizer_threads);
  const Plan plan = plan_with(bucket_bytes);
  const CostModel costs(machine, plan, Stack{}, nullptr);
  const Graph graph = build(model, plan);
  for (const OperationTime& time : measure_operations(model, plan, 2.0, options)) {
    if (time.op.kind != OpKind::kSumOfSquares) continue;
    Sequence alone;
    alone.ops = {time.op};
    const OpCost cost = costs.table(alone, graph).ops.front();
    fmt::print("{:>12} {:>10} {:12.1f} {:11.1f} {:+7.1f}%\n", bucket_bytes >> 20,
               std::get<BucketWork>(time.op.work).elements, cost.alone.us(), time.median.us(),
               100 * (cost.alone.us() / time.median.us() - 1));
  }
}

int bench() {
  const Profile profile = profile_host({});
  const Machine& machine = profile.machine;
  fmt::print("{} cores, {} threads of the optimizer, dram {:.1f} GB/s\n\n", machine.cpu.cores,
             machine.cpu.optimizer_threads, machine.cpu.memory_bandwidth.value.gb_per_s());
  fmt::print("{:>12} {:>10} {:>12} {:>11} {:>8}\n", "buckets MiB", "elements", "predicted us",
             "measured us", "error");
  const Model model = load_model("quickstart-gpt");
  for (const int64_t mebibytes : {1, 4, 16, 64}) {
    show_norms(model, machine, mebibytes << 20);
  }
  return 0;
}

}  // namespace
}  // namespace ballast

int main() {
  try {
    return ballast::bench();
  } catch (const ballast::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
