// What the gradient norms of CPU buckets cost: predicted from this machine's profile beside what
// the host device takes for them, bucket by bucket.
//
// Profiles the machine (half a minute), then takes a few steps for each size of buckets. Wants a
// machine on which nothing else runs. Usage: norm_bench
#include <fmt/format.h>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "backend/measure/profile_host.h"
#include "backend/train/trainer.h"
#include "profiles/load.h"
#include "sim/base/median.h"
#include "sim/engine/cost.h"

namespace ballast {
namespace {

constexpr int64_t kSteps = 4;

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

// Of a step that runs one operation after another, so that no bucket is in a cache from the time
// before: the median of every size.
void show_norms(const Model& model, const Machine& machine, int64_t bucket_bytes) {
  TrainerOptions options;
  options.optimizer_threads = static_cast<int>(machine.cpu.optimizer_threads);
  options.optimizer.learning_rate.total_steps = kSteps;
  const Plan plan = plan_with(bucket_bytes);
  const CostModel costs(machine, plan, Stack{}, nullptr);
  Trainer trainer(model, plan, options);
  const TrainResult result = trainer.train(kSteps, nullptr, true);
  const Graph& graph = trainer.graph();
  const CostTable table = costs.table(graph.step, graph);
  std::map<int64_t, std::pair<double, std::vector<double>>> by_size;  // predicted, measured
  for (const Span& span : result.timeline.spans) {
    const Op& op = graph.op(span.op);
    if (op.kind != OpKind::kSumOfSquares) continue;
    auto& [predicted, measured] = by_size[std::get<BucketWork>(op.work).elements];
    predicted = table.ops[static_cast<size_t>(span.op)].alone.us();
    measured.push_back((span.end - span.begin).us());
  }
  for (auto& [elements, times] : by_size) {
    const double measured = median(times.second);
    fmt::print("{:>12} {:>10} {:12.1f} {:11.1f} {:+7.1f}%\n", bucket_bytes >> 20, elements,
               times.first, measured, 100 * (times.first / measured - 1));
  }
}

int bench() {
  const Profile profile = profile_host({});
  const Machine& machine = profile.machine;
  fmt::print("{} cores, {} threads of the optimizer, dram {:.1f} GB/s\n\n", machine.cpu.cores,
             machine.cpu.optimizer_threads, machine.cpu.memory_bandwidth.value.gb_per_s());
  fmt::print("{:>12} {:>10} {:>12} {:>11} {:>8}\n", "buckets MiB", "elements", "predicted us",
             "measured us", "error");
  const Model model = load_model("gpt2");
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
