#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "backend/comm/launch.h"
#include "backend/comm/mpi_ranks.h"
#include "backend/measure/cuda/profile_cuda.h"
#include "backend/measure/disk_times.h"
#include "backend/measure/profile_host.h"
#include "backend/measure/profile_probes.h"
#include "backend/measure/rank_times.h"
#include "backend/train/make_device.h"
#include "cli/flags/between_processes.h"
#include "cli/flags/training_flags.h"
#include "cli/terminal/progress.h"
#include "profiles/names/machine_with_gpu.h"
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
  std::optional<int> ranks;
  std::optional<std::string> nvme;
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
  app.add_option("--ranks", flags.ranks,
                 "Of the host: measure what so many ranks exchange, by kind and size, and nothing "
                 "else: threads of one process or, under mpirun, its processes")
      ->check(above_zero())
      ->type_name("COUNT");
  app.add_option("--nvme", flags.nvme,
                 "Of the host: measure the disk of this folder as state on NVMe uses it, and "
                 "nothing else: reads, writes and both at once, by size and chunks at a time")
      ->type_name("DIR");
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
  options.shipped = [](const std::string& gpu, Bytes memory) {
    std::vector<Machine> machines;
    for (const Shipped& machine : shipped_machines()) {
      machines.push_back(load_machine(machine.name));
    }
    return machine_with_gpu(machines, gpu, memory);
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

void check_ranks(const ProfileFlags& flags) {
  check_launch(flags.device);
  const Launch launch = launch_of_this();
  if (*flags.ranks < 2) throw Error("--ranks", "one rank exchanges nothing", "name 2 or more");
  if (cuda_index_of(flags.device) >= 0) {
    throw Error("--ranks", "ranks run on the host device alone", "leave --device out");
  }
  if (launch.ranks > 1 && launch.ranks != *flags.ranks) {
    throw Error(
        "--ranks",
        fmt::format("{} started {} ranks, and {} are named", launch.by, launch.ranks, *flags.ranks),
        fmt::format("use {} -n {}", launch.by, *flags.ranks));
  }
}

std::string group_text(const CollectiveWork& work) {
  if (work.stride == 1) return fmt::format("of {}", work.ranks);
  return fmt::format("of {} that lie {} apart", work.ranks, work.stride);
}

// What is found belongs to the machine that was profiled before.
int profile_ranks(const ProfileFlags& flags) {
  check_ranks(flags);
  const Machine here = load_machine_or_here(kHere, flags.store);
  const ProfileEffort effort = flags.quick ? ProfileEffort::kQuick : ProfileEffort::kFull;
  if (is_first_rank()) try_store(flags.store);
  const bool processes = launch_of_this().ranks > 1;
  const std::vector<OperationTime> times = processes
                                               ? time_collectives(mpi_ranks(), effort)
                                               : time_collectives_of_threads(*flags.ranks, effort);
  if (!is_first_rank()) return kDone;
  Measurements measurements;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const OperationTime& time : times) {
    const auto& work = std::get<CollectiveWork>(time.op.work);
    measurements[cost_key(time.op)] = measurement_of(time.op, {time.median, time.deviation});
    list.push_back({{"kind", to_string(work.kind)},
                    {"ranks", work.ranks},
                    {"stride", work.stride},
                    {"bytes", work.bytes.count},
                    {"time_us", time.median.us()},
                    {"deviation_us", time.deviation.us()}});
    if (flags.output.json) continue;
    fmt::print("  {:<16}{:<28}{:>12} bytes{:>12.1f} us +-{:.1f}\n", to_string(work.kind),
               group_text(work), work.bytes.count, time.median.us(), time.deviation.us());
  }
  open_store(flags.store)
      .append(host_of(here), processes ? named_between_processes(measurements) : measurements);
  const nlohmann::ordered_json json = {{"schema", "ballast.ranks/1"},
                                       {"ranks", *flags.ranks},
                                       {"processes", processes},
                                       {"collectives", list}};
  if (flags.output.out) atomic_write(*flags.output.out, json.dump(1) + "\n");
  if (flags.output.json) fmt::print("{}\n", json.dump(1));
  if (!flags.output.json) {
    fmt::print("{} exchanges of {} {} timed; kept in {}\n", times.size(), *flags.ranks,
               processes ? "processes" : "threads", store_path(flags.store));
  }
  return kDone;
}

// The machine that was profiled before, with this disk.
int profile_disk(const ProfileFlags& flags) {
  if (flags.ranks) throw Error("--nvme", "--ranks measures something else", "give one of them");
  if (cuda_index_of(flags.device) >= 0) {
    throw Error("--nvme", "state lies on NVMe on the host device alone", "leave --device out");
  }
  Machine here = load_machine_or_here(kHere, flags.store);
  try_store(flags.store);
  Store store = open_store(flags.store);
  DiskOptions options;
  options.folder = *flags.nvme;
  const DiskProfile found =
      time_disk(options, flags.quick ? ProfileEffort::kQuick : ProfileEffort::kFull, "");
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const DiskTime& one : found.times) {
    const double rate = rate_of(static_cast<double>(one.bytes.count), one.time);
    list.push_back({{"use", to_string(one.use)},
                    {"bytes", one.bytes.count},
                    {"chunks_at_a_time", one.depth},
                    {"time_us", one.time.median.us()},
                    {"deviation_us", one.time.deviation.us()}});
    if (flags.output.json) continue;
    fmt::print("  {:<6}{:>12} bytes, {:>2} chunks at a time{:>12.1f} us {} {:>8.3f} GB/s\n",
               to_string(one.use), one.bytes.count, one.depth, one.time.median.us(),
               percent(one.time), rate / 1e9);
  }
  here.nvme = found.nvme;
  store.append(here);
  if (flags.output.out) save_machine(here, *flags.output.out);
  if (flags.output.json) {
    const nlohmann::ordered_json json = {{"schema", "ballast.disk/1"},
                                         {"folder", *flags.nvme},
                                         {"by", found.engine},
                                         {"both_share", found.nvme.both_share->value},
                                         {"times", list}};
    fmt::print("{}\n", json.dump(1));
    return kDone;
  }
  fmt::print(
      "a read and a write at once: {:.2f} of their rates alone in sum (1: as one after the "
      "other, 2: neither slows the other)\n",
      found.nvme.both_share->value);
  fmt::print("{} transfers timed, by {}; the disk belongs to machine 'here' in {}\n",
             found.times.size(), found.engine, store_path(flags.store));
  return kDone;
}

}  // namespace

int run_profile(Words words) {
  ProfileFlags flags;
  if (!parse(words, flags)) return kDone;
  if (flags.ranks && !flags.nvme) return profile_ranks(flags);
  require_alone(flags.nvme ? "profile --nvme" : "profile");
  if (flags.nvme) return profile_disk(flags);
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
  try_store(flags.store);
  const LoadWatch load;
  const Profile profile = measure(flags);
  tell_if_busy(load.load());
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
