#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "backend/measure/cuda/profile_cuda.h"
#include "backend/measure/profile_host.h"
#include "backend/train/make_device.h"
#include "cli/flags/training_flags.h"
#include "cli/terminal/progress.h"
#include "sim/base/atomic_file.h"
#include "sim/base/error.h"
#include "sim/engine/cost.h"

namespace ballast {
namespace {

struct ProfileFlags {
  OutputFlags output;
  StoreFlag store;
  std::string device = "host";
  bool quick = false;
  int threads = 0;
  std::optional<int> compute_threads;
  std::optional<double> gpu_memory_share;
};

bool parse(Words words, ProfileFlags& flags) {
  VerbParser parser("profile");
  CLI::App& app = parser.app();
  app.add_option("--device", flags.device,
                 "What to measure: host (this machine's CPU), cuda:0 (its first GPU, the link and "
                 "the CPU beside it; cuda:N another) [host]")
      ->type_name("NAME");
  app.add_flag("--quick", flags.quick, "Few sizes and repeats: seconds in all, rough numbers");
  app.add_option("--threads", flags.threads,
                 "Threads of the CPU's optimizer [every core but those that play or feed the "
                 "GPU]")
      ->check(above_zero())
      ->type_name("COUNT");
  app.add_option("--compute-threads", flags.compute_threads,
                 "Of the host: threads that play the GPU's compute, here and whenever it trains "
                 "[1]")
      ->check(above_zero())
      ->type_name("COUNT");
  app.add_option("--gpu-memory-share", flags.gpu_memory_share,
                 "Of the host: share of the memory that plays the GPU's, above 0 and below 1 [0.5]")
      ->type_name("SHARE");
  parser.add(flags.store);
  parser.add(flags.output, "Write the machine to this file too");
  return parser.parse(words);
}

void set_common(const ProfileFlags& flags, Progress& progress, ProfileOptions& options) {
  options.effort = flags.quick ? ProfileEffort::kQuick : ProfileEffort::kFull;
  options.optimizer_threads = flags.threads;
  options.on_probe = [&](const ProbeReport& probe) {
    progress.show(static_cast<double>(probe.index) / std::max(probe.count, 1), probe.name);
  };
}

Profile measure_host(const ProfileFlags& flags, Progress& progress) {
  HostProfileOptions options;
  set_common(flags, progress, options);
  if (flags.gpu_memory_share) options.gpu_memory_share = *flags.gpu_memory_share;
  if (flags.compute_threads) options.compute_threads = *flags.compute_threads;
  return profile_host(options);
}

Profile measure_gpu(const ProfileFlags& flags, Progress& progress) {
  CudaProfileOptions options;
  set_common(flags, progress, options);
  options.device = flags.device;
  options.algorithms = stored_algorithms(flags.store);
  for (const Shipped& model : shipped_models()) options.models.push_back(load_model(model.name));
  options.shipped = [](const std::string& gpu) {
    std::vector<Machine> machines;
    for (const Shipped& machine : shipped_machines()) {
      machines.push_back(load_machine(machine.name));
    }
    return machine_with_gpu(machines, gpu);
  };
  return profile_cuda(options);
}

Profile measure(const ProfileFlags& flags) {
  Progress progress("profile");
  const bool host = cuda_index_of(flags.device) < 0;
  return host ? measure_host(flags, progress) : measure_gpu(flags, progress);
}

void append_to_store(const ProfileFlags& flags, const Profile& profile) {
  Measurements measurements;
  for (const OperationTime& time : profile.operations) {
    measurements[cost_key(time.op)] = measurement_of(time.op, {time.median, time.deviation});
  }
  Store store = open_store(flags.store);
  store.append(profile.machine);
  store.append(host_of(profile.machine), measurements);
}

}  // namespace

int run_profile(Words words) {
  ProfileFlags flags;
  if (!parse(words, flags)) return kDone;
  // Known before the minutes of measuring: a GPU that is missing, a store that cannot be written.
  if (const int gpu = cuda_index_of(flags.device); gpu >= 0) {
    if (flags.gpu_memory_share) {
      throw Error("--gpu-memory-share", "a GPU has memory of its own", "leave it out");
    }
    if (flags.compute_threads) {
      throw Error("--compute-threads", "a GPU computes by itself", "leave it out");
    }
    open_cuda_runtime(gpu);
  }
  check_compute_threads(flags.compute_threads.value_or(1), host_facts());
  open_store(flags.store);
  const Profile profile = measure(flags);
  if (flags.output.out) save_machine(profile.machine, *flags.output.out);
  if (flags.output.json) {
    fmt::print("{}\n", machine_json(profile.machine));
    append_to_store(flags, profile);
    return kDone;
  }
  fmt::print("{}\n", profile.machine.description);
  for (const ProbeReport& probe : profile.probes) {
    fmt::print("  {:<40}{}{}\n", probe.name, probe.ran ? "" : "did not run: ", probe.result);
  }
  append_to_store(flags, profile);
  fmt::print("{} operations timed; kept in {} as machine 'here'\n", profile.operations.size(),
             store_path(flags.store));
  return kDone;
}

}  // namespace ballast
