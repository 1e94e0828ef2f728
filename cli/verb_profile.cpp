#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "backend/profile_host.h"
#include "cli/host.h"
#include "cli/progress.h"
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
  double gpu_memory_share = 0.5;
};

bool parse(Words words, ProfileFlags& flags) {
  VerbParser parser("profile");
  CLI::App& app = parser.app();
  app.add_option("--device", flags.device, "What to measure: host, this machine's CPU [host]")
      ->check(CLI::IsMember({"host"}))
      ->type_name("NAME");
  app.add_flag("--quick", flags.quick, "Few sizes and repeats: seconds in all, rough numbers");
  app.add_option("--threads", flags.threads,
                 "Threads of the CPU's optimizer [every core but the one that plays the GPU]")
      ->check(CLI::PositiveNumber)
      ->type_name("COUNT");
  app.add_option("--gpu-memory-share", flags.gpu_memory_share,
                 "Share of the memory that plays the GPU's, above 0 and below 1 [0.5]")
      ->type_name("SHARE");
  parser.add(flags.store);
  parser.add(flags.output, "Write the machine to this file too");
  return parser.parse(words);
}

HostProfile measure(const ProfileFlags& flags) {
  HostProfileOptions options;
  options.effort = flags.quick ? ProfileEffort::kQuick : ProfileEffort::kFull;
  options.optimizer_threads = flags.threads;
  options.gpu_memory_share = flags.gpu_memory_share;
  Progress progress("profile");
  options.on_probe = [&](const ProbeReport& probe) {
    progress.show(static_cast<double>(probe.index) / std::max(probe.count, 1), probe.name);
  };
  return profile_host(options);
}

void append_to_store(const ProfileFlags& flags, const HostProfile& profile) {
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
  open_store(
      flags.store);  // a store that cannot be written is known before the minute of measuring
  const HostProfile profile = measure(flags);
  append_to_store(flags, profile);
  if (flags.output.out) save_machine(profile.machine, *flags.output.out);
  if (flags.output.json) {
    fmt::print("{}\n", machine_json(profile.machine));
    return kDone;
  }
  fmt::print("{}\n", profile.machine.description);
  for (const ProbeReport& probe : profile.probes) {
    fmt::print("  {:<40}{}{}\n", probe.name, probe.ran ? "" : "did not run: ", probe.result);
  }
  fmt::print("{} operations timed; kept in {} as machine 'here'\n", profile.operations.size(),
             store_path(flags.store));
  return kDone;
}

}  // namespace ballast
