// Every command of the README that begins with "$ build/ballast" runs and ends well: a first page
// goes stale faster than anything else.
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>

#include "tests/cli/support.h"

namespace ballast {
namespace {

std::vector<std::string> readme_lines() {
  std::ifstream file(std::string(BALLAST_SOURCE_DIR) + "/README.md");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST(Readme, every_command_it_shows_can_be_run) {
  const Workbench bench;
  const std::string program = "    $ build/ballast ";
  int commands = 0;
  for (const std::string& line : readme_lines()) {
    if (!line.starts_with(program)) continue;
    ++commands;
    const Outcome outcome = bench.run(line.substr(program.size()));
    EXPECT_EQ(outcome.code, 0) << line << "\n" << outcome.output;
  }
  EXPECT_GE(commands, 1);
}

}  // namespace
}  // namespace ballast
