// What every profile has in common: its options, its probes one after another, what it hands over.
//
// Will not do: measure (profile_host, profile_cuda, and the probes beside them), or store (cli).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backend/measure/operation_times.h"
#include "backend/measure/profile_probes.h"
#include "sim/base/units.h"
#include "sim/spec/machine.h"

namespace ballast {

// kQuick: the smallest sizes and the fewest repeats, seconds in all; its numbers are rough.
enum class ProfileEffort : uint8_t { kFull, kQuick };

struct ProbeReport {
  std::string name;    // "copy host to device"
  int index = 0;       // 1 to count
  int count = 0;       // probes in all
  std::string result;  // in words and numbers; why not, where it could not run
  bool ran = true;
};

struct ProfileOptions {
  ProfileEffort effort = ProfileEffort::kFull;
  std::string when;           // date for the sources, for example 2026-11-20; empty: today, UTC
  int optimizer_threads = 0;  // 0: every usable core but those that feed the GPU, or play it
  int compute_threads = 1;    // of the host device's compute lane
  std::function<void(const ProbeReport&)> on_probe;  // on the calling thread, after each probe
};

struct Profile {
  Machine machine;                        // passes check()
  std::vector<OperationTime> operations;  // one a cost key
  std::vector<ProbeReport> probes;
};

// What the system grants this process.
struct HostFacts {
  std::string processor;  // model of the CPU
  std::string system;     // kernel name and release: the "driver" of this device
  int64_t cores = 1;      // that may be used: affinity, and the control group's quota, rounded up
  Bytes memory;           // installed, or the control group's limit
  Bytes available;        // of it now
};
HostFacts host_facts();

// Throws Error where --compute-threads asks for more threads than there are cores.
void check_compute_threads(int64_t threads, const HostFacts& facts);
// Throws Error where the options ask for more threads than there are cores.
int optimizer_threads(const ProfileOptions& options, const HostFacts& facts);

// "measured 2026-11-20 by ballast profile".
std::string measurement_source(const ProfileOptions& options);

// One line of a profile: returns what it found, or throws Error where it cannot run.
struct Probe {
  std::string name;
  std::function<std::string()> run;
};
// All of them in order. One that throws Error is reported as not run, and the others go on.
std::vector<ProbeReport> run_probes(const std::vector<Probe>& probes,
                                    const std::function<void(const ProbeReport&)>& on_probe);

// Of equal cost keys the newest stays; sorted by key.
void keep_newest(std::vector<OperationTime>& operations);

// smallest, 4 * smallest, ... up to `largest`.
std::vector<int64_t> sizes_from(int64_t smallest, int64_t largest);
// Units per second.
inline double rate_of(double amount, const Timing& timing) {
  return amount / timing.median.seconds();
}
// The deviation as a share of the median: "+-1.2 %".
std::string percent(const Timing& timing);

}  // namespace ballast
