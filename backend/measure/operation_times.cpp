#include "backend/measure/operation_times.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "backend/comm/lone_rank.h"
#include "backend/execute/rank_place.h"
#include "backend/measure/profile_probes.h"
#include "backend/train/data.h"
#include "backend/train/parameter_state.h"
#include "backend/train/random.h"
#include "sim/graph/build.h"

namespace ballast {

namespace {

// The like of initialise_masters for timing, where a large module's values may repeat: drawing
// them one by one would take a minute for billions.
void fill_masters(const Graph& graph, const Model& model, uint64_t seed, TrainingDevice& device) {
  constexpr int64_t kPeriod = int64_t{1} << 20;
  constexpr double kDeviation = 0.02;  // as initialise()
  std::vector<float> tile;
  for (size_t i = 0; i < graph.modules.size(); ++i) {
    const Module module = whole_module(graph.modules[i]);
    if (module.count == 0) continue;
    std::vector<float> values(static_cast<size_t>(module.count));
    if (module.count <= kPeriod) {
      initialise(module, model, seed, values);
    } else {
      if (tile.empty()) {
        tile.resize(static_cast<size_t>(kPeriod));
        fill_normal(tile, key_of(seed, "repeated"), kDeviation);
      }
      for (size_t at = 0; at < values.size(); at += tile.size()) {
        const size_t count = std::min(tile.size(), values.size() - at);
        std::copy_n(tile.begin(), count, values.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
    write_masters(graph, i, 0, values, device);
  }
}

// Runs a program one operation at a time, each on the thread of its lane: nothing overlaps, but
// data that crosses lanes crosses cores, as it does when the executor runs.
class OneAtATime {
 public:
  OneAtATime(const Graph& graph, TrainingDevice& device, const std::function<bool()>& must_stop)
      : graph_(graph), device_(device), must_stop_(must_stop) {}

  // How long each operation of the step took; nothing where it was stopped before its end.
  std::optional<std::vector<Duration>> run(int32_t step) {
    std::vector<Duration> spent(graph_.step.ops.size());
    turn_ = 0;
    std::vector<std::jthread> lanes;
    for (LaneId lane = 0; lane < graph_.lanes; ++lane) {
      lanes.emplace_back([&, lane] { run_lane(lane, step, spent); });
    }
    lanes.clear();
    if (failure_) std::rethrow_exception(failure_);
    if (stopped_) return std::nullopt;
    return spent;
  }

 private:
  using Clock = std::chrono::steady_clock;

  void run_lane(LaneId lane, int32_t step, std::vector<Duration>& spent) {
    for (size_t i = 0; i < spent.size(); ++i) {
      const Op& op = graph_.step.ops[i];
      if (op.lane != lane) continue;
      const auto mine = static_cast<int32_t>(i);
      for (int32_t turn = turn_; turn != mine; turn = turn_) turn_.wait(turn);
      const auto begin = Clock::now();
      execute(op, mine, step);
      const std::chrono::nanoseconds time = Clock::now() - begin;
      spent[i] = device_.queues(lane) ? queued_time(lane) : Duration::from_ns(time.count());
      turn_ = mine + 1;
      turn_.notify_all();
    }
  }

  void execute(const Op& op, OpId id, int32_t step) {
    stopped_ = stopped_ || (must_stop_ && must_stop_());
    if (failure_ || stopped_) return;
    try {
      if (op.kind == OpKind::kCommit) {
        device_.commit(step);
      } else {
        if (device_.queues(op.lane)) device_.hold(op.lane);
        device_.execute(graph_.step, id, step);
      }
      device_.drain();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  // Of the operation that was just handed over, in the device's own time. None of a commit.
  Duration queued_time(LaneId lane) {
    Duration time;
    for (const FinishedOperation& finished : device_.take_finished(lane)) {
      time = Duration::from_ns(finished.end_ns - finished.begin_ns);
    }
    return time;
  }

  const Graph& graph_;
  TrainingDevice& device_;
  const std::function<bool()>& must_stop_;
  std::atomic<int32_t> turn_{0};
  std::exception_ptr failure_;  // this and the next: written and read by whoever has the turn
  bool stopped_ = false;
};

// Text whose bytes are token ids of the model, without any order.
std::string random_text(int64_t length, int64_t vocab) {
  std::minstd_rand random(1);
  const auto ids = static_cast<unsigned>(std::min<int64_t>(vocab, 256));
  std::string text(static_cast<size_t>(length), '\0');
  for (char& character : text) character = static_cast<char>(random() % ids);
  return text;
}

}  // namespace

std::vector<OperationTime> measure_operations(const Model& model, const Plan& plan, double seconds,
                                              const TrainerOptions& options,
                                              const std::function<bool()>& must_stop) {
  using Clock = std::chrono::steady_clock;
  const Graph graph = build_to_run(model, plan);
  TokenOptions token_options;
  token_options.vocab = std::max<int64_t>(model.vocab, 256);
  const TokenSource data = TokenSource::from_text(
      random_text(64 * (plan.sequence_length + 1), model.vocab), "random tokens", token_options);
  // Every step is to be applied as it is: nothing clipped, nothing skipped, nothing rolled back.
  DeviceOptions with = device_options(options);
  with.optimizer.clip_norm = 0;
  with.captures = false;  // each operation is timed alone
  // Of several ranks, what one does by itself: what it exchanges is not measured so.
  LoneRank lone(static_cast<int>(rank_count(plan)));
  if (lone.size() > 1) with.of_rank = {&lone, {}, {}, {}, true};
  ControlState control;
  control.loss_scale = LossScale(1, 1 << 20);
  const std::unique_ptr<TrainingDevice> device =
      open_device({model, plan, graph, data}, options, with, control);
  fill_masters(graph, model, options.seed, *device);
  device->spread_weights();

  OneAtATime program(graph, *device, must_stop);
  const auto start = Clock::now();
  constexpr int32_t kWarmUp = 1;
  constexpr int32_t kLeast = 3;
  constexpr int32_t kMost = 50;
  std::map<std::string, std::pair<const Op*, std::vector<Duration>>> samples;
  for (int32_t step = 0; step < kMost; ++step) {
    const std::optional<std::vector<Duration>> spent = program.run(step);
    if (!spent) break;
    const std::chrono::duration<double> so_far = Clock::now() - start;
    for (size_t i = 0; step >= kWarmUp && i < spent->size(); ++i) {
      const Op& op = graph.step.ops[i];
      if (std::holds_alternative<std::monostate>(op.work)) continue;
      if (op.kind == OpKind::kCollective && lone.size() > 1) continue;
      auto& [first, times] = samples[cost_key(op)];
      if (first == nullptr) first = &op;
      times.push_back((*spent)[i]);
    }
    if (step + 1 >= kWarmUp + kLeast && so_far.count() > seconds) break;
  }
  std::vector<OperationTime> times;
  for (auto& [key, sample] : samples) {
    const Timing timing = summarise(std::move(sample.second));
    times.push_back({*sample.first, timing.median, timing.deviation});
  }
  return times;
}

}  // namespace ballast
