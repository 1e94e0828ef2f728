// Pages that show what the program prints. Every command of the README that begins with "$
// build/ballast" runs and ends well: a first page goes stale faster than anything else.
#include <fstream>
#include <gtest/gtest.h>
#include <set>
#include <span>
#include <sstream>
#include <string_view>

#include "cli/flags/inputs.h"
#include "tests/cli/support.h"

namespace ballast {
namespace {

std::vector<std::string> lines_of(const std::string& page) {
  std::ifstream file(std::string(BALLAST_SOURCE_DIR) + "/" + page);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST(Readme, every_command_it_shows_can_be_run) {
  const Workbench bench;
  const std::string program = "    $ build/ballast ";
  int commands = 0;
  for (const std::string& line : lines_of("README.md")) {
    if (!line.starts_with(program)) continue;
    ++commands;
    const Outcome outcome = bench.run(line.substr(program.size()));
    EXPECT_EQ(outcome.code, 0) << line << "\n" << outcome.output;
  }
  EXPECT_GE(commands, 1);
}

// Where it shows what a command prints, that is what it prints; but for what runs the plan, which
// is the build's.
TEST(Readme, shows_what_its_commands_print) {
  const Workbench bench;
  const std::string program = "    $ build/ballast ";
  std::set<std::string> printed;
  int shown = 0;
  for (const std::string& line : lines_of("README.md")) {
    if (line.starts_with(program)) {
      std::istringstream output(bench.run(line.substr(program.size())).output);
      for (std::string one; std::getline(output, one);) printed.insert(one);
    } else if (printed.empty() || line.empty() || line.starts_with("    to run it ")) {
      continue;
    } else if (!line.starts_with("    ")) {
      printed.clear();  // the text goes on
    } else {
      ++shown;
      EXPECT_TRUE(printed.contains(line.substr(4))) << line;
    }
  }
  EXPECT_GT(shown, 15);
}

// The one list of them that a page has.
TEST(DesignPage, names_the_strategies_that_are_chosen_among) {
  std::string page;
  for (const std::string& line : lines_of("docs/design.md")) page += line + " ";
  const std::span<const std::string_view> names = default_strategies();
  std::string sentence = "on several devices, ";
  for (size_t i = 0; i < names.size(); ++i) {
    sentence += i == 0 ? "" : i + 1 == names.size() ? " and " : ", ";
    sentence += names[i];
  }
  EXPECT_NE(page.find(sentence + " are chosen among"), std::string::npos) << sentence;
}

// docs/why.md: every line that it shows as printed (two levels deep) is one of its commands' lines.
TEST(WhyPage, shows_what_its_commands_print) {
  const Workbench bench;
  std::string flags;
  std::set<std::string> printed;
  std::vector<std::string> shown;
  const std::string program = "    build/ballast ";
  for (const std::string& line : lines_of("docs/why.md")) {
    if (line.starts_with("    M=\"")) flags = line.substr(7, line.size() - 8);
    if (line.starts_with(program) && line.find("--trace") == std::string::npos) {
      std::string command = line.substr(program.size(), line.find('#') - program.size());
      command.replace(command.find("$M"), 2, flags);
      std::istringstream output(bench.run(command).output);
      for (std::string one; std::getline(output, one);) printed.insert(one);
    }
    if (line.starts_with("        ")) shown.push_back(line.substr(8));
  }
  EXPECT_GE(shown.size(), 10U);
  for (const std::string& line : shown) EXPECT_TRUE(printed.contains(line)) << line;
}

}  // namespace
}  // namespace ballast
