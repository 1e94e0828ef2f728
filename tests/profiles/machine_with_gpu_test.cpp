#include "profiles/names/machine_with_gpu.h"

#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "profiles/load.h"

namespace ballast {
namespace {

// Names as nvidia-smi has them of modules and cards; bytes of their whole memory.
TEST(Machines, shipped_one_is_found_by_the_drivers_name_of_its_gpu) {
  std::vector<Machine> machines;
  for (const Shipped& machine : shipped_machines()) machines.push_back(load_machine(machine.name));
  const auto gpu_of = [&](const std::string& name, double gb) {
    const auto found = machine_with_gpu(machines, name, {static_cast<int64_t>(gb * 1e9)});
    return found ? found->gpu.name : "none";
  };
  EXPECT_EQ(gpu_of("NVIDIA H100 80GB HBM3", 85.5), "NVIDIA H100 SXM 80 GB");
  EXPECT_EQ(gpu_of("NVIDIA H200", 150.7), "NVIDIA H200 SXM 141 GB");
  EXPECT_EQ(gpu_of("NVIDIA GH200 480GB", 101.7), "NVIDIA GH200, H100 96 GB HBM3");
  EXPECT_EQ(gpu_of("NVIDIA A100-SXM4-40GB", 42.5), "NVIDIA A100 SXM 40 GB");
  EXPECT_EQ(gpu_of("NVIDIA A100-SXM4-80GB", 85.1), "NVIDIA A100 SXM 80 GB");
  EXPECT_EQ(gpu_of("NVIDIA B200", 191.5), "NVIDIA B200 180 GB");
  EXPECT_EQ(gpu_of("NVIDIA H100 PCIe", 85.5), "none") << "its rates are others";
  EXPECT_EQ(gpu_of("NVIDIA H20", 102.6), "none");
  EXPECT_EQ(gpu_of("", 80), "none");
  machines = {load_machine("hgx-h200-sxm"), load_machine("hgx-h200-sxm")};
  machines[0].name = "b";
  machines[1].name = "a";
  EXPECT_EQ(machine_with_gpu(machines, "NVIDIA H200", {})->name, "a");
}

TEST(Machines, gpu_on_a_card_is_not_the_module_and_a_longer_number_is_another_model) {
  std::vector<Machine> machines(3);
  machines[0].name = "b", machines[0].gpu.name = "NVIDIA H200 SXM 141 GB";
  machines[1].name = "a", machines[1].gpu.name = "NVIDIA H200 NVL";
  machines[2].name = "c", machines[2].gpu.name = "NVIDIA H20";
  EXPECT_EQ(machine_with_gpu(machines, "NVIDIA H200", {})->name, "b");
  EXPECT_EQ(machine_with_gpu(machines, "NVIDIA H200 NVL", {})->name, "a");
  EXPECT_EQ(machine_with_gpu(machines, "NVIDIA H20", {})->name, "c");
  EXPECT_FALSE(machine_with_gpu(machines, "NVIDIA H100", {}));
  EXPECT_FALSE(machine_with_gpu(machines, "", {}));
}

}  // namespace
}  // namespace ballast
