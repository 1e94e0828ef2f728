// Profile: measures the machine at hand as the host device uses it. What it finds is a Machine
// named "here", whose GPU is one thread, and timed operations for the cost model.
//
// The protocol of every probe is in backend/profile_probes.h, what each probe means in
// docs/profile.md. Will not do: store anything (cli), predict (sim/engine), or read a plan.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backend/trainer.h"
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

struct HostProfileOptions {
  ProfileEffort effort = ProfileEffort::kFull;
  std::string when;               // date for the sources, for example 2026-11-20; empty: today, UTC
  double gpu_memory_share = 0.5;  // of the memory that plays the GPU's; above 0, below 1
  int optimizer_threads = 0;      // 0: every usable core but the GPU's, at least one
  std::function<void(const ProbeReport&)> on_probe;  // on the calling thread, after each probe
};

struct HostProfile {
  Machine machine;                        // passes check()
  std::vector<OperationTime> operations;  // one a cost key
  std::vector<ProbeReport> probes;
};

// Takes about half a minute, and all cores for a part of it. Throws Error for options out of range
// or where nothing can be measured.
HostProfile profile_host(const HostProfileOptions& options);

// What the system grants this process.
struct HostFacts {
  std::string processor;  // model of the CPU
  std::string system;     // kernel name and release: the "driver" of this device
  int64_t cores = 1;      // that may be used: affinity, and the control group's quota, rounded up
  Bytes memory;           // installed, or the control group's limit
  Bytes available;        // of it now
};
HostFacts host_facts();

}  // namespace ballast
