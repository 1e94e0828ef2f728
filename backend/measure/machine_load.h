// Whether others used the machine while something was timed on it: then it took longer than alone.
//
// Linux tells in /proc/stat how long its cores worked for anybody, and how long those of a virtual
// machine were taken away (steal). What this process did not do of it others did.
// Will not do: tell who, or correct what was timed.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ballast {

// Of all cores together, since the machine started, in ticks of the system.
struct CoreTicks {
  int64_t busy = 0;
  int64_t stolen = 0;  // of busy
};
// Reads the first line of /proc/stat; nothing where that is not its form.
std::optional<CoreTicks> core_ticks(std::string_view stat);

// Cores in use, on average over some time.
struct MachineLoad {
  double own = 0;     // of this process
  double others = 0;  // of other programs, and stolen
  int64_t cores = 0;  // of the machine
};
// One line, where others had so much that this process had less than it could use; else empty.
std::string busy_text(const MachineLoad& load);

// Watches from where it is made on.
class LoadWatch {
 public:
  LoadWatch();
  // Nothing where the system does not tell, or too little time has passed.
  std::optional<MachineLoad> load() const;

 private:
  std::optional<CoreTicks> begin_;
  double own_begin_ = 0;  // seconds of all cores
  std::chrono::steady_clock::time_point time_begin_;
};

}  // namespace ballast
