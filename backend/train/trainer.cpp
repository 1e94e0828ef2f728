#include "backend/train/trainer.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fmt/format.h>
#include <limits>

#include "backend/train/checkpoint.h"
#include "backend/train/data.h"
#include "backend/train/make_device.h"
#include "backend/train/random.h"
#include "sim/graph/build.h"

namespace ballast {

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

// Writes all parameters of a module into the masters of its buckets.
void write_masters(const Graph& graph, size_t index, std::span<const float> values,
                   TrainingDevice& device) {
  for (const Bucket& bucket : graph.buckets) {
    for (const Bucket::Piece& piece : bucket.pieces) {
      if (static_cast<size_t>(piece.module) != index) continue;
      const auto part =
          values.subspan(static_cast<size_t>(piece.begin), static_cast<size_t>(piece.count));
      write_state(device, graph, bucket, StateArray::kMaster, piece.offset, part);
    }
  }
}

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

// The checkpoint to go on from, if the options ask for one.
std::optional<std::string> resumed_from(const TrainerOptions& options) {
  if (!options.resume) return std::nullopt;
  if (!options.checkpoint_folder) {
    throw Error("--resume", "there is no checkpoint folder", "name it with --checkpoint DIR");
  }
  return newest_checkpoint(*options.checkpoint_folder);
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
        read_state(*state_->device, state_->graph, bucket, StateArray::kMaster, 0, bucket.count);
    flat.insert(flat.end(), master.begin(), master.end());
  }
  return flat;
}

}  // namespace ballast
