// What a reader may count on in every file of ours: short lines, functions and files that can be
// read in one sitting, folders that can be surveyed, headers that begin with what they are for,
// pages that name what exists, and nothing left undone.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

constexpr size_t kLongestLine = 100;
constexpr size_t kMostLines = 600;
constexpr size_t kLongestFunction = 60;
constexpr int kMostSourcesInAFolder = 25;

struct Source {
  std::string path;  // relative to the root
  std::vector<std::string> lines;
};

std::vector<Source> sources() {
  const fs::path root = BALLAST_SOURCE_DIR;
  std::vector<Source> found;
  for (const std::string folder :
       {"sim", "profiles", "autotune", "kernels", "backend", "cli", "tests", "bench", "scripts"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      static const std::regex kinds(".*\\.(h|cpp|cu|cuh|sh|py|css|js)");
      const std::string path = entry.path().lexically_relative(root).string();
      if (!entry.is_regular_file() || !std::regex_match(path, kinds)) continue;
      Source source{path, {}};
      std::ifstream file(entry.path());
      for (std::string line; std::getline(file, line);) source.lines.push_back(line);
      found.push_back(std::move(source));
    }
  }
  return found;
}

// Characters, not bytes: continuation bytes of UTF-8 take no column.
size_t columns(const std::string& line) {
  size_t count = 0;
  for (const char c : line) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

TEST(Tidy, no_line_is_longer_than_100_columns) {
  for (const Source& source : sources()) {
    for (size_t i = 0; i < source.lines.size(); ++i) {
      EXPECT_LE(columns(source.lines[i]), kLongestLine) << source.path << ":" << i + 1;
    }
  }
}

TEST(Tidy, no_file_is_longer_than_600_lines) {
  for (const Source& source : sources()) {
    EXPECT_LE(source.lines.size(), kMostLines) << source.path;
  }
}

// A function, as clang-format leaves it: its head begins at indent 0 (or 2, in a class), a line of
// it ends in "{", and its body ends with "}" at the indent of the head.
struct Function {
  size_t first = 0;  // lines of the file
  size_t last = 0;
};

size_t indent_of(const std::string& line) {
  return std::min(line.find_first_not_of(' '), line.size());
}

// Types, namespaces and statements have bodies too, and so have initial values, which stand behind
// a
// "=" before any parameter.
bool may_begin_function(const std::string& line) {
  static const std::regex others(
      " *((namespace|class|struct|enum|union|if|else|for|while|do|switch|case|return)\\b|[}#/"
      ":]).*");
  if (indent_of(line) != 0 && indent_of(line) != 2) return false;
  if (std::regex_match(line, others)) return false;
  const size_t parameters = line.find('(');
  return parameters != std::string::npos && parameters < line.find(" = ");
}

std::vector<Function> functions_of(const Source& source) {
  std::vector<Function> found;
  const auto& lines = source.lines;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!may_begin_function(lines[i])) continue;
    size_t open = i;
    while (open < lines.size() && !lines[open].ends_with("{") && !lines[open].ends_with(";") &&
           !lines[open].ends_with("}") && !lines[open].empty()) {
      ++open;
    }
    if (open == lines.size() || !lines[open].ends_with("{")) continue;
    const std::string end = std::string(indent_of(lines[i]), ' ') + "}";
    size_t last = open + 1;
    while (last < lines.size() && !lines[last].starts_with(end)) ++last;
    found.push_back({i, last});
    i = last;  // what stands in a function is part of it
  }
  return found;
}

bool is_code(const std::string& path) {
  static const std::regex kinds(".*\\.(h|cpp|cu|cuh)");
  return std::regex_match(path, kinds);
}

TEST(Tidy, no_function_is_longer_than_60_lines) {
  size_t functions = 0;
  for (const Source& source : sources()) {
    if (!is_code(source.path)) continue;
    const std::vector<Function> found = functions_of(source);
    functions += found.size();
    for (const Function& function : found) {
      EXPECT_LE(function.last - function.first + 1, kLongestFunction)
          << source.path << ":" << function.first + 1 << ": " << source.lines[function.first];
    }
  }
  EXPECT_GT(functions, 3000u);  // else they are no longer found
}

// Tests mirror the folders above them, so that theirs is another measure.
TEST(Tidy, no_folder_holds_more_than_25_sources) {
  std::map<std::string, int> count;
  for (const Source& source : sources()) {
    if (!source.path.starts_with("tests/")) ++count[fs::path(source.path).parent_path().string()];
  }
  EXPECT_GT(count.size(), 20u);
  for (const auto& [folder, sources_in_it] : count) {
    EXPECT_LE(sources_in_it, kMostSourcesInAFolder) << folder;
  }
}

// Not as a part of a longer word.
bool has_word(const std::string& line, const std::string& word) {
  const auto goes_on = [&](size_t at) {
    return at < line.size() &&
           (std::isalnum(static_cast<unsigned char>(line[at])) != 0 || line[at] == '_');
  };
  for (size_t at = line.find(word); at != std::string::npos; at = line.find(word, at + 1)) {
    if (!(at > 0 && goes_on(at - 1)) && !goes_on(at + word.size())) return true;
  }
  return false;
}

TEST(Tidy, nothing_is_left_for_later) {
  // Written apart, so that this file passes its own test.
  const std::string undone[] = {
      "TO"
      "DO",
      "FIX"
      "ME",
      "XX"
      "X",
      "HA"
      "CK"};
  EXPECT_TRUE(has_word("x " + undone[0] + ": y", undone[0]));
  EXPECT_FALSE(has_word("x" + undone[0] + ": y", undone[0]));
  for (const Source& source : sources()) {
    for (size_t i = 0; i < source.lines.size(); ++i) {
      for (const std::string& word : undone) {
        EXPECT_FALSE(has_word(source.lines[i], word)) << source.path << ":" << i + 1;
      }
    }
  }
}

// Where standard error cannot be written it throws.
TEST(Tidy, nothing_but_print_to_stderr_prints_there) {
  const std::string throwing =
      "print("
      "stderr";
  for (const Source& source : sources()) {
    if (source.path.starts_with("bench/") || source.path.starts_with("tests/")) continue;
    for (size_t i = 0; i < source.lines.size(); ++i) {
      EXPECT_EQ(source.lines[i].find(throwing), std::string::npos) << source.path << ":" << i + 1;
    }
  }
}

TEST(Tidy, every_header_begins_with_what_it_is_for) {
  int headers = 0;
  for (const Source& source : sources()) {
    if (!source.path.ends_with(".h")) continue;
    ++headers;
    ASSERT_FALSE(source.lines.empty()) << source.path;
    EXPECT_TRUE(source.lines[0].starts_with("// ")) << source.path;
  }
  EXPECT_GT(headers, 30);
}

// Under pipefail a pipe into a command that ends before its input does is now and then a failure:
// whoever writes is told that nobody reads.
TEST(Tidy, no_script_under_pipefail_pipes_into_what_ends_early) {
  const std::regex ends_early("[|] *(grep +(-[a-zA-Z]+ +)*-[a-zA-Z]*[qm]|head\\b)");
  int scripts = 0;
  for (const Source& source : sources()) {
    const bool fails = std::any_of(source.lines.begin(), source.lines.end(), [](const auto& line) {
      return line.starts_with("set -") && line.ends_with("pipefail");
    });
    if (!fails) continue;
    ++scripts;
    for (size_t i = 0; i < source.lines.size(); ++i) {
      EXPECT_FALSE(std::regex_search(source.lines[i], ends_early)) << source.path << ":" << i + 1;
    }
  }
  EXPECT_GE(scripts, 6);
}

TEST(Tidy, every_script_that_the_readme_names_exists_and_can_be_run) {
  const fs::path root = BALLAST_SOURCE_DIR;
  std::ifstream readme(root / "README.md");
  ASSERT_TRUE(readme) << "there is no README.md";
  int scripts = 0;
  const std::regex script("scripts/[a-z_0-9]+\\.(sh|py)");
  for (std::string line; std::getline(readme, line);) {
    for (std::sregex_iterator at(line.begin(), line.end(), script), end; at != end; ++at) {
      ++scripts;
      const fs::path path = root / at->str();
      ASSERT_TRUE(fs::exists(path)) << path;
      const bool runs = (fs::status(path).permissions() & fs::perms::owner_exec) != fs::perms::none;
      EXPECT_TRUE(runs || path.extension() == ".py") << path;
    }
  }
  EXPECT_GE(scripts, 2);
}

// The pages that a reader begins with.
std::vector<fs::path> pages() {
  const fs::path root = BALLAST_SOURCE_DIR;
  std::vector<fs::path> found = {root / "README.md"};
  for (const auto& entry : fs::recursive_directory_iterator(root / "docs")) {
    if (entry.path().extension() == ".md") found.push_back(entry.path());
  }
  for (const auto& entry : fs::recursive_directory_iterator(root / "bench")) {
    if (entry.path().extension() == ".md") found.push_back(entry.path());
  }
  return found;
}

// Whether a word of a page names a file or folder of ours: by its path, or a source by its name.
bool names_a_file(const std::string& word) {
  static const std::regex path(
      "(sim|profiles|autotune|kernels|backend|cli|tests|bench|scripts|docs)/[A-Za-z0-9_./-]*");
  static const std::regex name("[a-z_0-9]+\\.(h|cpp|cu|cuh|sh|py)");
  return std::regex_match(word, path) || std::regex_match(word, name);
}

TEST(Tidy, every_file_that_a_page_names_exists) {
  const fs::path root = BALLAST_SOURCE_DIR;
  std::set<std::string> names;
  for (const Source& source : sources()) names.insert(fs::path(source.path).filename());
  // Files of CUDA, Megatron-LM and DeepSpeed.
  names.insert({"cuda_runtime_api.h", "pretrain_gpt.py", "superoffload_stage3.py"});
  int named = 0;
  const std::regex words("[A-Za-z0-9_./{}*,-]*[A-Za-z0-9_/]");
  for (const fs::path& page : pages()) {
    std::ifstream file(page);
    size_t number = 0;
    for (std::string line; std::getline(file, line);) {
      ++number;
      for (std::sregex_iterator at(line.begin(), line.end(), words), end; at != end; ++at) {
        const std::string word = at->str();
        // NAME stands for one that a reader gives.
        if (!names_a_file(word) || word.find("NAME") != std::string::npos) continue;
        ++named;
        // A pair of header and source may be named by what they share.
        const bool exists = fs::exists(root / word) || fs::exists(root / (word + ".h")) ||
                            fs::exists(root / (word + ".cpp")) || names.contains(word);
        EXPECT_TRUE(exists) << page.lexically_relative(root).string() << ":" << number << ": "
                            << word;
      }
    }
  }
  EXPECT_GT(named, 100);
}

}  // namespace
