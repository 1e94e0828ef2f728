#include "backend/train/trainer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fmt/format.h>
#include <limits>
#include <map>
#include <random>
#include <thread>

#include "backend/train/checkpoint.h"
#include "backend/train/data.h"
#include "backend/train/make_device.h"
#include "backend/train/random.h"
#include "sim/base/median.h"
#include "sim/graph/build.h"

namespace ballast {

namespace {

constexpr size_t kCheckpointsKept = 2;

TokenSource open_data(const Model& model, const Plan& plan, const TrainerOptions& options) {
  TokenOptions token_options;
  token_options.vocab = model.vocab;
  token_options.seed = options.seed;
  const std::string path = options.data.empty() ? default_text_folder() : options.data;
  TokenSource source = TokenSource::open(path, token_options);
  if (!source.holds(Split::kTraining, plan.sequence_length)) {
    throw Error(path,
                fmt::format("it has {} training tokens, fewer than a sequence of {} and its "
                            "last target",
                            source.tokens(Split::kTraining), plan.sequence_length),
                "give more data or a shorter sequence");
  }
  return source;
}

DeviceOptions device_options(const TrainerOptions& options) {
  DeviceOptions device;
  device.optimizer_threads = options.optimizer_threads;
  device.optimizer = options.optimizer;
  device.gradient_factor = options.gradient_factor;
  device.captures = options.captures;
  device.gemm_algorithms = options.gemm_algorithms;
  return device;
}

std::unique_ptr<TrainingDevice> open_device(const Training& training, const TrainerOptions& options,
                                            const DeviceOptions& with, const ControlState& state) {
  if (options.make_device) return options.make_device(training, with, state);
  return make_device(options.device, training, with, state);
}

// The checkpoint to go on from, if the options ask for one.
std::optional<std::string> resumed_from(const TrainerOptions& options) {
  if (!options.resume) return std::nullopt;
  if (!options.checkpoint_folder) {
    throw Error("--resume", "there is no checkpoint folder", "name it with --checkpoint DIR");
  }
  return newest_checkpoint(*options.checkpoint_folder);
}

// Writes all parameters of a module into the masters of its buckets.
void write_masters(const Graph& graph, size_t index, std::span<const float> values,
                   TrainingDevice& device) {
  for (const Bucket& bucket : graph.buckets) {
    for (const Bucket::Piece& piece : bucket.pieces) {
      if (static_cast<size_t>(piece.module) != index) continue;
      const auto part =
          values.subspan(static_cast<size_t>(piece.begin), static_cast<size_t>(piece.count));
      device.write(bucket.master, 0, piece.offset * size_of(DType::kF32), std::as_bytes(part));
    }
  }
}

void initialise_masters(const Graph& graph, const Model& model, uint64_t seed,
                        TrainingDevice& device) {
  for (size_t i = 0; i < graph.modules.size(); ++i) {
    const Module& module = graph.modules[i];
    if (module.count == 0) continue;
    std::vector<float> values(static_cast<size_t>(module.count));
    initialise(module, model, seed, values);
    write_masters(graph, i, values, device);
  }
}

// The like of initialise_masters for timing, where a large module's values may repeat: drawing
// them one by one would take a minute for billions.
void fill_masters(const Graph& graph, const Model& model, uint64_t seed, TrainingDevice& device) {
  constexpr int64_t kPeriod = int64_t{1} << 20;
  constexpr double kDeviation = 0.02;  // as initialise()
  std::vector<float> tile;
  for (size_t i = 0; i < graph.modules.size(); ++i) {
    const Module& module = graph.modules[i];
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
    write_masters(graph, i, values, device);
  }
}

}  // namespace

struct Trainer::State {
  State(const Model& m, const Plan& p, const TrainerOptions& o, const CheckpointHeader& header)
      : model(m),
        plan(p),
        options(o),
        graph(build(model, plan)),
        data(open_data(model, plan, options)),
        device(open_device({model, plan, graph, data}, options, device_options(options),
                           header.control)),
        executor(graph, *device),
        next_step(static_cast<int32_t>(header.next_step)) {}

  int64_t checkpoint_period() const {
    return options.checkpoint_period_steps > 0 ? options.checkpoint_period_steps
                                               : plan.checkpoint_period_steps;
  }
  void save() {
    std::filesystem::create_directories(*options.checkpoint_folder);
    const CheckpointHeader header{model.name, next_step, options.seed, device->control().state()};
    save_checkpoint(graph, *device, header, checkpoint_path(*options.checkpoint_folder, next_step));
    prune_checkpoints(*options.checkpoint_folder, kCheckpointsKept);
  }

  Model model;
  Plan plan;
  TrainerOptions options;
  Graph graph;
  TokenSource data;
  std::unique_ptr<TrainingDevice> device;
  Executor executor;
  int32_t next_step;
  std::function<void()> tick;
  std::atomic<bool> stop{false};
};

Trainer::Trainer(const Model& model, const Plan& plan, const TrainerOptions& options) {
  check(options.optimizer.learning_rate);
  const std::optional<std::string> checkpoint = resumed_from(options);
  CheckpointHeader header;
  TrainerOptions effective = options;
  if (checkpoint) {
    header = load_checkpoint_header(*checkpoint);
    effective.seed = header.seed;
  }
  state_ = std::make_unique<State>(model, plan, effective, header);
  if (checkpoint) {
    load_checkpoint_state(state_->graph, *state_->device, *checkpoint);
    if (plan.optimizer.sync == SyncMode::kDelay)
      state_->device->restore_partials(state_->next_step);
  } else {
    initialise_masters(state_->graph, model, effective.seed, *state_->device);
    if (options.initial_weights) {
      import_weights(state_->graph, *state_->device, *options.initial_weights);
    }
  }
  state_->device->spread_weights();
}

Trainer::~Trainer() = default;

const Graph& Trainer::graph() const { return state_->graph; }

void Trainer::request_stop() {
  state_->stop = true;
  state_->executor.request_stop();
}

void Trainer::set_tick(std::function<void()> tick) { state_->tick = std::move(tick); }

TrainResult Trainer::train(int64_t steps, const std::function<void(const StepRecord&)>& on_step,
                           bool sequential) {
  State& s = *state_;
  if (steps > std::numeric_limits<int32_t>::max()) {
    throw Error("--steps", fmt::format("{} is out of range", steps), "use fewer");
  }
  TrainResult result;
  result.first_step = s.next_step;
  const auto take = [&] {
    for (const StepRecord& record : s.device->control().take_records()) {
      result.records.push_back(record);
      if (on_step) on_step(record);
    }
  };
  int32_t saved = -1;
  while (s.next_step < steps && !s.stop) {
    const int64_t period = s.options.checkpoint_folder ? s.checkpoint_period() : 0;
    const int64_t boundary = period > 0 ? (s.next_step / period + 1) * period : steps;
    RunOptions run;
    run.first_step = s.next_step;
    run.last_step = static_cast<int32_t>(std::min(boundary, steps) - 1);
    run.tick = [&] {
      take();
      if (s.tick) s.tick();
    };
    RunResult ran = sequential ? s.executor.run_sequentially(run) : s.executor.run(run);
    s.next_step = ran.last_step + 1;
    result.step_times.insert(result.step_times.end(), ran.step_times.begin(), ran.step_times.end());
    result.timeline = std::move(ran.timeline);
    result.rollbacks += ran.rollbacks;
    take();
    if (period > 0 && s.next_step % period == 0) {
      s.save();
      saved = s.next_step;
    }
  }
  if (s.options.checkpoint_folder && saved != s.next_step && s.next_step > result.first_step) {
    s.save();
  }
  result.next_step = s.next_step;
  result.stopped = s.stop && s.next_step < steps;
  result.memory = s.device->memory();
  return result;
}

double Trainer::validation_loss(int64_t batches) {
  State& s = *state_;
  double sum = 0;
  for (int64_t i = 0; i < batches; ++i) sum += s.device->evaluate(i, s.next_step);
  return sum / static_cast<double>(batches);
}

void Trainer::export_weights(const std::string& path) const {
  ballast::export_weights(state_->graph, *state_->device, state_->model, path);
}

std::vector<float> Trainer::parameters() const {
  std::vector<float> flat;
  for (size_t b = state_->graph.buckets.size(); b-- > 0;) {
    const Bucket& bucket = state_->graph.buckets[b];
    const std::vector<float> master =
        read_floats_of(*state_->device, bucket.master, 0, bucket.count);
    flat.insert(flat.end(), master.begin(), master.end());
  }
  return flat;
}

namespace {

OperationTime summarise(const Op& op, std::vector<Duration> samples) {
  OperationTime time{op, median(samples), {}};
  for (Duration& sample : samples) {
    sample = {std::abs(sample.ps - time.median.ps)};
  }
  time.deviation = median(samples);
  return time;
}

}  // namespace

namespace {

// Runs a program one operation at a time, each on the thread of its lane: nothing overlaps, but
// data that crosses lanes crosses cores, as it does when the executor runs.
class OneAtATime {
 public:
  OneAtATime(const Graph& graph, TrainingDevice& device) : graph_(graph), device_(device) {}

  // How long each operation of the step took.
  std::vector<Duration> run(int32_t step) {
    std::vector<Duration> spent(graph_.step.ops.size());
    turn_ = 0;
    std::vector<std::jthread> lanes;
    for (LaneId lane = 0; lane < graph_.lanes; ++lane) {
      lanes.emplace_back([&, lane] { run_lane(lane, step, spent); });
    }
    lanes.clear();
    if (failure_) std::rethrow_exception(failure_);
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
    if (failure_) return;
    try {
      if (op.kind == OpKind::kCommit) {
        device_.commit(step);
      } else {
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
  std::atomic<int32_t> turn_{0};
  std::exception_ptr failure_;  // written and read by whoever has the turn
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
                                              const TrainerOptions& options) {
  using Clock = std::chrono::steady_clock;
  const Graph graph = build(model, plan);
  TokenOptions token_options;
  token_options.vocab = std::max<int64_t>(model.vocab, 256);
  const TokenSource data = TokenSource::from_text(
      random_text(64 * (plan.sequence_length + 1), model.vocab), "random tokens", token_options);
  // Every step is to be applied as it is: nothing clipped, nothing skipped, nothing rolled back.
  DeviceOptions with = device_options(options);
  with.optimizer.clip_norm = 0;
  with.captures = false;  // each operation is timed alone
  ControlState control;
  control.loss_scale = LossScale(1, 1 << 20);
  const std::unique_ptr<TrainingDevice> device =
      open_device({model, plan, graph, data}, options, with, control);
  fill_masters(graph, model, options.seed, *device);
  device->spread_weights();

  OneAtATime program(graph, *device);
  const auto start = Clock::now();
  constexpr int32_t kWarmUp = 1;
  constexpr int32_t kLeast = 3;
  constexpr int32_t kMost = 50;
  std::map<std::string, std::pair<const Op*, std::vector<Duration>>> samples;
  for (int32_t step = 0; step < kMost; ++step) {
    const std::vector<Duration> spent = program.run(step);
    const std::chrono::duration<double> so_far = Clock::now() - start;
    for (size_t i = 0; step >= kWarmUp && i < spent.size(); ++i) {
      const Op& op = graph.step.ops[i];
      if (std::holds_alternative<std::monostate>(op.work)) continue;
      auto& [first, times] = samples[cost_key(op)];
      if (first == nullptr) first = &op;
      times.push_back(spent[i]);
    }
    if (step + 1 >= kWarmUp + kLeast && so_far.count() > seconds) break;
  }
  std::vector<OperationTime> times;
  for (auto& [key, sample] : samples) {
    times.push_back(summarise(*sample.first, std::move(sample.second)));
  }
  return times;
}

}  // namespace ballast
