// Every file under profiles/ is loaded, and says where it comes from.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <set>

#include "profiles/load.h"
#include "profiles/published.h"
#include "sim/graph/build.h"
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
  EXPECT_GE(all.size(), 20u);
  std::set<std::string> families;
  for (const Shipped& shipped : all) {
    const Model model = load_model(shipped.name);
    EXPECT_NO_THROW(check(model)) << shipped.name;
    families.insert(model.architecture);
  }
  EXPECT_EQ(families, (std::set<std::string>{"deepseek_v3", "dots1", "gpt2", "gpt_oss", "llama",
                                             "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"}));
}

// What the ranks of a pipeline step is the whole model, and once, whatever its layers are.
TEST(Shipped, every_model_is_whole_in_a_pipeline) {
  int tried = 0;
  for (const Shipped& shipped : shipped_models()) {
    Model model = load_model(shipped.name);
    model.layers = std::min<int64_t>(model.layers, 12);
    for (const int64_t stages : {2, 4}) {
      PlanRequest request;
      request.strategy = "megatron";
      request.knobs = {{KnobId::kDevices, 4 * stages}, {KnobId::kPipeline, stages},
                       {KnobId::kZeroStage, 1},        {KnobId::kGlobalBatch, 4 * stages},
                       {KnobId::kMicroBatch, 1},       {KnobId::kSequenceLength, 128}};
      if (model.experts > 0) request.knobs[KnobId::kExpert] = 4;
      Plan plan = resolve_plan(request);
      plan.activations = ActivationPlan{};
      plan.weights.flow_share = 0;
      const Graph graph = build(model, plan);
      int64_t stepped = 0;
      for (const Tensor& tensor : graph.tensors) {
        if (tensor.kind == TensorKind::kMaster) stepped += plan.data * tensor.elements;
      }
      const auto whole = static_cast<double>(parameter_count(model));
      // A tied embedding lies on both ends; shared experts are stepped by every group of ranks that
      // shares the others.
      double again = model.tied_embeddings
                         ? static_cast<double>((model.vocab + model.max_positions) * model.hidden)
                         : 0;
      for (int64_t layer = 0; layer < model.layers; ++layer) {
        if (!model.has_experts(layer)) continue;
        again += static_cast<double>(3 * (plan.expert - 1) * model.hidden * model.shared_ffn());
      }
      EXPECT_GE(static_cast<double>(stepped), whole) << shipped.name << ", " << stages;
      EXPECT_LE(static_cast<double>(stepped), 1.02 * whole + again) << shipped.name << stages;
      ++tried;
    }
  }
  EXPECT_GE(tried, 50);
}

TEST(Shipped, every_strategy_gives_a_plan_that_can_be_run_for_a_model) {
  const std::vector<Shipped> all = shipped_strategies();
  EXPECT_EQ(all.size(), count_files("strategies"));
  EXPECT_GE(all.size(), 20u);
  for (const Shipped& shipped : all) {
    PlanRequest request;
    request.strategy = shipped.name;
    request.knobs[KnobId::kDevices] = 2;
    request.knobs[KnobId::kGlobalBatch] = 8;
    request.knobs[KnobId::kSequenceLength] = 128;
    EXPECT_NO_THROW(check(resolve_plan(request), load_model("gpt2"))) << shipped.name;
    EXPECT_FALSE(load_strategy(shipped.name).source.empty());
  }
}

TEST(Shipped, every_stack_that_the_published_cases_may_name_loads) {
  std::set<std::string> names;
  for (const Shipped& shipped : shipped_stacks()) {
    names.insert(shipped.name);
    EXPECT_FALSE(shipped.description.empty());
    EXPECT_FALSE(load_stack(shipped.name).source.empty());
  }
  EXPECT_EQ(names.size(), count_files("stacks"));
  for (const char* name : {"ballast", "deepspeed-gh200", "deepspeed-2024", "llm-foundry-2023",
                           "torch-2025", "megatron-2021", "megatron-2022", "megatron-2023",
                           "megatron-core-2024", "nemo-2025", "llmq-2025"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

// The stack of that name is the record's defaults: what Ballast does is written once.
TEST(Shipped, stack_of_ballast_is_the_default_one) {
  const Stack shipped = load_stack("ballast");
  EXPECT_EQ(shipped.facts, StackFacts{});
  EXPECT_EQ(shipped.constants, StackConstants{});
}

TEST(Shipped, every_published_case_is_read_and_names_a_shipped_stack) {
  size_t cases = 0;
  for (const std::string& path : shipped_published()) {
    for (const PublishedEntry& entry : load_published(path).entries) {
      EXPECT_EQ(entry.error, "");
      if (!entry.published) continue;
      EXPECT_NO_THROW(load_stack(entry.published->stack)) << entry.id;
      ++cases;
    }
  }
  EXPECT_GE(cases, 40u);
}

// Every published case can be predicted only on a machine that is shipped.
TEST(Shipped, every_published_case_names_a_shipped_machine) {
  std::set<std::string> machines;
  for (const Shipped& shipped : shipped_machines()) machines.insert(shipped.name);
  size_t cases = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(data_folder()) / "published")) {
    if (entry.path().extension() != ".json") continue;
    const auto json = nlohmann::json::parse(profile_tests::read_file(entry.path().string()));
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
  const profile_tests::TemporaryFolder folder;
  fs::create_directory(folder.file("models"));
  fs::copy_file(home + "/models/gpt2.json", folder.file("models/small.json"));
  ::setenv("BALLAST_DATA", folder.path().c_str(), 1);
  EXPECT_EQ(load_model("small").layers, 12);
  EXPECT_TRUE(
      profile_tests::holds(profile_tests::error_of([] { load_machine("x"); }), "BALLAST_DATA"));
  ::unsetenv("BALLAST_DATA");
  EXPECT_EQ(data_folder(), home);
}

}  // namespace
}  // namespace ballast
