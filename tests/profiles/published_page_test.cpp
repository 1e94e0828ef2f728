// docs/published-cases.md has every key that a case may hold, and none that it may not.
#include <gtest/gtest.h>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "profiles/json_reader.h"
#include "profiles/published.h"
#include "tests/profiles/support.h"

namespace ballast {
namespace {

using Json = nlohmann::json;
using profile_tests::holds;

std::string text_of(const std::string& path) {
  return read_text_file(BALLAST_SOURCE_DIR "/" + path);
}

std::set<std::string> words_in(const std::string& text, const std::regex& pattern) {
  std::set<std::string> words;
  for (std::sregex_iterator at(text.begin(), text.end(), pattern), end; at != end; ++at) {
    words.insert((*at)[1]);
  }
  return words;
}

// By the heading above its table: the keys of its first column.
std::map<std::string, std::set<std::string>> keys_on_the_page() {
  static const std::regex key("`([a-z0-9_]+)`");
  std::map<std::string, std::set<std::string>> keys;
  std::string heading;
  std::istringstream page(text_of("docs/published-cases.md"));
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("## ")) heading = line.substr(3);
    if (line.starts_with("| `"))
      keys[heading].merge(words_in(line.substr(0, line.find('|', 1)), key));
  }
  return keys;
}

TEST(PublishedPage, has_every_key_that_is_read) {
  static const std::regex read(
      "(?:has|flag|copy|copy_to_optimizer|raw|whole|number|text|boolean|choice)\\(\"([a-z0-9_]+)"
      "\"");
  const auto keys = keys_on_the_page();
  std::set<std::string> known;
  for (const auto& [heading, of_heading] : keys) known.insert(of_heading.begin(), of_heading.end());
  for (const char* source : {"profiles/published_run.cpp", "profiles/published_measured.cpp"}) {
    const std::set<std::string> names = words_in(text_of(source), read);
    EXPECT_GE(names.size(), 3U) << source;
    for (const std::string& name : names)
      EXPECT_TRUE(known.contains(name)) << source << ": " << name;
  }
  for (int i = 0; i < kMetrics; ++i) {
    const std::string name(metric_name(static_cast<Metric>(i)));
    EXPECT_TRUE(keys.at("measured").contains(name)) << name;
  }
}

TEST(PublishedPage, has_every_key_of_a_shipped_case) {
  const auto keys = keys_on_the_page();
  for (const std::string& path : shipped_published()) {
    const Json file = Json::parse(read_text_file(path));
    for (const Json& one : file.at("cases")) {
      for (const auto& [part, known] : keys) {
        if (!one.at(part).is_object()) continue;
        for (const auto& item : one.at(part).items()) {
          EXPECT_TRUE(known.contains(item.key())) << path << ": " << part << ": " << item.key();
        }
      }
    }
  }
}

// A value that no key takes is refused as such; a key that nobody reads is refused as unknown.
TEST(PublishedPage, has_no_key_that_nobody_reads) {
  const Json good = Json::parse(R"({
    "id": "one", "machine": "hgx-a100-80gb", "stack": "deepspeed-2024",
    "model": {"architecture": "llama", "layers": 4, "hidden": 64, "heads": 4, "vocab": 1000,
              "experts": 8, "experts_per_token": 2, "expert_ffn": 64},
    "run": {"devices": 4, "sequence_length": 128, "global_batch": 16, "dtype": "bf16",
            "strategy": "zero-2", "recompute": "full"},
    "measured": {"step_time_s": 2.0}, "read": "text"})");
  const auto error_with = [&](const std::string& part, const std::string& key) {
    Json one = good;
    one[part][key] = Json::array({"nothing"});
    const Json file = {
        {"schema", "ballast.published/1"}, {"title", "t"}, {"source", "s"}, {"cases", {one}}};
    return parse_published(file.dump(), "f.json").entries.at(0).error;
  };
  for (const auto& [part, known] : keys_on_the_page()) {
    ASSERT_TRUE(good.contains(part)) << part;
    EXPECT_TRUE(holds(error_with(part, "no_such_key"), "is unknown"));
    for (const std::string& key : known) {
      const std::string error = error_with(part, key);
      EXPECT_EQ(error.find("is unknown"), std::string::npos) << error;
    }
  }
}

}  // namespace
}  // namespace ballast
