// `ballast tune` of a tiny model, as a user runs it, in a folder that goes away.
#pragma once

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/support.h"

namespace ballast {

using Json = nlohmann::json;

class Tune : public testing::Test {
 protected:
  void SetUp() override { bench.write_tiny_model(); }

  static std::string command(const std::string& flags) {
    return "tune --model tiny.json --machine hgx-h200-quad --store s.db --sequence-length 64 " +
           flags;
  }
  Outcome tune(const std::string& flags) const { return bench.run(command(flags)); }
  Json tuned(const std::string& flags) const {
    const Outcome outcome = tune(flags + " --json 2> /dev/null");
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return Json::parse(outcome.output);
  }
  // Exit code 2 and one line with each of the words.
  void refuses(const std::string& flags, const std::vector<std::string>& words) const {
    const Outcome outcome = tune(flags);
    EXPECT_EQ(outcome.code, 2) << flags << "\n" << outcome.output;
    EXPECT_EQ(outcome.lines(), 1) << outcome.output;
    for (const std::string& word : words) EXPECT_TRUE(outcome.says(word)) << outcome.output;
    EXPECT_FALSE(bench.exists("plan.json"));
    EXPECT_FALSE(bench.exists("s.db"));
  }

  Workbench bench;
};

}  // namespace ballast
