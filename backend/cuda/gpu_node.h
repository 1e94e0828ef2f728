// Keeps a training on the chip that its GPU belongs to: the NUMA node whose CPUs and memory are
// nearest to it, on a superchip its own Grace. Of several such chips in one machine the threads and
// the arena would otherwise lie wherever there is room, and copies would cross to another chip.
//
// What is bound is the calling thread; threads that it makes, and memory that they touch first,
// follow it (sched_setaffinity(2), set_mempolicy(2)). What the process was kept from before
// (numactl, taskset, a container) stays so.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/spec/plan.h"

namespace ballast {

// CPUs of a list as Linux writes them: "0-3,8". Empty where it is none.
std::vector<int> cpus_of_list(const std::string& list);

// The node of a GPU by its PCI address ("0009:01:00.0", in capitals or not), as the folder `system`
// says (/sys); none where it does not.
std::optional<int> node_of_gpu(const std::string& bus, const std::string& system);

// Binds the calling thread to the CPUs of the GPU's node, and prefers its memory: where that is
// full, memory is of another node. What was done, or why it was not, in a line; empty where there
// is nothing to choose, as no more than one node has CPUs or the system knows none of the GPU.
// With kRemote (Plan::numa) it is the next node with CPUs: what a wrong binding costs is measured
// so. Throws Error where there is none, or the thread cannot be bound to it.
std::string bind_to_node_of_gpu(const std::string& bus, NumaBinding numa,
                                const std::string& system = "/sys");

}  // namespace ballast
