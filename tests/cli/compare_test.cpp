// `ballast compare` as a user runs it, and the answers of docs/what-if.md.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/support.h"

namespace ballast {
namespace {

using Json = nlohmann::json;

// Plans without open knobs, which cost one simulation a cell.
const std::string kCompared =
    "compare --model gpt2 --machine gh200-96gb-480gb --global-batch 2 --micro-batch 2 "
    "--sequence-length 512 --set plan.activations=keep --set plan.weights=stationary "
    "--set plan.optimizer.gpu_buckets=0 ";

// The output without the lines that say how far it is.
std::string without_progress(const Outcome& outcome) {
  return outcome.output.substr(outcome.output.find('{'));
}

// 124M parameters: at 1 GB/s the gradients alone (4 bytes each) take half a second to reach the
// CPU, where a whole resident step takes a few milliseconds.
TEST(Compare, best_of_every_row_is_marked_and_the_crossing_is_told) {
  const Workbench bench;
  const std::string asked = kCompared +
                            "--strategy superoffload,resident --metric step_time "
                            "--set machine.link.gb_per_s=1,100 ";
  const Outcome text = bench.run(asked);
  EXPECT_EQ(text.code, 0) << text.output;
  EXPECT_TRUE(text.says("the best is resident at every value")) << text.output;
  EXPECT_TRUE(text.says(" *")) << text.output;
  const Json json = Json::parse(without_progress(bench.run(asked + "--json")));
  ASSERT_EQ(json["cells"].size(), 4U);
  EXPECT_EQ(json["best"][0]["name"], "resident");
  const auto seconds = [&](size_t i) { return json["cells"][i]["step_time_s"].get<double>(); };
  EXPECT_GT(seconds(0), 0.5) << "superoffload at 1 GB/s";
  EXPECT_GT(seconds(0), 5 * seconds(2)) << "and at 100";
  EXPECT_NEAR(seconds(1), seconds(3), 0.02 * seconds(3)) << "tokens alone cross the link";
}

// With 2 GB of GPU memory, of which 1 is reserved, 16 bytes for each of 124M parameters (2 GB) do
// not fit; weights and activations do.
TEST(Compare, sweep_of_memory_says_between_which_values_the_best_changes) {
  const Workbench bench;
  const std::string asked =
      kCompared + "--strategy superoffload,resident --set machine.gpu.memory_gb=3,12 ";
  const Outcome outcome = bench.run(asked + "--csv cells.csv --out cells.json");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_TRUE(
      outcome.says("between machine.gpu.memory_gb 3 and 12 the best changes from "
                   "superoffload to resident"))
      << outcome.output;
  EXPECT_TRUE(outcome.says("resident at machine.gpu.memory_gb 3: GPU memory")) << outcome.output;
  const std::string csv = bench.read("cells.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 5) << "titles and four cells";
  EXPECT_NE(csv.find("3,resident,gh200-96gb-480gb,false,false,GPU memory"), std::string::npos)
      << csv;
  const Json json = Json::parse(bench.read("cells.json"));
  ASSERT_EQ(json["crossings"].size(), 1U);
  EXPECT_EQ(json["crossings"][0]["from"], 3);
  EXPECT_EQ(json["crossings"][0]["after"], "resident");
}

TEST(Compare, strategy_sets_knobs_of_its_own_and_degrees_may_be_columns) {
  const Workbench bench;
  const Outcome outcome = bench.run(kCompared +
                                    "--machine alps-gh200-quad --set plan.micro_batch=1 --strategy "
                                    "resident:devices=1,resident:devices=2 --json");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  const Json json = Json::parse(without_progress(outcome));
  EXPECT_EQ(json["cells"][0]["at"]["machine"], "gh200-96gb-480gb");
  const Json& last = json["cells"].back();
  EXPECT_EQ(last["plan"]["devices"], 2);
  EXPECT_EQ(last["plan"]["data"], 2);
}

// 0.36 a device-hour and N tokens a second: 0.36 / 3600 / N * 1e6 = 100 / N for a million.
TEST(Compare, price_makes_a_cost_by_machine) {
  const Workbench bench;
  const Outcome outcome = bench.run(kCompared +
                                    "--strategy resident --metric cost_per_token --json "
                                    "--price-per-device-hour 9,gh200-96gb-480gb=0.36");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  const Json cell = Json::parse(without_progress(outcome))["cells"][0];
  EXPECT_NEAR(cell["cost_per_million_tokens"].get<double>(),
              100 / cell["tokens_per_s"].get<double>(), 1e-9);
}

// A tuned cell may choose what the fixed one leaves as it is, so it is no slower.
TEST(Compare, tuned_cells_are_no_slower_than_fixed_ones) {
  const Workbench bench;
  bench.write_tiny_model();
  const std::string asked =
      "compare --model ./tiny.json --machine alps-gh200-quad --devices 2 --global-batch 4 "
      "--sequence-length 64 --strategy resident --json ";
  const auto seconds = [&](const std::string& more) {
    const Outcome outcome = bench.run(asked + more);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return Json::parse(without_progress(outcome))["cells"][0]["step_time_s"].get<double>();
  };
  EXPECT_LE(seconds("--tune"), 1.001 * seconds("--stack ballast"));
}

// A search that ends on its own proves its plan to within 1 %, and says so of every cell.
TEST(Compare, tuned_cells_say_what_their_search_proved) {
  const Workbench bench;
  bench.write_tiny_model();
  const std::string asked =
      "compare --model ./tiny.json --machine alps-gh200-quad --devices 2,4 --global-batch 4 "
      "--sequence-length 64 --tune ";
  const Json json = Json::parse(bench.run(asked + "--json 2> /dev/null").output);
  for (const Json& cell : json["cells"]) {
    ASSERT_TRUE(cell["fits"].get<bool>()) << cell["reason"];
    EXPECT_TRUE(cell["search"]["complete"].get<bool>());
    EXPECT_LE(cell["search"]["proven_within"].get<double>(), 0.01);
    EXPECT_GE(cell["search"]["proven_within"].get<double>(), 0);
    EXPECT_GT(cell["search"]["considered"], 1);
  }
  const Outcome text = bench.run(asked);
  EXPECT_TRUE(text.says("4 devices: no plan is faster by more than ")) << text.output;
  EXPECT_TRUE(Json::parse(bench.run(kCompared + "--strategy resident --json 2> /dev/null")
                              .output)["cells"][0]["search"]
                  .is_null())
      << "nothing was searched for a proof";
}

// Nobody named a strategy: none stands above a table of which it is not true.
TEST(Compare, strategies_that_were_chosen_are_told_of_each_cell) {
  const Workbench bench;
  const std::string asked =
      "compare --model gpt2-xl --machine dgx-h100-80gb,hgx-a100-80gb --global-batch 8 ";
  const Outcome several = bench.run(asked + "--devices 4 2> /dev/null");
  EXPECT_TRUE(several.says("strategy chosen, ")) << several.output;
  EXPECT_TRUE(several.says("chosen, as no strategy was named:")) << several.output;
  EXPECT_TRUE(several.says("dgx-h100-80gb: megatron, ")) << several.output;
  const Outcome one = bench.run(asked + "--devices 1 2> /dev/null");
  EXPECT_TRUE(one.says("strategy superoffload, ")) << one.output;
  EXPECT_FALSE(one.says("chosen")) << one.output;
}

// Of a cell whose time is over before a plan was found nobody knows whether it fits.
TEST(Compare, cell_that_its_deadline_stopped_is_not_decided) {
  const Workbench bench;
  const std::string asked =
      "compare --model llama-2-13b --machine alps-gh200-quad --devices 4 --global-batch 16 --tune "
      "--deadline 0.0001 ";
  const Outcome text = bench.run(asked);
  EXPECT_EQ(text.code, 3) << text.output;
  EXPECT_TRUE(text.says("not decided")) << text.output;
  EXPECT_TRUE(text.says("stopped by the deadline")) << text.output;
  EXPECT_FALSE(text.says("does not fit")) << text.output;
  const Json json = Json::parse(bench.run(asked + "--json 2> /dev/null").output);
  EXPECT_TRUE(json["cells"][0]["fits"].is_null());
  EXPECT_EQ(json["cells"][0]["obstacle"], "not decided");
}

TEST(Compare, interrupted_prints_and_writes_the_cells_that_are_there) {
  const Workbench bench;
  const std::string call =
      kCompared +
      "--tune --strategy superoffload,resident --set machine.link.gb_per_s=1..400:lin:1000 "
      "--out cells.json ";
  const auto interrupted = [&](const std::string& flags) {
    return bench.interrupt(call + flags, " of 2000");
  };
  const Outcome text = interrupted("");
  EXPECT_EQ(text.code, 3) << bench.read("progress.txt");
  EXPECT_TRUE(text.says("interrupted: ")) << text.output;
  EXPECT_TRUE(text.says(" of 2000 cells are not decided")) << text.output;
  EXPECT_NE(bench.read("progress.txt").find(" of 2000: "), std::string::npos)
      << "each cell is named as it ends";
  const Json json = Json::parse(bench.read("cells.json"));
  EXPECT_TRUE(json["interrupted"].get<bool>());
  const auto count = [&](const Json& fits) {
    return std::count_if(json["cells"].begin(), json["cells"].end(),
                         [&](const Json& cell) { return cell["fits"] == fits; });
  };
  EXPECT_GE(count(true), 1);
  EXPECT_GE(count(nullptr), 1);
  EXPECT_EQ(count(true) + count(nullptr), 2000);
  ASSERT_EQ(bench.run("report --compare cells.json --out page.html").code, 0);
}

TEST(Compare, illegal_combination_is_a_cell_and_the_others_are_computed) {
  const Workbench bench;
  const Outcome outcome = bench.run(kCompared + "--strategy resident,resident:devices=2:data=2");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_TRUE(outcome.says("illegal")) << outcome.output;
  EXPECT_TRUE(outcome.says("2 does not divide the 1 sequences of a rank")) << outcome.output;
  EXPECT_TRUE(outcome.says("what does not fit")) << outcome.output;
}

TEST(Compare, nothing_that_fits_is_exit_code_1_with_reasons) {
  const Workbench bench;
  const Outcome outcome =
      bench.run(kCompared + "--strategy resident --set machine.gpu.memory_gb=1.1,1.2");
  EXPECT_EQ(outcome.code, 1) << outcome.output;
  EXPECT_TRUE(outcome.says("GPU memory:")) << outcome.output;
}

TEST(Compare, bad_input_is_one_line_and_exit_code_2) {
  const Workbench bench;
  const auto refuses = [&](const std::string& flags, const std::string& part) {
    const Outcome outcome = bench.run(kCompared + "--strategy resident " + flags);
    EXPECT_EQ(outcome.code, 2) << flags << "\n" << outcome.output;
    EXPECT_EQ(outcome.lines(), 1) << outcome.output;
    EXPECT_TRUE(outcome.says(part)) << outcome.output;
  };
  refuses("--set machine.gpu.memory_gib=1,2", "did you mean 'memory_gb'");
  refuses("--set plan.optimizer.cst=cpu,gpu", "cst");
  refuses("--set model.layer=1..4:lin:2", "layer");
  refuses("--set machine.link.gb_per_s=0..9:log:3", "reaches 0");
  refuses("--set machine.link.gb_per_s=1..9:log:1", "empty sweep");
  refuses("--set machine.link.gb_per_s=-1,-2", "above 0");
  refuses("--set plan.a=1..200:lin:200 --set plan.b=1..200:lin:200", "more than 10000 cells");
  refuses("--set plan.global_batch=2,4 --set plan.global_batch=8,16", "sweeps a key twice");
  refuses("--strategy nosuch", "nosuch");
  refuses("--strategy resident:tensor", "has no '='");
  refuses("--columns nosuch", "no axis 'nosuch'");
  refuses("--metric cost_per_token", "price");
  refuses("--price-per-device-hour free", "not a price");
  refuses("--deadline 10", "add --tune");
}

// --- docs/what-if.md --------------------------------------------------------------------------

struct Example {
  std::string arguments;
  std::vector<std::string> output;  // as it is quoted
};

// A command is indented by four blanks and begins with "$ build/ballast"; lines that end in a
// backslash go on. What is indented below it, up to the next text, is its output.
std::vector<Example> examples_of(const std::string& page) {
  const std::string program = "    $ build/ballast ";
  std::ifstream file(std::string(BALLAST_SOURCE_DIR) + "/docs/" + page);
  std::vector<Example> examples;
  bool inside = false;
  bool goes_on = false;
  for (std::string line; std::getline(file, line);) {
    if (goes_on || line.starts_with(program)) {
      if (!goes_on) examples.push_back({});
      std::string words = goes_on ? line : line.substr(program.size());
      goes_on = words.ends_with("\\");
      if (goes_on) words.pop_back();
      examples.back().arguments += words;
      inside = true;
    } else if (line.starts_with("    ") || line.empty()) {
      if (inside && !line.empty()) examples.back().output.push_back(line.substr(4));
    } else {
      inside = false;
    }
  }
  return examples;
}

// Cells of a line of a table, which two blanks or more divide.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  for (size_t at = 0; at < line.size();) {
    size_t end = line.find("  ", at);
    if (end == std::string::npos) end = line.size();
    if (end > at) cells.push_back(line.substr(at, end - at));
    at = line.find_first_not_of(' ', end);
  }
  return cells;
}

// What a reader takes away: the marked column of every row, and where the best changes.
std::vector<std::string> claims_of(const std::vector<std::string>& lines) {
  std::vector<std::string> claims;
  for (const std::string& line : lines) {
    if (line.find("the best ") != std::string::npos) claims.push_back(line);
    const std::vector<std::string> cells = cells_of(line);
    for (size_t i = 0; i < cells.size(); ++i) {
      if (cells[i].ends_with(" *")) claims.push_back(cells[0] + ": column " + std::to_string(i));
    }
  }
  return claims;
}

struct PageFigure {
  double value = 0;
  double tolerance = 0;  // a percent of it, or one of the percent that it counts
};

// The numbers of all rows but the first cell's, in order: 7,803 and 7.1 %.
std::vector<PageFigure> figures_of(const std::vector<std::string>& lines) {
  std::vector<PageFigure> figures;
  for (const std::string& line : lines) {
    const std::vector<std::string> cells = cells_of(line);
    for (size_t i = 1; i < cells.size(); ++i) {
      std::string digits = cells[i];
      std::erase(digits, ',');
      char* end = nullptr;
      const double value = std::strtod(digits.c_str(), &end);
      if (end != digits.c_str()) {
        figures.push_back({value, digits.ends_with('%') ? 1 : 0.01 * value});
      }
    }
  }
  return figures;
}

TEST(WhatIfPage, every_answer_still_holds) {
  const Workbench bench;
  const std::vector<Example> examples = examples_of("what-if.md");
  EXPECT_GE(examples.size(), 5U);
  for (const Example& example : examples) {
    const Outcome outcome = bench.run(example.arguments + " 2> /dev/null");
    EXPECT_EQ(outcome.code, 0) << example.arguments << "\n" << outcome.output;
    std::vector<std::string> lines;
    std::istringstream text(outcome.output);
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    const std::vector<std::string> claims = claims_of(example.output);
    EXPECT_GE(claims.size(), 2U) << example.arguments;
    EXPECT_EQ(claims_of(lines), claims) << example.arguments << "\n" << outcome.output;
    // What is quoted is what is printed.
    const std::vector<PageFigure> quoted = figures_of(example.output);
    const std::vector<PageFigure> printed = figures_of(lines);
    ASSERT_EQ(quoted.size(), printed.size()) << outcome.output;
    for (size_t i = 0; i < quoted.size(); ++i) {
      EXPECT_NEAR(quoted[i].value, printed[i].value, printed[i].tolerance) << example.arguments;
    }
  }
}

}  // namespace
}  // namespace ballast
