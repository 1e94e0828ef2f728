// Running plans on the machine at hand: what train, verify and tune share.
//
// Will not do: train (backend/train/trainer), or choose plans (autotune).
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "backend/measure/machine_load.h"
#include "backend/train/trainer.h"
#include "cli/flags/inputs.h"

namespace ballast {

// The flags of a training run.
struct TrainingFlags {
  std::string device = "host";  // a name of make_device, or "paced" where a verb has that
  std::string data;
  std::optional<uint64_t> seed;  // 1 where none is given, or that of the run that goes on
  double learning_rate = 1e-3;
  std::optional<double> learning_rate_floor;  // a tenth of the rate where none is given
  int64_t warmup_steps = 20;
  double beta1 = OptimizerOptions().beta1;
  double beta2 = OptimizerOptions().beta2;
  double epsilon = OptimizerOptions().epsilon;
  double clip_norm = 1.0;
  double weight_decay = 0.1;
  std::optional<std::string> import_file;
  bool captures = false;
  std::optional<int64_t> compute_threads;  // as many as the profile was measured with
  // Where the plan keeps state on NVMe; each as DiskOptions has it where it is not given.
  std::optional<std::string> nvme;
  std::optional<int64_t> nvme_chunk_kb;
  std::optional<int> nvme_depth;
};
void add_training_flags(VerbParser& parser, TrainingFlags& flags);

// Algorithms of a GPU's matrix products, kept in the store; opened when first asked.
GemmAlgorithmStore stored_algorithms(const StoreFlag& store);

// Throws Error where several ranks were started that cannot find each other, or of which `device`
// runs one: before anything is measured or searched.
void check_launch(const std::string& device);
// Throws Error where several ranks were started: each of them would do `what` (a flag or a verb),
// and at the cost of the others.
void require_alone(const std::string& what);
// The other ranks of a plan where mpirun started this one; null where it did not. Throws Error
// where it started other than as many as the plan has, or none can run it.
Communicator* ranks_of(const Plan& plan, const std::string& device);
// Of several ranks the first one's choice of what is open is the plan of all.
Plan plan_of_all_ranks(const Plan& plan, const std::string& device);
// True of the first one, and of one that is alone: it prints and writes.
bool is_first_rank();
// Says, in the error output, that others used the machine meanwhile. Where ranks are processes each
// is another's other, and nothing is said.
void tell_if_busy(const std::optional<MachineLoad>& load);

// `steps`: length of the learning-rate schedule.
TrainerOptions trainer_options(const TrainingFlags& flags, const Machine& machine, int64_t steps);

// The flag --device of a verb that trains. `others`: names beside those of make_device, with their
// help, for instance "paced".
struct OtherDevice {
  const char* name = "";
  const char* help = "";
};
void add_device_flag(VerbParser& parser, std::string& device, const OtherDevice& other = {});

// The one case of `flags` for the device at hand: for the host this machine's own ("here", the
// default; throws Error for others), for a GPU that of any profile, "here" being the default.
// Throws Error "no CUDA device: ..." where the GPU is missing.
Setting load_case_here(PlanFlags flags, const StoreFlag& store, const std::string& device);

// Throws Error for a --compute-threads that the device cannot have: more than the cores that this
// process may use, or any where the device is not the host.
void check_compute_threads(const TrainingFlags& flags);
// Throws Error for a flag of NVMe that a plan without state there cannot obey.
void check_nvme(const TrainingFlags& flags, const Plan& plan);
// Makes the machine one whose compute lane has these threads: its operations are measured and kept
// apart from those of another count. Says so where the profile was measured with another.
void set_compute_threads(const TrainingFlags& flags, Machine& machine);

// Whether every operation of the plan's graph has been timed.
bool is_measured(const Setting& setting, const Measurements& measurements);
// Times the plan's operations on the device for some seconds, appends them to the store and to
// `measurements`. Where it is stopped that may be none.
struct PlanTiming {
  PlanTiming(double for_seconds, std::string on_device = "host",
             std::function<bool()> stop_when = {})
      : seconds(for_seconds), device(std::move(on_device)), must_stop(std::move(stop_when)) {}
  double seconds;
  std::string device;
  std::function<bool()> must_stop;  // see measure_operations; may be null
};
void measure_plan(const Setting& setting, const PlanTiming& timing, const StoreFlag& store,
                  Measurements& measurements);

}  // namespace ballast
