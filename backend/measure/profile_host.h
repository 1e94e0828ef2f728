// Profile: measures the machine at hand as the host device uses it. What it finds is a Machine
// named "here", whose GPU is a few threads, and timed operations for the cost model.
//
// The protocol of every probe is in backend/measure/profile_probes.h, what each probe means in
// docs/profile.md. Will not do: store anything (cli), predict (sim/engine), or read a plan.
#pragma once

#include "backend/measure/profile.h"

namespace ballast {

struct HostProfileOptions : ProfileOptions {
  double gpu_memory_share = 0.5;  // of the memory that plays the GPU's; above 0, below 1
};

// Takes about half a minute, and all cores for a part of it. Throws Error for options out of range
// or where nothing can be measured.
Profile profile_host(const HostProfileOptions& options);

}  // namespace ballast
