// `ballast knobs`, the page that is made from it, and the flags that the table gives to verbs.
#include "sim/spec/knobs.h"

#include <algorithm>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/support.h"

namespace ballast {
namespace {

using Json = nlohmann::json;

TEST(KnobsVerb, lists_and_shows_every_knob) {
  const Workbench bench;
  const Outcome text = bench.run("knobs");
  const Json list = Json::parse(bench.run("knobs --json").output);
  ASSERT_EQ(list.size(), kKnobs);
  for (size_t i = 0; i < kKnobs; ++i) {
    const Knob& knob = knobs()[i];
    EXPECT_EQ(list[i]["path"], knob.path);
    EXPECT_TRUE(text.says(std::string(knob.path))) << knob.path;
  }
  const Outcome one = bench.run("knobs show optimizer.cast");
  EXPECT_TRUE(one.says("gpu, cpu")) << one.output;
  const auto cast = std::find_if(list.begin(), list.end(),
                                 [](const Json& knob) { return knob["path"] == "optimizer.cast"; });
  ASSERT_NE(cast, list.end());
  EXPECT_EQ(Json::parse(bench.run("knobs show plan.optimizer.cast --json").output), *cast);
}

TEST(KnobsVerb, what_is_no_knob_is_refused_in_one_line) {
  const Workbench bench;
  for (const char* words : {"knobs show optimizer.casts", "knobs show", "knobs list devices",
                            "knobs optimizer.cast", "knobs --markdown --json"}) {
    const Outcome outcome = bench.run(words);
    EXPECT_EQ(outcome.code, 2) << words;
    EXPECT_EQ(outcome.lines(), 1) << outcome.output;
  }
}

TEST(KnobsVerb, the_page_of_the_documentation_is_its_output) {
  std::ifstream file(std::string(BALLAST_SOURCE_DIR) + "/docs/knobs.md");
  std::stringstream page;
  page << file.rdbuf();
  const std::string tables = Workbench().run("knobs --markdown").output;
  EXPECT_GT(tables.size(), 1000U);
  EXPECT_NE(page.str().find(tables), std::string::npos)
      << "put the output of ballast knobs --markdown into docs/knobs.md:\n"
      << tables;
}

TEST(KnobsVerb, every_flag_of_the_table_is_in_the_help_of_verbs_that_take_a_plan) {
  const Workbench bench;
  for (const char* verb : {"predict", "tune", "compare", "train", "graph"}) {
    const Outcome help = bench.run(std::string(verb) + " --help");
    for (const Knob& knob : knobs()) {
      if (knob.flag.name.empty()) continue;
      EXPECT_TRUE(help.says("  " + std::string(knob.flag.name) + " ")) << verb << " " << knob.path;
    }
  }
}

}  // namespace
}  // namespace ballast
