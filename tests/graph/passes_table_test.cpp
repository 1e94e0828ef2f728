// The table of passes: what the design page says of it, and what "applies" promises.
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <set>

#include "sim/graph/passes/passes.h"
#include "tests/graph/tiny_plans.h"

namespace ballast {
namespace {

// The rows of the first table of a page that begins with this line, its rule left out.
std::vector<std::string> table_of(const std::string& page, const std::string& title) {
  std::ifstream file(std::string(BALLAST_SOURCE_DIR) + "/docs/" + page);
  std::vector<std::string> rows;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (inside && line.rfind("|", 0) != 0) break;
    if (inside) rows.push_back(line);
    inside = inside || line == title;
  }
  if (!rows.empty()) rows.erase(rows.begin());
  return rows;
}

TEST(passes, the_design_page_lists_them_in_their_order) {
  std::vector<std::string> rows;
  for (const Pass& pass : passes()) {
    rows.push_back(fmt::format("| {} | `{}` | {} |", pass.name, pass.file, pass.does));
  }
  EXPECT_EQ(table_of("design.md", "| pass | file | does |"), rows);
}

TEST(passes, have_names_of_their_own_and_files_that_exist) {
  std::set<std::string_view> names;
  for (const Pass& pass : passes()) {
    EXPECT_TRUE(names.insert(pass.name).second) << pass.name;
    const std::string path =
        std::string(BALLAST_SOURCE_DIR) + "/sim/graph/" + std::string(pass.file);
    EXPECT_TRUE(std::ifstream(path).good()) << path;
  }
}

std::string text_of(const Graph& graph) {
  std::string text;
  for (const Op& op : graph.step.ops) {
    text += describe(op) + cost_key(op);
    for (const Access& access : op.accesses) {
      text += fmt::format(" {}{}{}", access.tensor, static_cast<int>(access.role),
                          static_cast<int>(access.mode));
    }
    text += '\n';
  }
  return text;
}

// Each of these plans asks for one pass more than the plan without anything.
TEST(passes, apply_where_a_plan_asks_for_them) {
  const auto applying = [](const Plan& plan, const StackFacts& facts) {
    std::set<std::string_view> names;
    const Model model = tiny::model();
    for (const Pass& pass : passes()) {
      if (pass.applies({model, plan, facts})) names.insert(pass.name);
    }
    return names;
  };
  const Plan plain = tiny::plan();
  const auto base = applying(plain, {});
  EXPECT_EQ(base,
            (std::set<std::string_view>{"plain", "checkpoint", "optimizer", "place", "link"}));
  const auto asks_for = [&](std::string_view name, const Plan& plan, const StackFacts& facts = {}) {
    auto expected = base;
    expected.insert(name);
    EXPECT_EQ(applying(plan, facts), expected) << name;
  };
  const auto with = [&](const auto& change) {
    Plan plan = plain;
    change(plan);
    return plan;
  };
  asks_for("tensor", with([](Plan& plan) { plan.tensor = 2; }));
  asks_for("sequence", with([](Plan& plan) { plan.sequence = 2, plan.zero_stage = 0; }));
  asks_for("gather", with([](Plan& plan) { plan.data = 2, plan.zero_stage = 3; }));
  asks_for("shard", with([](Plan& plan) { plan.data = 2, plan.zero_stage = 2; }));
  asks_for("residency", with([](Plan& plan) { plan.weights.flow_share = 0.5; }));
  StackFacts facts;
  facts.accumulates_on_cpu = true;
  asks_for("accumulate", with([](Plan& plan) { plan.global_batch = 4; }), facts);
}

TEST(passes, a_slice_runs_what_lies_between_two_names) {
  const StackFacts facts;
  const Model model = tiny::model();
  const Plan plan = tiny::plan();
  const PassContext context{model, plan, facts};
  Graph halves = run_passes({}, context, "plain", "checkpoint");
  halves = run_passes(std::move(halves), context, "gather", "link");
  EXPECT_EQ(text_of(halves), text_of(build(model, plan)));
}

}  // namespace
}  // namespace ballast
