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

// Of a file in the options' folder, which is gone afterwards. `when`: as ProfileOptions has it.
// Throws Error where the folder has no room for it.
DiskProfile time_disk(const DiskOptions& options, ProfileEffort effort, const std::string& when);

}  // namespace ballast
