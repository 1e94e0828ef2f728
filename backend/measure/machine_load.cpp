#include "backend/measure/machine_load.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fmt/format.h>
#include <fstream>
#include <sys/resource.h>
#include <unistd.h>

namespace ballast {
namespace {

// A tick is a hundredth of a second: of less time a share says nothing.
constexpr double kLeastSeconds = 0.2;
// Cores of others that are worth a word, and how full the machine must be for them to matter.
constexpr double kOthersTold = 0.1;
constexpr double kFull = 0.9;

std::optional<CoreTicks> ticks_now() {
  std::ifstream file("/proc/stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return core_ticks(line);
}

double own_seconds() {
  rusage use{};
  if (getrusage(RUSAGE_SELF, &use) != 0) return 0;
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

}  // namespace

std::optional<CoreTicks> core_ticks(std::string_view stat) {
  constexpr std::string_view kAllCores = "cpu ";
  if (!stat.starts_with(kAllCores)) return std::nullopt;
  stat.remove_prefix(kAllCores.size());
  // user, nice, system, idle, waiting for disks, interrupts, soft interrupts, stolen.
  std::array<int64_t, 8> ticks{};
  for (int64_t& each : ticks) {
    stat.remove_prefix(std::min(stat.find_first_not_of(' '), stat.size()));
    const auto [end, error] = std::from_chars(stat.data(), stat.data() + stat.size(), each);
    if (error != std::errc{}) return std::nullopt;
    stat.remove_prefix(static_cast<size_t>(end - stat.data()));
  }
  return CoreTicks{ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6] + ticks[7], ticks[7]};
}

std::string busy_text(const MachineLoad& load) {
  const bool full = load.own + load.others >= kFull * static_cast<double>(load.cores);
  if (!full || load.others < kOthersTold) return "";
  return fmt::format(
      "other programs had {:.1f} of this machine's {} cores meanwhile: what was timed took longer "
      "than alone",
      load.others, load.cores);
}

LoadWatch::LoadWatch()
    : begin_(ticks_now()),
      own_begin_(own_seconds()),
      time_begin_(std::chrono::steady_clock::now()) {}

std::optional<MachineLoad> LoadWatch::load() const {
  const std::optional<CoreTicks> now = ticks_now();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - time_begin_).count();
  const auto per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  if (!begin_ || !now || seconds < kLeastSeconds || per_second <= 0) return std::nullopt;
  const double busy = static_cast<double>(now->busy - begin_->busy) / per_second / seconds;
  MachineLoad load;
  load.own = (own_seconds() - own_begin_) / seconds;
  load.others = std::max(0.0, busy - load.own);
  load.cores = sysconf(_SC_NPROCESSORS_ONLN);
  return load;
}

}  // namespace ballast
