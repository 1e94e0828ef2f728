// The capability contract over all that the generator can make: every form of an operation is
// either named by first_missing or declared by the device, and what is declared has been run.
#include <functional>
#include <gtest/gtest.h>
#include <set>
#include <tuple>

#include "backend/cuda/device_cuda.h"
#include "backend/execute/rank_place.h"
#include "backend/host/device_host.h"
#include "backend/paced/device_paced.h"
#include "backend/train/make_device.h"
#include "sim/graph/build.h"
#include "tests/backend/changed_plans.h"
#include "tests/backend/cuda_training.h"

namespace ballast {
namespace {

// What a table of capabilities tells apart.
using Form = std::tuple<OpKind, Role, DType, WorkVariant>;
constexpr auto kPlain = static_cast<WorkVariant>(kWorkVariants);

std::set<Form> forms_of(const Graph& graph) {
  std::set<Form> forms;
  for (const Program* program : {&graph.step, &graph.repair}) {
    for (const Op& op : program->ops) {
      const WorkVariants variants = variants_of(op, graph);
      for (const Access& access : op.accesses) {
        const DType type = graph.tensors[static_cast<size_t>(access.tensor)].dtype;
        forms.insert({op.kind, access.role, type, kPlain});
        for (int v = 0; v < kWorkVariants; ++v) {
          const auto variant = static_cast<WorkVariant>(v);
          if (variants.has(variant)) forms.insert({op.kind, access.role, type, variant});
        }
      }
    }
  }
  return forms;
}

// Three plans of our own and those of every strategy, each as it is and with every knob changed.
void for_every_plan(const std::function<void(const Plan& plan, const std::string& what)>& visit) {
  std::vector<std::pair<std::string, Plan>> bases = {{"waiting", tiny::waiting_plan()},
                                                     {"speculating", tiny::speculating_plan()},
                                                     {"in stages", tiny::pipelined_plan()}};
  for (const Shipped& strategy : shipped_strategies()) {
    bases.emplace_back(strategy.name, tiny::plan_of_strategy(strategy.name, 2 * kSegment * 4));
  }
  for (const auto& [name, base] : bases) {
    visit(base, name);
    tiny::for_every_change(
        base, [&, &name = name](const Knob&, const Plan& plan, const std::string& what) {
          visit(plan, name + " " + what);
        });
  }
}

bool is_legal(const Plan& plan, const Model& model) {
  try {
    check(plan, model);
    return true;
  } catch (const Error&) {
    return false;
  }
}

void expect_named(const Missing& missing, const std::string& what) {
  for (const std::string& part : {missing.what, missing.knob, missing.remedy}) {
    EXPECT_FALSE(part.empty()) << what;
    EXPECT_EQ(part.find('\n'), std::string::npos) << what << ": " << part;
  }
}

struct Counts {
  int graphs = 0, refused = 0, trained = 0;
};

void expect_processes(const Model& model, const Plan& plan, const TrainerOptions& options) {
  try {
    Trainer trainer(model, plan, options);
    ADD_FAILURE() << "it begins";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("start it with mpirun"), std::string::npos)
        << error.what();
  }
}

// Trains the first plan that has a form which none before it had.
Counts run_every_form(const Capabilities& capabilities, const TrainerOptions& options,
                      const Model& model = tiny::gpt2_model()) {
  Counts counts;
  std::set<Form> run;
  for_every_plan([&](const Plan& plan, const std::string& what) {
    if (!is_legal(plan, model)) return;
    const Graph graph = build_placed(model, plan, StackFacts{});
    ++counts.graphs;
    if (const auto missing = first_missing(graph, model, plan, capabilities)) {
      ++counts.refused;
      return expect_named(*missing, what);
    }
    // GPUs of several ranks are processes, which tests/cuda/nccl trains.
    if (rank_count(plan) > 1 && options.make_device) return expect_processes(model, plan, options);
    std::set<Form> forms = forms_of(graph);
    const size_t before = run.size();
    run.merge(forms);
    if (run.size() == before) return;
    ++counts.trained;
    Trainer trainer(model, plan, options);
    const TrainResult result = trainer.train(3, nullptr);
    EXPECT_FALSE(result.records.empty()) << what;
    for (const StepRecord& record : result.records) {
      EXPECT_TRUE(std::isfinite(record.loss)) << what;
    }
  });
  std::printf(
      "%s, %s: %d graphs, %d refused by name, %zu forms of operations run by %d trainings\n",
      capabilities.device().c_str(), model.name.c_str(), counts.graphs, counts.refused, run.size(),
      counts.trained);
  return counts;
}

TEST(contract, all_that_the_host_device_declares_of_what_is_made_it_runs) {
  const Counts counts = run_every_form(host_capabilities(), tiny::options_for(3));
  EXPECT_GT(counts.refused, 0);
  EXPECT_GT(counts.trained, 5);
}

TEST(contract, so_it_does_of_layers_with_experts_and_of_latent_attention) {
  const std::vector<Model> models = tiny::newer_models();
  for (const Model& model : {models.back(), models[models.size() - 2]}) {
    const Counts counts = run_every_form(host_capabilities(), tiny::options_for(3), model);
    EXPECT_GT(counts.refused, 0) << model.name;
    EXPECT_GT(counts.trained, 5) << model.name;
  }
}

TEST(contract, the_cuda_device_names_what_it_lacks_of_newer_families) {
  for (const Model& model : tiny::newer_models()) {
    const std::vector<DeviceVerdict> verdicts = which_run(model, tiny::waiting_plan());
    EXPECT_FALSE(verdicts[0].missing) << model.name;
    ASSERT_TRUE(verdicts[1].missing) << model.name;
    EXPECT_EQ(verdicts[1].missing->knob, "model") << model.name;
  }
}

TEST(contract, all_that_the_cuda_device_declares_of_what_is_made_it_runs) {
  tests::ThreadCudaOptions ada;
  ada.properties.major = 9;
  const Counts counts =
      run_every_form(cuda_capabilities(), tests::on_thread_cuda(tiny::options_for(3), ada));
  EXPECT_GT(counts.refused, 0);
  EXPECT_GT(counts.trained, 5);
}

// Other stacks shape graphs that this program predicts and does not run.
TEST(contract, what_other_stacks_make_is_carried_out_or_named) {
  const Model model = tiny::gpt2_model();
  int named = 0;
  for (const Shipped& shipped : shipped_stacks()) {
    const Stack stack = load_stack(shipped.name);
    for (const Shipped& strategy : shipped_strategies()) {
      const Plan plan = tiny::plan_of_strategy(strategy.name, 2 * kSegment * 4);
      const Graph graph = build_placed(model, plan, stack.facts);
      for (const Capabilities* all : {&host_capabilities(), &cuda_capabilities()}) {
        const auto missing = first_missing(graph, model, plan, *all);
        if (!missing) continue;
        ++named;
        expect_named(*missing, stack.name + " " + strategy.name);
      }
      EXPECT_FALSE(first_missing(graph, model, plan, paced_capabilities()));
    }
  }
  EXPECT_GT(named, 0);
}

TEST(contract, moments_in_bf16_are_for_the_host_and_no_exact_undo) {
  const Model model = tiny::gpt2_model();
  Plan plan = tiny::speculating_plan();
  plan.optimizer.moments = DType::kBf16;
  const auto missing = [&](const Capabilities& all) {
    return first_missing(build_placed(model, plan, StackFacts{}), model, plan, all);
  };
  EXPECT_FALSE(missing(host_capabilities()));
  EXPECT_EQ(missing(cuda_capabilities())->knob, "plan.optimizer.moments");
  plan.optimizer.undo = UndoKind::kExact;
  EXPECT_EQ(missing(host_capabilities())->knob, "plan.optimizer.undo");
}

TEST(contract, every_device_says_what_it_lacks_of_a_plan) {
  const Model model = tiny::gpt2_model();
  Plan plan = tiny::waiting_plan();
  std::vector<DeviceVerdict> verdicts = which_run(model, plan);
  ASSERT_EQ(verdicts.size(), 2u);
  EXPECT_EQ(verdicts[0].device, "host");
  EXPECT_FALSE(verdicts[0].missing);
  EXPECT_EQ(verdicts[1].device, "cuda");
  plan.devices = plan.data = 2;
  EXPECT_FALSE(which_run(model, plan)[0].missing);
  EXPECT_FALSE(first_missing(model, plan, cuda_capabilities()));
  plan.data = 1;
  plan.tensor = 2;
  EXPECT_FALSE(which_run(model, plan)[0].missing);
  EXPECT_FALSE(first_missing(model, plan, cuda_capabilities()));
  plan.tensor = 1;
  plan.sequence = 2;
  verdicts = which_run(model, plan);
  EXPECT_FALSE(verdicts[0].missing);
  ASSERT_TRUE(verdicts[1].missing);
  EXPECT_EQ(verdicts[1].missing->knob, "plan.sequence");
  plan = tiny::waiting_plan();
  plan.activations.reset();
  EXPECT_EQ(which_run(model, plan)[0].missing->knob, "plan");
}

// The switch itself, were a graph ever to reach it that first_missing was not asked about.
TEST(contractDeathTest, a_switch_fails_on_what_is_not_declared) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Model model = tiny::gpt2_model();
  const Plan plan = tiny::waiting_plan();
  Graph graph = build(model, plan);
  const TrainerOptions options = tiny::options_for(3);
  const TokenSource data = TokenSource::open(options.data, {.vocab = model.vocab});
  HostDevice device({model, plan, graph, data}, {}, {});
  Program undeclared = graph.step;
  for (Op& op : undeclared.ops) op.kind = OpKind::kScale;
  EXPECT_DEATH(device.execute(undeclared, 0, 0), "carry_out");
}

}  // namespace
}  // namespace ballast
