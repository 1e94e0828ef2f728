#include "backend/cuda/gpu_node.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <fmt/format.h>
#include <fstream>
#include <linux/mempolicy.h>
#include <sched.h>
#include <string_view>
#include <sys/syscall.h>
#include <unistd.h>

namespace ballast {

namespace {

std::string line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<int> number_of(std::string_view text) {
  int number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::vector<int> cpus_of_node(const std::string& system, int node) {
  return cpus_of_list(line_of(fmt::format("{}/devices/system/node/node{}/cpulist", system, node)));
}

bool is_one_of_several(const std::string& system) {
  int with_cpus = 0;
  for (const int node : cpus_of_list(line_of(system + "/devices/system/node/online"))) {
    with_cpus += cpus_of_node(system, node).empty() ? 0 : 1;
  }
  return with_cpus > 1;
}

// Empty where the thread may use them from here on; else why not.
std::string keep_on(const std::vector<int>& cpus, int& kept) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return std::strerror(errno);
  cpu_set_t both;
  CPU_ZERO(&both);
  for (const int cpu : cpus) {
    if (cpu < CPU_SETSIZE && CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &both);
  }
  kept = CPU_COUNT(&both);
  if (kept == 0) return "this process may use none of its CPUs";
  if (sched_setaffinity(0, sizeof(both), &both) != 0) return std::strerror(errno);
  return "";
}

std::string prefer_memory_of(int node) {
  constexpr size_t kBits = sizeof(unsigned long) * CHAR_BIT;
  std::array<unsigned long, 16> nodes{};
  const auto at = static_cast<size_t>(node);
  if (at >= nodes.size() * kBits) return "its number is too large";
  nodes.at(at / kBits) = 1UL << (at % kBits);
  // One more than there are bits: Linux takes the last one away.
  const long failed =
      syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes.data(), nodes.size() * kBits + 1);
  return failed == 0 ? "" : std::strerror(errno);
}

}  // namespace

std::vector<int> cpus_of_list(const std::string& list) {
  std::vector<int> cpus;
  std::string_view rest = list;
  while (!rest.empty()) {
    const std::string_view range = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), range.size() + 1));
    const size_t dash = range.find('-');
    const std::optional<int> first = number_of(range.substr(0, dash));
    const std::optional<int> last =
        dash == std::string_view::npos ? first : number_of(range.substr(dash + 1));
    if (!first || !last || *first < 0 || *last >= CPU_SETSIZE) return {};
    for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

std::optional<int> node_of_gpu(const std::string& bus, const std::string& system) {
  std::string name = bus;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  const std::optional<int> node =
      number_of(line_of(fmt::format("{}/bus/pci/devices/{}/numa_node", system, name)));
  return node && *node >= 0 ? node : std::nullopt;  // -1: the firmware says none
}

std::string bind_to_node_of_gpu(const std::string& bus, const std::string& system) {
  if (!is_one_of_several(system)) return "";
  const std::optional<int> node = node_of_gpu(bus, system);
  if (!node) return "";
  int cpus = 0;
  const std::string off_cpus = keep_on(cpus_of_node(system, *node), cpus);
  if (!off_cpus.empty()) {
    return fmt::format("not bound to NUMA node {}, which the GPU {} belongs to: {}", *node, bus,
                       off_cpus);
  }
  const std::string off_memory = prefer_memory_of(*node);
  return fmt::format("threads stay on the {} CPUs of NUMA node {}, which the GPU {} belongs to{}",
                     cpus, *node, bus,
                     off_memory.empty() ? ", and so does memory while it has room"
                                        : "; memory may lie elsewhere: " + off_memory);
}

}  // namespace ballast
