// Every file under profiles/ is loaded, and says where it comes from.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <set>

#include "profiles/load.h"
#include "tests/profiles/support.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;

size_t count_files(const std::string& kind) {
  size_t count = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(data_folder()) / kind)) {
    count += entry.path().extension() == ".json";
  }
  return count;
}

TEST(Shipped, every_machine_loads_under_its_own_name_and_passes_its_check) {
  const std::vector<Shipped> all = shipped_machines();
  EXPECT_EQ(all.size(), count_files("machines"));
  EXPECT_GE(all.size(), 11u);
  for (const Shipped& shipped : all) {
    const Machine machine = load_machine(shipped.name);
    EXPECT_EQ(machine.name, shipped.name);
    EXPECT_NO_THROW(check(machine)) << shipped.name;
    EXPECT_FALSE(shipped.description.empty());
  }
}

TEST(Shipped, every_model_loads_and_passes_its_check) {
  const std::vector<Shipped> all = shipped_models();
  EXPECT_EQ(all.size(), count_files("models"));
  EXPECT_GE(all.size(), 12u);
  for (const Shipped& shipped : all) EXPECT_NO_THROW(check(load_model(shipped.name)));
}

TEST(Shipped, every_strategy_gives_a_plan_that_can_be_run_for_a_model) {
  const std::vector<Shipped> all = shipped_strategies();
  EXPECT_EQ(all.size(), count_files("strategies"));
  EXPECT_GE(all.size(), 4u);
  for (const Shipped& shipped : all) {
    PlanRequest request;
    request.strategy = shipped.name;
    request.devices = 2;
    request.global_batch = 8;
    request.sequence_length = 128;
    EXPECT_NO_THROW(check(resolve_plan(request), load_model("gpt2"))) << shipped.name;
    EXPECT_FALSE(load_strategy(shipped.name).source.empty());
  }
}

// Every published case can be predicted only on a machine that is shipped.
TEST(Shipped, every_published_case_names_a_shipped_machine) {
  std::set<std::string> machines;
  for (const Shipped& shipped : shipped_machines()) machines.insert(shipped.name);
  size_t cases = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(data_folder()) / "published")) {
    const auto json = nlohmann::json::parse(testing::read_file(entry.path().string()));
    if (json.at("schema") != "ballast.published/1") continue;
    for (const auto& one : json.at("cases")) {
      const std::string name = one.at("machine");
      EXPECT_TRUE(machines.contains(name)) << name;
      EXPECT_LE(one.at("run").at("devices").get<int64_t>(), load_machine(name).devices);
      ++cases;
    }
  }
  EXPECT_GT(cases, 10u);
}

TEST(Shipped, data_folder_can_be_moved) {
  const std::string home = data_folder();
  const testing::TemporaryFolder folder;
  fs::create_directory(folder.file("models"));
  fs::copy_file(home + "/models/gpt2.json", folder.file("models/small.json"));
  ::setenv("BALLAST_DATA", folder.path().c_str(), 1);
  EXPECT_EQ(load_model("small").layers, 12);
  EXPECT_TRUE(testing::holds(testing::error_of([] { load_machine("x"); }), "BALLAST_DATA"));
  ::unsetenv("BALLAST_DATA");
  EXPECT_EQ(data_folder(), home);
}

}  // namespace
}  // namespace ballast
