// docs/long-sequences.md: its figures are those that the program prints.
#include <cmath>
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <regex>
#include <sstream>

#include "tests/cli/support.h"

namespace ballast {
namespace {

std::vector<std::string> rows_of(std::istream& text) {
  std::vector<std::string> rows;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("| ")) rows.push_back(line);
  }
  return rows;
}

std::vector<std::string> cells_of_row(const std::string& row) {
  std::vector<std::string> cells;
  std::istringstream text(row.substr(2));
  for (std::string cell; std::getline(text, cell, '|');) {
    const size_t begin = cell.find_first_not_of(' ');
    if (begin == std::string::npos) continue;
    cells.push_back(cell.substr(begin, cell.find_last_not_of(' ') - begin + 1));
  }
  return cells;
}

std::vector<double> numbers_in(const std::string& text) {
  static const std::regex number("[-+]?[0-9]+(\\.[0-9]+)?");
  std::vector<double> found;
  for (std::sregex_iterator at(text.begin(), text.end(), number), end; at != end; ++at) {
    found.push_back(std::stod(at->str()));
  }
  return found;
}

// The row that begins with a cell, of the page's table whose head begins so.
std::vector<std::string> cells_on_page(const std::string& head, const std::string& first) {
  std::ifstream page(std::string(BALLAST_SOURCE_DIR) + "/docs/long-sequences.md");
  bool is_in_table = false;
  for (std::string line; std::getline(page, line);) {
    is_in_table = line.starts_with(head) || (is_in_table && line.starts_with("|"));
    if (!is_in_table) continue;
    const std::vector<std::string> cells = cells_of_row(line);
    if (!cells.empty() && cells.front() == first) return cells;
  }
  ADD_FAILURE() << "no row of " << first << " in the table that begins with " << head;
  return {};
}

// A figure may be off by 2 %: a fit of the stack moves all a little. A change in percent may be off
// by 0.3 of them.
void expect_near(const std::string& page, const std::string& printed, const std::string& row) {
  const std::vector<double> said = numbers_in(page), now = numbers_in(printed);
  ASSERT_EQ(said.size(), now.size()) << row << ": " << page << ", printed " << printed;
  const bool percent = page.ends_with("%");
  for (size_t i = 0; i < said.size(); ++i) {
    EXPECT_NEAR(said[i], now[i], percent ? 0.3 : 0.02 * std::abs(now[i]))
        << row << ": " << page << ", printed " << printed;
  }
}

TEST(LongSequencesPage, has_what_its_script_of_offload_prints) {
  const Workbench bench;
  const Outcome outcome = bench.shell("python3 " + std::string(BALLAST_SOURCE_DIR) +
                                      "/scripts/activation_offload_claims.py --ballast $BALLAST");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  std::istringstream text(outcome.output);
  int compared = 0;
  for (const std::string& row : rows_of(text)) {
    const std::vector<std::string> printed = cells_of_row(row);
    if (printed.front() == "experiment" || printed.front() == "---") continue;
    const std::vector<std::string> page = cells_on_page("| experiment", printed.front());
    ASSERT_GE(page.size(), 5U) << row;
    for (size_t i = 1; i < 5; ++i) expect_near(page[i], printed[i], printed.front());
    ++compared;
  }
  EXPECT_EQ(compared, 4);
}

// Of the table of limits: the length that the page has for so many GPUs fits, and one that is
// longer by a tenth does not.
TEST(LongSequencesPage, has_the_longest_sequences_of_sppo) {
  const Workbench bench;
  constexpr int64_t kStep = 65536;
  for (const int64_t devices : {32, 64, 128}) {
    const std::vector<std::string> page = cells_on_page("| GPUs", std::to_string(devices));
    ASSERT_GE(page.size(), 5U);
    const auto fits = [&](const std::string& stack, double million, double share) {
      const auto steps = std::llround(share * million * 1e6 / kStep);
      return bench
          .run(fmt::format("predict --stack {} --model llama-2-7b --machine hgx-a100-80gb --set "
                           "machine.cpu.memory_gb=250 --devices {} --global-batch 1 "
                           "--micro-batch 1 --sequence-length {} --strategy sppo --sequence 8 "
                           "--pipeline {} --subsequences {} --set plan.multiplex=false",
                           stack, devices, steps * kStep, devices / 8, steps))
          .code;
    };
    const std::pair<std::string, size_t> columns[] = {{"ballast", 3}, {"megatron-core-2024", 4}};
    for (const auto& [stack, column] : columns) {
      const double million = std::stod(page[column]);
      EXPECT_EQ(fits(stack, million, 0.98), 0) << devices << " " << stack;
      EXPECT_EQ(fits(stack, million, 1.1), 1) << devices << " " << stack;
    }
  }
}

// How many plans a search of 7B with a million tokens has, how many of them are simulated, and the
// best; the processor's seconds are of one machine.
TEST(LongSequencesPage, has_what_searches_of_a_million_tokens_find) {
  const Workbench bench;
  for (const std::string flags :
       {"--strategy sppo", "--strategy sppo --free-degrees", "--strategy seq1f1b", ""}) {
    const Json found = Json::parse(
        bench
            .run("tune --model llama-2-7b --machine hgx-a100-80gb --devices 32 --global-batch 1 "
                 "--sequence-length 1048576 --store s.db --again --json " +
                 flags + " 2> /dev/null")
            .output);
    const std::string label = flags.empty() ? "no strategy" : "`" + flags + "`";
    const std::vector<std::string> row = cells_on_page("| with | plans", label);
    ASSERT_EQ(row.size(), 5U);
    EXPECT_EQ(found["not_looked_at"], 0);
    const auto whole = [](std::string cell) {
      std::erase(cell, ',');
      return std::stoll(cell);
    };
    EXPECT_EQ(found["considered"], whole(row[1])) << label;
    EXPECT_EQ(found["simulated"], whole(row[2])) << label;
    EXPECT_NEAR(found["ranked"][0]["step_time_s"].get<double>(), numbers_in(row[4]).front(), 0.5);
  }
}

// 13B of SPPO's paper without offload, with all of it and with adaptive offload.
TEST(LongSequencesPage, has_what_offload_saves_of_13b) {
  std::ifstream file(std::string(BALLAST_SOURCE_DIR) + "/docs/long-sequences.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  static const std::regex sentence(
      "needs ([0-9]+) GiB a GPU without offload; with all of it a step takes ([0-9.]+) s,\n"
      "with adaptive offload ([0-9.]+),");
  std::smatch said;
  ASSERT_TRUE(std::regex_search(page, said, sentence));
  const Workbench bench;
  const auto predict = [&](const std::string& flags) {
    return Json::parse(
        bench
            .run("predict --json --stack megatron-core-2024 --model llama-2-13b --machine "
                 "hgx-a100-80gb --set machine.cpu.memory_gb=250 --devices 32 --global-batch 1 "
                 "--micro-batch 1 --sequence-length 524288 --strategy sppo --sequence 4 "
                 "--pipeline 8 --subsequences 16 " +
                 flags)
            .output);
  };
  const std::string all = "--set plan.activations.offload_per_mflop=0 ";
  std::string kept = all;
  for (const std::string module :
       {"norm1", "norm2", "qkv", "core_attention", "attention_out", "fc1", "fc2", "activation"}) {
    kept += "--set plan.activations." + module + "=keep ";
  }
  const double gib = predict(kept)["peak_gpu_bytes"].get<double>() / (1 << 30);
  EXPECT_NEAR(std::stod(said[1]), gib, 0.02 * gib);
  const double full = predict(all)["step_time_s"].get<double>();
  EXPECT_NEAR(std::stod(said[2]), full, 0.02 * full);
  const double adaptive = predict("")["step_time_s"].get<double>();
  EXPECT_NEAR(std::stod(said[3]), adaptive, 0.02 * adaptive);
  EXPECT_LT(adaptive, full);
}

// Memory and step of 8B with a million tokens on one superchip, whole and in 8 parts.
TEST(LongSequencesPage, has_a_million_tokens_on_one_superchip) {
  const Workbench bench;
  for (const std::string parts : {"1", "8"}) {
    const Json found =
        Json::parse(bench
                        .run("predict --json --stack ballast --model llama-3-8b --machine "
                             "gh200-96gb-480gb --global-batch 1 --sequence-length 1048576 "
                             "--subsequences " +
                             parts)
                        .output);
    const std::vector<std::string> page = cells_on_page("| parts | GPU memory", parts);
    ASSERT_EQ(page.size(), 5U);
    const auto gib = [&](const char* key) { return found[key].get<double>() / (1 << 30); };
    EXPECT_NEAR(numbers_in(page[1]).front(), gib("peak_gpu_bytes"), 0.02 * gib("peak_gpu_bytes"));
    EXPECT_NEAR(numbers_in(page[2]).front(), gib("peak_cpu_bytes"), 0.02 * gib("peak_cpu_bytes"));
    EXPECT_EQ(page[1].find(": fits") != std::string::npos, found["fits"].get<bool>()) << parts;
    if (page[3] == "-") continue;
    const double step = found["step_time_s"].get<double>();
    EXPECT_NEAR(numbers_in(page[3]).front(), step, 0.02 * step) << parts;
  }
}

// What multiplexing adds to the step of 7B with a million tokens.
TEST(LongSequencesPage, has_what_multiplexing_adds) {
  const Workbench bench;
  for (const std::string parts : {"32", "64"}) {
    std::vector<double> steps;
    for (const std::string multiplex : {"false", "true"}) {
      const Outcome outcome = bench.run(
          "predict --json --stack ballast --model llama-2-7b --machine hgx-a100-80gb --set "
          "machine.cpu.memory_gb=250 --devices 32 --global-batch 1 --micro-batch 1 "
          "--sequence-length 1048576 --strategy sppo --sequence 8 --pipeline 4 --subsequences " +
          parts + " --set plan.multiplex=" + multiplex);
      ASSERT_EQ(outcome.code, 0) << outcome.output;
      const std::string key = "\n \"step_time_s\": ";  // not that of "confidence"
      const size_t at = outcome.output.find(key);
      ASSERT_NE(at, std::string::npos);
      steps.push_back(std::stod(outcome.output.substr(at + key.size())));
    }
    const std::vector<std::string> page = cells_on_page("| N | idle", parts);
    ASSERT_EQ(page.size(), 7U);
    EXPECT_NEAR(std::stod(page[2]), steps[0], 0.02 * steps[0]);
    EXPECT_NEAR(std::stod(page[3]), steps[1], 0.02 * steps[1]);
    EXPECT_NEAR(std::stod(page[4]), 100 * (steps[0] / steps[1] - 1), 0.5);
  }
}

}  // namespace
}  // namespace ballast
