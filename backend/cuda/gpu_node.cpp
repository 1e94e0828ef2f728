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

#include "sim/base/error.h"

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

// In ascending order.
std::vector<int> nodes_with_cpus(const std::string& system) {
  std::vector<int> nodes = cpus_of_list(line_of(system + "/devices/system/node/online"));
  std::erase_if(nodes, [&](int node) { return cpus_of_node(system, node).empty(); });
  return nodes;
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

namespace {

// What memory does that its threads touch first.
std::string said_of_memory(int node) {
  const std::string off = prefer_memory_of(node);
  return off.empty() ? ", and so does memory while it has room"
                     : "; memory may lie elsewhere: " + off;
}

std::string bind_to_own_node(const std::string& bus, int node, const std::string& system) {
  int cpus = 0;
  const std::string off = keep_on(cpus_of_node(system, node), cpus);
  if (!off.empty()) {
    return fmt::format("not bound to NUMA node {}, which the GPU {} belongs to: {}", node, bus,
                       off);
  }
  return fmt::format("threads stay on the {} CPUs of NUMA node {}, which the GPU {} belongs to{}",
                     cpus, node, bus, said_of_memory(node));
}

// Of `nodes`, the next one after the GPU's own.
std::string bind_to_next_node(const std::string& bus, int own, const std::vector<int>& nodes,
                              const std::string& system) {
  const auto after = std::upper_bound(nodes.begin(), nodes.end(), own);
  const int node = after == nodes.end() ? nodes.front() : *after;
  int cpus = 0;
  const std::string off = keep_on(cpus_of_node(system, node), cpus);
  if (!off.empty()) {
    throw Error("plan, numa remote", fmt::format("not bound to NUMA node {}: {}", node, off),
                "let the process use that node's CPUs, or set numa to local");
  }
  return fmt::format(
      "threads stay on the {} CPUs of NUMA node {}, not on node {}, which the GPU "
      "{} belongs to (numa remote){}",
      cpus, node, own, bus, said_of_memory(node));
}

}  // namespace

std::string bind_to_node_of_gpu(const std::string& bus, NumaBinding numa,
                                const std::string& system) {
  const std::vector<int> nodes = nodes_with_cpus(system);
  const std::optional<int> own = node_of_gpu(bus, system);
  const bool is_choice = own && nodes.size() > 1;
  if (numa == NumaBinding::kLocal) return is_choice ? bind_to_own_node(bus, *own, system) : "";
  if (!is_choice) {
    throw Error("plan, numa remote",
                own ? "no more than one NUMA node of this machine has CPUs"
                    : "the system does not say which NUMA node the GPU " + bus + " belongs to",
                "set numa to local");
  }
  return bind_to_next_node(bus, *own, nodes, system);
}

}  // namespace ballast
