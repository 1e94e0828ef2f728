// What the start of a training takes: initial parameters are drawn and written into the masters,
// and weights are made of them, on one thread and on all, in time of the processor. Divided by
// cores that is the time of a model of 8 billion, as long as memory keeps up. Usage: start_bench
#include <algorithm>
#include <ctime>
#include <fmt/format.h>
#include <functional>
#include <thread>
#include <vector>

#include "backend/train/random.h"
#include "backend/train/trainer.h"
#include "kernels/threads.h"
#include "profiles/load.h"

namespace ballast {
namespace {

// Of all threads together, busy: other programs on the machine do not count.
double seconds_of(const std::function<void()>& work) {
  const auto spent = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double begin = spent();
  work();
  return spent() - begin;
}

constexpr double kModel = 8e9;
constexpr double kCores = 16;

void show(const char* what, int threads, double seconds, double parameters) {
  const double each = seconds / parameters;
  fmt::print("{:<24} {:>7} {:>8.2f} {:>12.2f} {:>20.1f}\n", what, threads, seconds, 1e9 * each,
             each * kModel / kCores);
}

void show_draws(int threads) {
  const int64_t values_in_all = int64_t{1} << 26;
  const int64_t tile = int64_t{1} << 18;
  kernels::Workers crew(threads, kernels::Pinning::kNone);
  const double seconds = seconds_of([&] {
    crew.for_tiles(values_in_all, tile, [=](int64_t begin, int64_t end) {
      std::vector<float> values(tile);
      for (int64_t at = begin; at < end; at += tile) fill_normal(values, 1, 0.02, at);
    });
  });
  show("draws alone", threads, seconds, values_in_all);
}

void show_start(const Model& model, int threads) {
  Plan plan;
  plan.global_batch = 1;
  plan.micro_batch = 1;
  plan.sequence_length = 64;
  plan.weights.flow_share = 0;
  plan.activations = ActivationPlan{};
  plan.optimizer.gpu_buckets = 0;
  TrainerOptions options;
  options.optimizer_threads = threads;
  options.optimizer.learning_rate.total_steps = 1;
  const double seconds = seconds_of([&] { const Trainer trainer(model, plan, options); });
  show("whole start", threads, seconds, static_cast<double>(parameter_count(model)));
}

}  // namespace
}  // namespace ballast

int main() {
  using namespace ballast;
  const int all = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  fmt::print("{:<24} {:>7} {:>8} {:>12} {:>20}\n", "", "threads", "CPU s", "ns a number",
             "s of 8e9, 16 cores");
  for (const int threads : {1, all}) show_draws(threads);
  const Model model = load_model("gpt2");
  for (const int threads : {1, all}) show_start(model, threads);
}
