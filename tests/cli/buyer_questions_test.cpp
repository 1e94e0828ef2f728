// The questions of tests/data/buyer_questions.json, whose verdicts and orders were written down
// from what the memories add up to and from what is published, before anything was predicted. One
// expectation was corrected since: no CPU memory helps a model whose gradients add up on the GPU.
#include <algorithm>
#include <fstream>
#include <gtest/gtest.h>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/support.h"

namespace ballast {
namespace {

using Json = nlohmann::json;

Json questions() {
  std::ifstream file(BALLAST_SOURCE_DIR "/tests/data/buyer_questions.json");
  return Json::parse(file).at("questions");
}

// Lower is better; what does not fit comes last.
double worth_of(const Json& answer, const Json& cell) {
  if (!cell.at("fits").get<bool>()) return std::numeric_limits<double>::max();
  if (answer.at("metric") == "cost_per_token") return cell.at("cost_per_million_tokens");
  return -cell.at("tokens_per_s").get<double>();
}

// The columns of a comparison of one row, best first.
std::vector<std::string> order_of(const Json& answer) {
  std::vector<Json> cells = answer.at("cells");
  std::stable_sort(cells.begin(), cells.end(), [&](const Json& one, const Json& other) {
    return worth_of(answer, one) < worth_of(answer, other);
  });
  std::vector<std::string> names;
  for (const Json& cell : cells) {
    for (const Json& axis : answer.at("columns")) {
      if (axis.at("values").size() > 1) names.push_back(cell.at("at").at(axis.at("name")));
    }
  }
  return names;
}

bool has_least_change(const Json& answer, const std::string& limit) {
  const Json& changes = answer.at("least_changes");
  return std::any_of(changes.begin(), changes.end(), [&](const Json& change) {
    return change.at("limit") == limit && !change.at("fits").is_null();
  });
}

void expect_answer(const Json& expect, const Outcome& outcome) {
  const Json answer = Json::parse(outcome.output, nullptr, false);
  ASSERT_FALSE(answer.is_discarded()) << outcome.output;
  if (expect.contains("order")) {
    EXPECT_EQ(order_of(answer), expect.at("order").get<std::vector<std::string>>());
    return;
  }
  if (expect.contains("cases")) {
    ASSERT_EQ(answer.at("cases").size(), expect.at("cases").size());
    for (size_t i = 0; i < expect.at("cases").size(); ++i) {
      const Json& fits = answer.at("cases")[i].at("fits");
      EXPECT_EQ(fits.is_boolean() && fits.get<bool>(), expect.at("cases")[i].get<bool>()) << i;
    }
    return;
  }
  EXPECT_EQ(outcome.code, expect.at("fits").get<bool>() ? 0 : 1);
  for (const Json& limit : expect.value("least", Json::array())) {
    EXPECT_TRUE(has_least_change(answer, limit)) << limit;
  }
  if (expect.contains("notes")) EXPECT_FALSE(answer.at("notes").empty());
  if (expect.contains("limits")) EXPECT_FALSE(answer.at("bottlenecks").at("rates").empty());
}

TEST(BuyerQuestions, have_the_verdicts_and_orders_that_they_should) {
  const Workbench bench;
  for (const Json& question : questions()) {
    const std::string command = question.at("command");
    SCOPED_TRACE(command);
    if (question.contains("before")) {
      EXPECT_EQ(bench.run(question.at("before")).code, 0);
    }
    const Json& expect = question.at("expect");
    if (expect.contains("exit")) {
      const Outcome outcome = bench.run(command);
      EXPECT_EQ(outcome.code, expect.at("exit").get<int>());
      EXPECT_TRUE(outcome.says(expect.at("says"))) << outcome.output;
      continue;
    }
    expect_answer(expect, bench.run(command + " --json --store store.db 2> /dev/null"));
  }
}

// The page says every question.
TEST(BuyerQuestions, stand_on_their_page) {
  std::ifstream file(BALLAST_SOURCE_DIR "/docs/buyers.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  ASSERT_GE(questions().size(), 30u);
  for (const Json& question : questions()) {
    EXPECT_NE(page.find(question.at("ask").get<std::string>()), std::string::npos)
        << question.at("ask") << ": run scripts/buyer_questions.sh";
    EXPECT_NE(page.find(question.at("command").get<std::string>()), std::string::npos)
        << question.at("command");
  }
}

}  // namespace
}  // namespace ballast
