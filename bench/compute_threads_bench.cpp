// What compute threads bring: the steps of one training on the host device with 1 thread and with
// N, run in turns so that what else the machine does falls on both; in fp32 and in bf16.
//
// Prints the median step of each, their ratio, the median and both ends of the ratios of the turns,
// and the processor time of a step, which tells how much of the machine there was: with all of its
// cores free a step's processor time over its time is the number of cores that it used.
// Usage: compute_threads_bench [N [TURNS]]   (2 threads and 5 turns where nothing is said)
#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fmt/format.h>
#include <vector>

#include "backend/train/trainer.h"
#include "sim/base/median.h"

namespace ballast {
namespace {

constexpr int64_t kSteps = 4;  // of a turn; the first one warms up

Model small_model() {
  Model model;
  model.name = "small";
  model.architecture = "gpt2";
  model.layers = 4;
  model.hidden = 384;
  model.heads = model.kv_heads = 6;
  model.head_size = 64;
  model.ffn = 4 * model.hidden;
  model.vocab = 4096;
  model.max_positions = 256;
  model.layout = WeightLayout::kInOut;
  model.qkv_bias = model.attention_out_bias = model.mlp_bias = true;
  model.tied_embeddings = true;
  return model;
}

Plan plan_in(DType dtype) {
  Plan plan;
  plan.global_batch = plan.micro_batch.emplace(4);
  plan.sequence_length = 256;
  plan.dtype = dtype;
  plan.weights.flow_share = 0;
  plan.activations = ActivationPlan{};
  plan.optimizer.gpu_buckets = 1000;  // every step is compute
  plan.optimizer.sync = SyncMode::kWait;
  return plan;
}

struct Turn {
  double step_s = 0;
  double processor_s = 0;  // of a step, all threads together
};

Turn turn_of(const Plan& plan, int threads) {
  TrainerOptions options;
  options.compute_threads = threads;
  options.optimizer.clip_norm = 0;
  options.optimizer.learning_rate = {1e-4, 1e-5, 1, kSteps};
  Trainer trainer(small_model(), plan, options);
  const std::clock_t before = std::clock();
  const TrainResult result = trainer.train(kSteps, nullptr);
  const double used = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  std::vector<double> steps;
  for (size_t i = 1; i < result.step_times.size(); ++i) {
    steps.push_back(result.step_times[i].seconds());
  }
  return {median(steps), used / static_cast<double>(kSteps)};
}

void compare(DType dtype, int threads, int turns) {
  const Plan plan = plan_in(dtype);
  std::vector<double> one, many, ratios, one_used, many_used;
  for (int i = 0; i < turns; ++i) {
    const Turn alone = turn_of(plan, 1);
    const Turn divided = turn_of(plan, threads);
    one.push_back(alone.step_s), many.push_back(divided.step_s);
    one_used.push_back(alone.processor_s), many_used.push_back(divided.processor_s);
    ratios.push_back(alone.step_s / divided.step_s);
  }
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  fmt::print("{}: 1 thread {:.3f} s ({:.3f} s of processors), {} threads {:.3f} s ({:.3f} s); ",
             to_string(dtype), median(one), median(one_used), threads, median(many),
             median(many_used));
  fmt::print("{:.2f} times as fast ({:.2f} to {:.2f} by turns)\n", median(ratios), *least, *most);
}

}  // namespace
}  // namespace ballast

int main(int count, char** words) {
  const int threads = count > 1 ? std::atoi(words[1]) : 2;
  const int turns = count > 2 ? std::atoi(words[2]) : 5;
  if (threads < 1 || turns < 1) {
    fmt::print(stderr, "usage: compute_threads_bench [THREADS [TURNS]]\n");
    return 2;
  }
  for (const ballast::DType dtype : {ballast::DType::kF32, ballast::DType::kBf16}) {
    ballast::compare(dtype, threads, turns);
  }
  return 0;
}
