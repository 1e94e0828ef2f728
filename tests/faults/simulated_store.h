// SQLite on a SimulatedDisk: a VFS of our own, the default one while it lives, so that the store
// meets the faults of the disk as it would those of a system.
//
// Synchronises the folder of a new journal as SQLite's own VFS for Unix does. Locks nothing: one
// process, one thread. Only one may live at a time.
#pragma once

#include <sqlite3.h>

#include "tests/faults/simulated_disk.h"

namespace ballast::tests {

class SimulatedStore {
 public:
  explicit SimulatedStore(SimulatedDisk& disk);
  ~SimulatedStore();
  SimulatedStore(const SimulatedStore&) = delete;
  SimulatedStore& operator=(const SimulatedStore&) = delete;

 private:
  sqlite3_vfs vfs_{};
};

}  // namespace ballast::tests
