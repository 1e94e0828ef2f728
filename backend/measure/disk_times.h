// Times a disk as state on NVMe uses it (backend/disk): reads, writes and both at once, by size and
// by how many chunks are under way.
//
// Will not do: keep what it found (cli), or say how long a plan's state takes (sim/engine/cost).
#pragma once

#include <string>
#include <vector>

#include "backend/disk/state_file.h"
#include "backend/measure/profile.h"
#include "sim/spec/machine.h"

namespace ballast {

enum class DiskUse : uint8_t { kRead, kWrite, kBoth };
std::string_view to_string(DiskUse use);

struct DiskTime {
  DiskUse use{};
  Bytes bytes;  // moved, of both directions together
  int depth = 0;
  Timing time;
};

struct DiskProfile {
  Nvme nvme;                    // with the depth of the options, which plans that run have
  std::vector<DiskTime> times;  // of 1, 2, 4, ... chunks at a time too
  std::string engine;           // "io_uring, direct"
};

// What a read and a write reach at once, in sum, each as a share of its own rate alone: from the
// time that each takes alone and that both take which begin together. Nvme::both_share, from 1 to
// 2; what takes longer at once than one after the other counts as 1.
double both_share_of(Duration read, Duration write, Duration both);

// Of a file in the options' folder, which is gone afterwards. `when`: as ProfileOptions has it.
// Throws Error where the folder has no room for it.
DiskProfile time_disk(const DiskOptions& options, ProfileEffort effort, const std::string& when);

}  // namespace ballast
