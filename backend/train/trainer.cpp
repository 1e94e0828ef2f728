#include "backend/train/trainer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <span>
#include <system_error>
#include <thread>

#include "backend/comm/local_ranks.h"
#include "backend/execute/rank_place.h"
#include "backend/host/device_host.h"
#include "backend/train/checkpoint.h"
#include "backend/train/checkpoint_folder.h"
#include "backend/train/data.h"
#include "backend/train/make_device.h"
#include "backend/train/parameter_state.h"
#include "backend/train/random.h"
#include "backend/train/resume_notes.h"
#include "backend/train/weights_file.h"
#include "kernels/threads.h"
#include "sim/base/units.h"
#include "sim/graph/build.h"

namespace ballast {

DeviceOptions device_options(const TrainerOptions& options) {
  DeviceOptions device;
  device.optimizer_threads = options.optimizer_threads;
  device.compute_threads = options.compute_threads;
  device.optimizer = options.optimizer;
  device.gradient_factor = options.gradient_factor;
  device.captures = options.captures;
  device.timed_steps_apart = options.timed_steps_apart;
  device.gemm_algorithms = options.gemm_algorithms;
  device.disk = options.disk;
  return device;
}

std::unique_ptr<TrainingDevice> open_device(const Training& training, const TrainerOptions& options,
                                            const DeviceOptions& with, const ControlState& state) {
  if (options.make_device) return options.make_device(training, with, state);
  return make_device(options.device, training, with, state);
}

namespace {

// More threads than these, each rank with a dozen, a process is not meant for.
constexpr int64_t kMostLocalRanks = 16;

// Why a rank would end the run; what the ranks agree on has the bits of all.
constexpr int kAsked = 1;
constexpr int kDiverged = 2;
constexpr int kNotWritten = 4;

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

const HostClock& clock_of(const TrainerOptions& options) {
  return options.clock != nullptr ? *options.clock : host_clock();
}

Files& files_of(const TrainerOptions& options) {
  return options.files != nullptr ? *options.files : system_files();
}

// The folder of checkpoints, locked; a run that begins anew may not put its own among others.
std::optional<CheckpointFolder> open_folder(const TrainerOptions& options) {
  if (!options.checkpoint_folder) {
    if (!options.resume) return std::nullopt;
    throw Error("--resume", "there is no checkpoint folder", "name it with --checkpoint DIR");
  }
  CheckpointFolder folder(*options.checkpoint_folder, files_of(options));
  if (!options.resume && !options.replace_checkpoints) folder.require_empty();
  return folder;
}

CheckpointHeader header_to_resume(const std::string& path, const TrainerOptions& options) {
  CheckpointHeader header = load_checkpoint_header(path, files_of(options));
  const std::string other = first_difference(header.model_record, options.model_record);
  if (other.empty()) return header;
  throw Error(path, "it is of another model, " + header.model + ": " + other,
              "resume with the model of that run");
}

// A part of a parameter, small enough to go from the registers that draw it to the master without
// leaving the cache for good.
struct Drawn {
  size_t module = 0;
  const Parameter* parameter = nullptr;
  int64_t first = 0;
  int64_t count = 0;
};
constexpr int64_t kDrawnAtOnce = int64_t{1} << 18;

// Of tensor-parallel ranks each draws the whole of a parameter, and keeps its part.
void initialise_slices(const Graph& graph, const Model& model, uint64_t seed,
                       const ParameterSlices& slices, TrainingDevice& device) {
  for (size_t i = 0; i < graph.modules.size(); ++i) {
    const Module& module = slices.whole(i);
    std::vector<float> values(static_cast<size_t>(module.count));
    initialise(module, model, seed, values);
    for (const Parameter& parameter : module.parameters) {
      write_parameter(
          graph, device, i, parameter, StateArray::kMaster,
          std::span<const float>(values).subspan(static_cast<size_t>(parameter.offset),
                                                 static_cast<size_t>(parameter.count())));
    }
  }
}

// Every number depends on its parameter and place alone, so any thread may draw any part.
void initialise_masters(const Graph& graph, const Model& model, const TrainerOptions& options,
                        uint64_t seed, TrainingDevice& device) {
  if (const ParameterSlices* const slices = device.slices(); slices != nullptr) {
    return initialise_slices(graph, model, seed, *slices, device);
  }
  std::vector<Module> modules;
  for (const Module& each : graph.modules) modules.push_back(whole_module(each));
  std::vector<Drawn> parts;
  for (size_t i = 0; i < modules.size(); ++i) {
    for (const Parameter& parameter : modules[i].parameters) {
      for (int64_t first = 0; first < parameter.count(); first += kDrawnAtOnce) {
        parts.push_back({i, &parameter, first, std::min(kDrawnAtOnce, parameter.count() - first)});
      }
    }
  }
  const int threads = std::max(options.optimizer_threads, options.compute_threads);
  kernels::Workers crew(threads, kernels::Pinning::kNone);
  crew.for_tiles(std::ssize(parts), 1, [&](int64_t begin, int64_t end) {
    std::vector<float> values;
    for (const Drawn& part :
         std::span(parts).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin))) {
      values.resize(static_cast<size_t>(part.count));
      initialise_part(modules[part.module], *part.parameter, model, seed, part.first, values);
      write_masters(graph, part.module, part.parameter->offset + part.first, values, device);
    }
  });
}

}  // namespace

struct Trainer::State {
  // in: of the first rank, where checkpoints are kept.
  State(const Model& m, const Plan& p, const TrainerOptions& o, const CheckpointHeader& header,
        std::optional<CheckpointFolder> in)
      : model(m),
        plan(p),
        options(o),
        folder(std::move(in)),
        keeps(options.checkpoint_folder.has_value()),
        run(header.run.empty() ? new_run_id() : header.run),
        graph(build_to_run(model, plan)),
        data(open_data(model, plan, options)),
        device(open_device({model, plan, graph, data}, options, with_ranks(), header.control)),
        executor(graph, *device, clock_of(options)),
        schedule(schedule_options(), options.ranks, clock_of(options)),
        next_step(static_cast<int32_t>(header.next_step)) {
    if (folder) data_fingerprint = data.fingerprint();
  }

  DeviceOptions with_ranks() {
    DeviceOptions with = device_options(options);
    with.of_rank.ranks = options.ranks;
    with.of_rank.wishes = [this] { return wishes.load(); };
    with.of_rank.hold = [this] { return executor.hold(); };
    with.of_rank.agreed = [this](int32_t last_step, int of_all) {
      if ((of_all & kAsked) != 0) stop = true;
      executor.stop_after(last_step);
    };
    return with;
  }
  // Of several ranks all end after the same step, which they agree on as they judge one.
  void end_run(int why) {
    wishes |= why;
    if (options.ranks != nullptr) return;
    if (why == kAsked) stop = true;
    executor.request_stop();
  }

  CheckpointSchedule::Options schedule_options() const {
    if (!keeps) return {};
    const bool is_given = options.checkpoint_period_steps > 0;
    return {is_given ? options.checkpoint_period_steps : plan.checkpoint_period_steps,
            options.checkpoint_overhead, options.checkpoints_in_background};
  }
  CheckpointHeader header() const {
    const std::string path = options.data.empty() ? default_text_folder() : options.data;
    return {run,
            model.name,
            options.model_record,
            next_step,
            options.seed,
            fmt::format("{} of {} tokens", path, data.tokens()),
            data_fingerprint,
            options.optimizer,
            device->control().state(),
            learning_knobs(plan)};
  }
  // The state that is kept is one to go on from: where it is not, nothing is written or removed.
  void save(FiniteWatch& watch) {
    const std::string path = checkpoint_path(*options.checkpoint_folder, next_step);
    if (const auto tensor = save_checkpoint(graph, *device, header(), path, files_of(options))) {
      return watch.state_broke(next_step, *tensor);
    }
    saved = next_step;
    remove_older();
  }
  // Between steps those of the lanes are free, too.
  int resting_threads() const { return options.optimizer_threads + options.compute_threads; }
  // The same, where steps go on: what is written beside them is a copy.
  void save_between_steps(FiniteWatch& watch) {
    const std::string path = checkpoint_path(*options.checkpoint_folder, next_step);
    const bool copies = schedule.in_background();
    const auto tensor = schedule.keep(
        [&] {
          return copies ? snapshot.take(graph, *device, header(), resting_threads())
                        : save_checkpoint(graph, *device, header(), path, files_of(options));
        },
        [this, copies, path] {
          if (copies) snapshot.write(path, files_of(options));
          remove_older();
        });
    if (tensor) return watch.state_broke(next_step, *tensor);
    saved = next_step;
  }
  Bytes bytes_to_copy() const {
    return {copied_bytes(graph, *device, plan.optimizer.sync == SyncMode::kDelay)};
  }
  // The first copy is to take no longer than the others, and what it lacks is to be known before.
  void reserve_copy(int64_t steps) {
    const bool copies = schedule.keeps_any() && schedule.in_background();
    // The last checkpoint is written as training ends, and needs none.
    if (copies && schedule.most_until(next_step, steps) > 1) snapshot.reserve(bytes_to_copy());
  }
  void remove_older() const {
    if (!folder) return;
    if (options.replace_checkpoints) folder->remove_others(run);
    folder->prune(run);
  }
  // A loss that waits to be judged says already what the verdict will be.
  bool is_finite(const FiniteWatch& watch) const {
    const auto pending = device->control().state().pending_gradient;
    return watch.last_was_finite() && (!pending || std::isfinite(pending->loss));
  }
  void apply_pending();
  double validation_loss(int64_t batches);
  void finish(TrainResult& result, FiniteWatch& watch);

  Model model;
  Plan plan;
  TrainerOptions options;
  std::optional<CheckpointFolder> folder;
  bool keeps;  // checkpoints, of which each of several ranks writes its part
  std::string run;
  Graph graph;
  TokenSource data;
  uint64_t data_fingerprint = 0;  // where there is a folder
  std::unique_ptr<TrainingDevice> device;
  Executor executor;
  CheckpointSnapshot snapshot;  // outlives the schedule, whose thread reads it
  CheckpointSchedule schedule;
  int32_t next_step;
  int32_t saved = -1;  // of the newest checkpoint that this process has written or is writing
  std::vector<std::string> notes;
  std::function<void()> tick;
  std::atomic<bool> stop{false};
  std::atomic<int> wishes{0};  // of this rank
};

struct Trainer::Team {
  explicit Team(int64_t ranks)
      : all(static_cast<int>(ranks)), cores(kernels::core_shares(static_cast<int>(ranks))) {}
  LocalRanks all;
  // Of each rank, or none. Unbound ones that wake each other may take turns on one core for long.
  std::vector<cpu_set_t> cores;
  std::vector<std::unique_ptr<Trainer>> others;  // ranks 1, 2, ...
};

void Trainer::State::apply_pending() {
  const auto constants = device->control().settle(next_step);
  if (!constants) return;
  apply_pending_gradients(graph, *device, *constants);
  device->spread_weights();
}

double Trainer::State::validation_loss(int64_t batches) {
  double sum = 0;
  for (int64_t i = 0; i < batches; ++i) sum += device->evaluate(i, next_step);
  return sum / static_cast<double>(batches);
}

// The end of train(): the last checkpoint, and what became of the run.
void Trainer::State::finish(TrainResult& result, FiniteWatch& watch) {
  schedule.wait();
  result.checkpoints = schedule.report();
  const bool advanced = next_step > result.first_step;
  // A run may end within the steps that are waited for: then the weights themselves are asked.
  const bool doubtful = !watch.divergence() && !is_finite(watch);
  if (doubtful && !std::isfinite(validation_loss(1))) watch.give_up();
  if (keeps && saved != next_step && advanced && !watch.divergence()) save(watch);
  result.divergence = watch.divergence();
  // From that state on nothing was finite.
  if (folder && result.divergence && saved >= result.divergence->step) folder->remove(saved);
  if (folder) result.newest_checkpoint = folder->newest_of(run);
}

namespace {

bool starts_ranks(const Plan& plan, const TrainerOptions& options) {
  return rank_count(plan) > 1 && options.ranks == nullptr && options.device == "host" &&
         !options.make_device;
}

// Every rank writes into the folder that the first one has opened.
void require_shared(const TrainerOptions& options) {
  if (options.ranks == nullptr || !options.checkpoint_folder) return;
  told_by_first(*options.ranks, "opened");
  if (options.ranks->rank() == 0) return;
  require_shared_folder(*options.checkpoint_folder, options.ranks->rank(), files_of(options));
}

// Of several ranks the first one looks into the folder.
CheckpointFolder::ToResume found_in(std::optional<CheckpointFolder>& folder,
                                    const TrainerOptions& options) {
  CheckpointFolder::ToResume found;
  if (!options.resume) return found;
  if (folder) found = folder->to_resume();
  if (options.ranks == nullptr) return found;
  const std::string path = told_by_first(*options.ranks, found.checkpoint.value_or(""));
  if (!path.empty()) found.checkpoint = path;
  return found;
}

}  // namespace

Trainer::Trainer(const Model& model, const Plan& plan, const TrainerOptions& options) {
  if (!starts_ranks(plan, options)) {
    begin(model, plan, options);
    return;
  }
  check(plan, model);
  if (const auto missing = first_missing(model, plan, host_capabilities())) throw missing->error();
  const int64_t ranks = rank_count(plan);
  if (ranks > kMostLocalRanks) {
    throw Error("plan.devices",
                fmt::format("{} ranks as threads of one process, which runs up to {}", ranks,
                            kMostLocalRanks),
                fmt::format("start it with mpirun -n {}", ranks));
  }
  team_ = std::make_unique<Team>(ranks);
  for (int64_t rank = 1; rank < ranks; ++rank) {
    team_->others.push_back(std::unique_ptr<Trainer>(new Trainer()));
  }
  on_every_rank([&](Trainer& rank) {
    const auto other = std::find_if(team_->others.begin(), team_->others.end(),
                                    [&](const auto& one) { return one.get() == &rank; });
    const bool first = other == team_->others.end();
    TrainerOptions of_rank = options;
    of_rank.ranks = &team_->all.of(first ? 0 : static_cast<int>(other - team_->others.begin()) + 1);
    rank.begin(model, plan, of_rank);
  });
}

Trainer::Trainer() = default;

void Trainer::on_every_rank(const std::function<void(Trainer& rank)>& work) const {
  auto& self = const_cast<Trainer&>(*this);
  if (!team_) return work(self);
  std::vector<std::exception_ptr> failures(team_->others.size() + 1);
  const auto run = [&](size_t rank, Trainer& trainer) {
    Communicator& ranks = team_->all.of(static_cast<int>(rank));
    std::optional<kernels::CoreBinding> bound;
    if (!team_->cores.empty()) bound.emplace(team_->cores[rank]);
    try {
      work(trainer);
    } catch (const std::exception& error) {
      failures[rank] = std::current_exception();
      ranks.fail(error.what());
    }
  };
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < team_->others.size(); ++i) {
      // Ranks that run already would wait for ever for one that has no thread.
      try {
        threads.emplace_back([&, i] { run(i + 1, *team_->others[i]); });
      } catch (const std::system_error& error) {
        failures[i + 1] = std::current_exception();
        team_->all.of(static_cast<int>(i) + 1).fail(error.what());
        break;
      }
    }
    run(0, self);
  }
  if (const int first = team_->all.failed(); first >= 0) {
    // Of a team that failed before, every rank says so.
    const std::exception_ptr why = failures[static_cast<size_t>(first)];
    std::rethrow_exception(why ? why : failures.front());
  }
}

void Trainer::begin(const Model& model, const Plan& plan, const TrainerOptions& options) {
  check(options.optimizer.learning_rate);
  const bool first = options.ranks == nullptr || options.ranks->rank() == 0;
  std::optional<CheckpointFolder> folder = first ? open_folder(options) : std::nullopt;
  require_shared(options);
  const CheckpointFolder::ToResume found = found_in(folder, options);
  const std::optional<std::string>& checkpoint = found.checkpoint;
  CheckpointHeader header;
  TrainerOptions effective = options;
  if (checkpoint) {
    header = header_to_resume(*checkpoint, options);
    effective.seed = header.seed;
  }
  state_ = std::make_unique<State>(model, plan, effective, header, std::move(folder));
  if (checkpoint) {
    state_->notes = notes_of_resumed(header, state_->header(), options);
    load_checkpoint_state(state_->graph, *state_->device, *checkpoint, files_of(options));
    if (plan.optimizer.sync == SyncMode::kDelay)
      state_->device->restore_partials(state_->next_step);
  } else {
    if (options.resume) {
      state_->notes.push_back(*options.checkpoint_folder +
                              " holds no checkpoint: training begins anew");
    }
    initialise_masters(state_->graph, model, options, effective.seed, *state_->device);
    if (options.initial_weights) {
      import_weights(state_->graph, *state_->device, *options.initial_weights);
    }
  }
  state_->notes.insert(state_->notes.begin(), found.notes.begin(), found.notes.end());
  for (const std::string& note : state_->device->notes()) state_->notes.push_back(note);
  if (std::string note = state_->data.note(); !note.empty()) {
    state_->notes.push_back(std::move(note));
  }
  state_->device->spread_weights();
  require_memory_for_copy();
}

// Beside what the plan's arenas have not touched yet.
void Trainer::require_memory_for_copy() const {
  const State& s = *state_;
  if (!s.options.available_memory || !s.schedule.keeps_any() || !s.schedule.in_background()) return;
  Bytes copy = s.bytes_to_copy();
  Bytes untouched;
  for (const MemoryUse& use : s.device->memory()) {
    if (use.place == Place::kNvme) continue;
    const bool on_cpu = use.place == Place::kDram || s.options.device == "host";
    if (on_cpu) untouched += {std::max<int64_t>(use.planned.count - use.resident.count, 0)};
  }
  if (Communicator* const ranks = s.options.ranks) {
    copy = {sum_on_this_machine(*ranks, copy.count)};
    untouched = {sum_on_this_machine(*ranks, untouched.count)};
  }
  const Bytes available = s.options.available_memory();
  if (copy + untouched <= available) return;
  throw Error("--checkpoint " + *s.options.checkpoint_folder,
              fmt::format("a checkpoint is copied before it is written, which takes {}, and {} of "
                          "memory are left",
                          bytes_text(copy), bytes_text(std::max(available - untouched, Bytes{}))),
              "add --pause-for-checkpoints, which needs no copy, or grant more memory");
}

Trainer::~Trainer() = default;

const Graph& Trainer::graph() const { return state_->graph; }

int32_t Trainer::next_step() const { return state_->next_step; }

const std::vector<std::string>& Trainer::notes() const { return state_->notes; }

void Trainer::request_stop() { state_->end_run(kAsked); }

void Trainer::set_tick(std::function<void()> tick) { state_->tick = std::move(tick); }

TrainResult Trainer::train(int64_t steps, const std::function<void(const StepRecord&)>& on_step,
                           bool sequential) {
  TrainResult result;
  on_every_rank([&](Trainer& rank) {
    if (const State& s = *rank.state_; s.folder) {
      const int64_t coming = s.schedule.most_until(s.next_step, steps);
      s.folder->require_room(checkpoint_bytes(s.graph, *s.device), s.run, coming);
    }
    if (&rank != this) {
      rank.train_rank(steps, nullptr, sequential);
    } else {
      result = train_rank(steps, on_step, sequential);
    }
  });
  return result;
}

TrainResult Trainer::train_rank(int64_t steps,
                                const std::function<void(const StepRecord&)>& on_step,
                                bool sequential) {
  State& s = *state_;
  if (steps > std::numeric_limits<int32_t>::max()) {
    throw Error("--steps", fmt::format("{} is out of range", steps), "use fewer");
  }
  s.reserve_copy(steps);
  TrainResult result;
  result.first_step = s.next_step;
  FiniteWatch watch;
  std::set<int32_t> rolled_back;  // steps of the run under way
  const auto take = [&] {
    for (const StepRecord& record : s.device->control().take_records()) {
      watch.add(record);
      if (record.rolled_back) rolled_back.insert(record.step);
      // A delayed step that waited in the checkpoint was told of when its run ended.
      if (record.step < result.first_step) continue;
      result.records.push_back(record);
      if (on_step) on_step(record);
    }
  };
  while (s.next_step < steps && !s.stop && !watch.divergence()) {
    const int64_t boundary = s.schedule.keeps_any() ? s.schedule.boundary(s.next_step) : steps;
    RunOptions run;
    run.first_step = s.next_step;
    run.last_step = static_cast<int32_t>(std::min(boundary, steps) - 1);
    run.tick = [&] {
      take();
      if (watch.divergence()) s.end_run(kDiverged);
      if (s.schedule.has_failed()) s.end_run(kNotWritten);
      if (s.tick) s.tick();
    };
    const std::chrono::nanoseconds began = clock_of(s.options).now();
    RunResult ran = sequential ? s.executor.run_sequentially(run) : s.executor.run(run);
    const std::chrono::nanoseconds ended = clock_of(s.options).now();
    s.next_step = ran.last_step + 1;
    take();
    s.schedule.add(ran, rolled_back, began, ended);
    rolled_back.clear();
    result.step_times.insert(result.step_times.end(), ran.step_times.begin(), ran.step_times.end());
    result.timeline = std::move(ran.timeline);
    result.rollbacks += ran.rollbacks;
    if (s.schedule.has_failed()) s.schedule.wait();
    // The last one is written as training ends, and needs no copy.
    const bool goes_on = s.next_step < steps && !s.stop && !watch.divergence();
    if (goes_on && s.schedule.is_due(s.next_step) && s.is_finite(watch)) {
      s.save_between_steps(watch);
    }
  }
  s.finish(result, watch);
  s.apply_pending();
  take();
  result.next_step = s.next_step;
  result.stopped = s.stop && s.next_step < steps;
  result.memory = s.device->memory();
  result.memory_of_ranks = memory_of_ranks(*s.device, result.memory);
  return result;
}

double Trainer::validation_loss(int64_t batches) {
  double loss = 0;
  on_every_rank([&](Trainer& rank) {
    const double found = rank.state_->validation_loss(batches);
    if (&rank == this) loss = found;
  });
  return loss;
}

void Trainer::export_weights(const std::string& path, std::optional<int64_t> most) const {
  on_every_rank([&](Trainer& rank) {
    State& state = *rank.state_;
    ballast::export_weights(state.graph, *state.device, state.model, {path, most},
                            files_of(state.options));
  });
}

std::vector<float> Trainer::parameters() const {
  std::vector<float> flat;
  on_every_rank([&](Trainer& rank) {
    const Graph& graph = rank.state_->graph;
    for_parameters(graph, *rank.state_->device, [&](size_t module, const Parameter& parameter) {
      const std::vector<float> master =
          read_parameter(graph, *rank.state_->device, module, parameter, StateArray::kMaster);
      if (&rank == this) flat.insert(flat.end(), master.begin(), master.end());
    });
  });
  return flat;
}

}  // namespace ballast
