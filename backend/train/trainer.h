// Trainer: runs a plan on a device, from data to checkpoints.
//
// Owns the graph, the arenas and the state of training; the executor moves it. Will not do: choose
// a plan (autotune), predict (sim/engine), or print (cli).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/checkpoint/checkpoint_schedule.h"
#include "backend/execute/executor.h"
#include "backend/execute/update_control.h"
#include "backend/train/finite_watch.h"
#include "backend/train/training_device.h"
#include "sim/graph/core/graph.h"
#include "sim/graph/report/timeline.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

class Files;
struct CheckpointHeader;

struct TrainerOptions {
  std::string device = "host";  // see make_device
  std::string data;             // file or folder; empty: the compiler's C++ headers
  uint64_t seed = 1;            // a resumed run keeps its own
  bool seed_is_given = false;   // by the user, who then hears that a resumed run does so
  OptimizerOptions optimizer;
  std::optional<std::string> initial_weights;    // a file or folder of safetensors
  std::optional<std::string> checkpoint_folder;  // where checkpoints are kept and resumed from
  int64_t checkpoint_period_steps = 0;           // 0: only at the end, if there is a folder
  // The share of the steps' time that checkpoints may cost: chooses the period.
  std::optional<double> checkpoint_overhead;
  // Those before the end are copied in memory, and written while training goes on.
  bool checkpoints_in_background = true;
  // What may still be taken of the CPU's memory, for that copy; null: not asked.
  std::function<Bytes()> available_memory;
  bool resume = false;  // continue from the newest checkpoint of the folder
  // Begin in a folder that holds another run's checkpoints: they go when this one's first is there.
  bool replace_checkpoints = false;
  // What the model is, one field a line: of a resumed run it must be as it was. Empty: not known.
  std::string model_record;
  int optimizer_threads = 1;
  int compute_threads = 1;             // of the host device's compute lane; results do not depend
  bool captures = false;               // see DeviceOptions
  int32_t timed_steps_apart = 1;       // likewise
  GemmAlgorithmStore gemm_algorithms;  // likewise
  DiskOptions disk;                    // likewise
  // The other ranks of the plan, each of which has a trainer with the same options. Null: where the
  // plan has several, they are threads of this process that the trainer starts.
  Communicator* ranks = nullptr;
  // Tests: where checkpoints and exports lie; null: the files of the system.
  Files* files = nullptr;
  // Tests: what steps and checkpoints are timed by; null: the clock of the host.
  const HostClock* clock = nullptr;
  // Tests: makes the device instead of make_device; null: it does, by name.
  std::function<std::unique_ptr<TrainingDevice>(const Training&, const DeviceOptions&,
                                                const ControlState&)>
      make_device;
  // Tests: a factor on the loss's gradient by step (NaN poisons it); null: 1.
  std::function<double(int32_t step)> gradient_factor;
};

struct TrainResult {
  std::vector<StepRecord> records;  // of every step that became final in this run
  std::vector<Duration> step_times;
  Timeline timeline;
  std::vector<MemoryUse> memory;
  std::vector<std::vector<MemoryUse>> memory_of_ranks;  // by rank; of one that is alone its own
  int32_t first_step = 0;
  int32_t next_step = 0;  // where a resumed run would go on
  int32_t rollbacks = 0;
  bool stopped = false;  // by request_stop
  // Why the run ended before its last step, if it computed nothing finite any more.
  std::optional<Divergence> divergence;
  std::optional<std::string> newest_checkpoint;  // of this run, where it has a folder
  CheckpointSchedule::Report checkpoints;        // of those before the end
};

// Of several ranks every one has a trainer. What trains, saves, exports or reads the whole of the
// state is called on all of them; where they are threads of this process, that is done here.
class Trainer {
 public:
  // Builds the graph, allocates and initialises. Throws Error for bad data, weights, checkpoints.
  Trainer(const Model& model, const Plan& plan, const TrainerOptions& options);
  ~Trainer();

  const Graph& graph() const;
  // The step that train() begins with: 0, or that of the checkpoint.
  int32_t next_step() const;
  // What of a resumed run is not as it was, one line each.
  const std::vector<std::string>& notes() const;

  // Trains until step `steps` (counted from the beginning of the training, so a resumed run does
  // the rest), writing checkpoints as the options say. on_step is called on the calling thread for
  // every step that has become final. `sequential` runs every operation on one thread in program
  // order, the reference of exactness. Gradients that a delayed update keeps back are applied at
  // the end, after the last checkpoint, in which they wait: a resumed run goes on as if it had not
  // stopped.
  TrainResult train(int64_t steps, const std::function<void(const StepRecord&)>& on_step,
                    bool sequential = false);

  // Ends train() after the steps that have begun. Safe from any thread and from tests; a signal
  // handler sets a flag that the caller's on_tick turns into this call.
  void request_stop();
  // Called several times a second during train() on its thread.
  void set_tick(std::function<void()> tick);

  // Mean loss over `batches` held-out batches of the plan's micro-batch, with the present weights.
  double validation_loss(int64_t batches);

  // The fp32 master weights by Hugging Face name, in one file of safetensors, or in several of at
  // most `most` bytes with their index beside it.
  void export_weights(const std::string& path, std::optional<int64_t> most = {}) const;
  // All parameters in flat order, for comparison.
  std::vector<float> parameters() const;

 private:
  struct State;
  struct Team;
  Trainer();  // of a rank of the team, which begins on its own thread
  void begin(const Model& model, const Plan& plan, const TrainerOptions& options);
  void require_memory_for_copy() const;
  TrainResult train_rank(int64_t steps, const std::function<void(const StepRecord&)>& on_step,
                         bool sequential);
  // Calls `work` for every rank of this process, each on a thread of its own but for this one's,
  // and throws on what was the first to fail.
  void on_every_rank(const std::function<void(Trainer& rank)>& work) const;
  std::unique_ptr<State> state_;
  std::unique_ptr<Team> team_;  // the other ranks, where they are threads of this process
};

// What a trainer and a measurement of operations make of the options.
DeviceOptions device_options(const TrainerOptions& options);
std::unique_ptr<TrainingDevice> open_device(const Training& training, const TrainerOptions& options,
                                            const DeviceOptions& with, const ControlState& state);

}  // namespace ballast
