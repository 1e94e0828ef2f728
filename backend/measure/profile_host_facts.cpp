// What the system grants this process: cores, memory, and what it calls itself.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fstream>
#include <limits>
#include <optional>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "backend/measure/profile.h"

namespace ballast {

namespace {

// The value behind "key" of a file of lines "key: value", as /proc has them; empty if none.
std::string field_of(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

Bytes kilobytes_of(const std::string& key) {
  const std::string text = field_of("/proc/meminfo", key);
  return {text.empty() ? 0 : std::atoll(text.c_str()) * 1024};
}

// The first number of a control group's file; nothing where there is no such file or no limit
// ("max", or version 1's huge number).
std::optional<int64_t> number_in(const std::string& path) {
  constexpr int64_t kNoLimit = int64_t{1} << 60;
  std::ifstream file(path);
  int64_t number = 0;
  if (!(file >> number) || number < 0 || number >= kNoLimit) return std::nullopt;
  return number;
}

constexpr const char* kGroups = "/sys/fs/cgroup/";

// Folder of this process's control group: of version 2, or of a controller of version 1. A
// container sees its own group as the root.
std::string group_folder(const std::string& controller) {
  std::ifstream file("/proc/self/cgroup");
  const std::string marker = ":" + controller + ":";
  for (std::string line; std::getline(file, line);) {
    const size_t at = line.find(marker);
    if (at == std::string::npos) continue;
    const std::string folder = kGroups + controller + line.substr(at + marker.size());
    if (access(folder.c_str(), R_OK) == 0) return folder + "/";
  }
  return kGroups + (controller.empty() ? "" : controller + "/");
}

int64_t usable_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const int64_t granted =
      sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : 0;
  const int64_t cores = granted > 0 ? granted : sysconf(_SC_NPROCESSORS_ONLN);
  // "quota period" of version 2 in one file, of version 1 in two.
  std::ifstream file(group_folder("") + "cpu.max");
  double quota = 0;
  double period = 0;
  if (!(file >> quota >> period)) {
    const std::string folder = group_folder("cpu");
    quota = static_cast<double>(number_in(folder + "cpu.cfs_quota_us").value_or(0));
    period = static_cast<double>(number_in(folder + "cpu.cfs_period_us").value_or(0));
  }
  if (quota <= 0 || period <= 0) return std::max<int64_t>(cores, 1);
  return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(quota / period)), 1, cores);
}

struct GroupMemory {
  std::optional<int64_t> limit;
  int64_t used = 0;
};
GroupMemory group_memory() {
  const std::string unified = group_folder("");
  if (const auto limit = number_in(unified + "memory.max")) {
    return {limit, number_in(unified + "memory.current").value_or(0)};
  }
  const std::string folder = group_folder("memory");
  return {number_in(folder + "memory.limit_in_bytes"),
          number_in(folder + "memory.usage_in_bytes").value_or(0)};
}

}  // namespace

HostFacts host_facts() {
  HostFacts facts;
  facts.processor = field_of("/proc/cpuinfo", "model name");
  utsname names{};
  if (uname(&names) == 0) {
    facts.system = fmt::format("{} {}", names.sysname, names.release);
    if (facts.processor.empty()) facts.processor = names.machine;
  }
  facts.cores = usable_cores();
  facts.memory = kilobytes_of("MemTotal");
  facts.available = kilobytes_of("MemAvailable");
  const GroupMemory group = group_memory();
  if (group.limit && *group.limit < facts.memory.count) {
    facts.memory = {*group.limit};
    facts.available =
        std::min(facts.available, Bytes{std::max<int64_t>(*group.limit - group.used, 0)});
  }
  return facts;
}

}  // namespace ballast
