// The chip that a GPU belongs to, by folders as Linux makes them.
#include "backend/cuda/gpu_node.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <thread>

#include "kernels/threads.h"
#include "sim/base/error.h"
#include "tests/backend/temporary_folder.h"

namespace ballast {
namespace {

// Two chips and the memories of their GPUs, which are nodes without CPUs. `own` are the CPUs of the
// chip of the second GPU.
void make_two_chips(const TemporaryFolder& system, const std::string& own) {
  system.write("devices/system/node/online", "0-1,4,12\n");
  system.write("devices/system/node/node0/cpulist", "900-901\n");
  system.write("devices/system/node/node1/cpulist", own + "\n");
  system.write("devices/system/node/node4/cpulist", "\n");
  system.write("devices/system/node/node12/cpulist", "\n");
  system.write("bus/pci/devices/0009:01:00.0/numa_node", "0\n");
  system.write("bus/pci/devices/0019:0a:00.0/numa_node", "1\n");
  system.write("bus/pci/devices/0029:01:00.0/numa_node", "-1\n");
}

std::vector<int> allowed_cpus() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  EXPECT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
  }
  return cpus;
}

TEST(gpu_node, lists_of_cpus_are_read_as_linux_writes_them) {
  EXPECT_EQ(cpus_of_list("0-2,8"), (std::vector<int>{0, 1, 2, 8}));
  EXPECT_EQ(cpus_of_list("5"), std::vector<int>{5});
  for (const char* none : {"", "x", "3-", "-1", "0-99999999", "1,,2"}) {
    EXPECT_TRUE(cpus_of_list(none).empty()) << none;
  }
}

TEST(gpu_node, is_that_of_its_pci_address_however_it_is_written) {
  const TemporaryFolder system;
  make_two_chips(system, "0");
  EXPECT_EQ(node_of_gpu("0009:01:00.0", system.path()), 0);
  EXPECT_EQ(node_of_gpu("0019:0A:00.0", system.path()), 1);
  EXPECT_EQ(node_of_gpu("0029:01:00.0", system.path()), std::nullopt) << "the firmware says none";
  EXPECT_EQ(node_of_gpu("0039:01:00.0", system.path()), std::nullopt);
}

// A thread of its own, so that the test's others stay where they are.
TEST(gpu_node, threads_of_a_bound_thread_stay_with_it) {
  const int last = allowed_cpus().back();
  const TemporaryFolder system;
  make_two_chips(system, std::to_string(last));
  std::string said;
  std::vector<int> own, of_worker;
  std::thread([&] {
    said = bind_to_node_of_gpu("0019:0A:00.0", NumaBinding::kLocal, system.path());
    own = allowed_cpus();
    kernels::Workers workers(1, kernels::Pinning::kCores);
    workers.for_tiles(1, 1, [&](int64_t, int64_t) { of_worker = allowed_cpus(); });
  }).join();
  EXPECT_TRUE(said.starts_with("threads stay on the 1 CPUs of NUMA node 1")) << said;
  EXPECT_EQ(own, std::vector<int>{last});
  EXPECT_EQ(of_worker, std::vector<int>{last});
}

TEST(gpu_node, cpus_that_the_process_may_not_use_are_not_taken_and_it_says_so) {
  const TemporaryFolder system;
  make_two_chips(system, "0");
  const std::vector<int> before = allowed_cpus();
  EXPECT_EQ(bind_to_node_of_gpu("0009:01:00.0", NumaBinding::kLocal, system.path()),
            "not bound to NUMA node 0, which the GPU 0009:01:00.0 belongs to: this process may use "
            "none of its CPUs");
  EXPECT_EQ(allowed_cpus(), before);
}

TEST(gpu_node, nothing_is_bound_where_there_is_no_choice) {
  const TemporaryFolder system;
  make_two_chips(system, "0");
  const std::vector<int> before = allowed_cpus();
  EXPECT_EQ(bind_to_node_of_gpu("0029:01:00.0", NumaBinding::kLocal, system.path()), "");
  system.write("devices/system/node/node0/cpulist", "\n");
  EXPECT_EQ(bind_to_node_of_gpu("0019:0a:00.0", NumaBinding::kLocal, system.path()), "")
      << "one node has CPUs";
  EXPECT_EQ(allowed_cpus(), before);
}

std::string refusal_of_remote(const std::string& bus, const std::string& system) {
  try {
    bind_to_node_of_gpu(bus, NumaBinding::kRemote, system);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(gpu_node, a_plan_that_asks_for_another_chip_is_bound_to_the_next_one_or_refused) {
  const int last = allowed_cpus().back();
  const TemporaryFolder system;
  make_two_chips(system, std::to_string(last));
  std::string said;
  std::vector<int> own;
  std::thread([&] {
    said = bind_to_node_of_gpu("0009:01:00.0", NumaBinding::kRemote, system.path());
    own = allowed_cpus();
  }).join();
  EXPECT_TRUE(said.starts_with("threads stay on the 1 CPUs of NUMA node 1, not on node 0")) << said;
  EXPECT_EQ(own, std::vector<int>{last});
  // The next one after the last is the first, whose CPUs are not this process's.
  EXPECT_NE(refusal_of_remote("0019:0a:00.0", system.path()).find("not bound to NUMA node 0"),
            std::string::npos);
  EXPECT_NE(refusal_of_remote("0029:01:00.0", system.path()).find("does not say"),
            std::string::npos);
  system.write("devices/system/node/node0/cpulist", "\n");
  EXPECT_NE(refusal_of_remote("0019:0a:00.0", system.path()).find("no more than one NUMA node"),
            std::string::npos);
}

}  // namespace
}  // namespace ballast
