// Every #include of the sources against the table "Folders, and who may include whom" of the
// design: who may use which folder of ours, and which libraries are used where alone.
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

const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"sim/base", {}},
    {"sim/spec", {"sim/base"}},
    {"sim/graph", {"sim/base", "sim/spec"}},
    {"sim/engine", {"sim/base", "sim/spec", "sim/graph"}},
    {"profiles", {"sim/base", "sim/spec", "sim/graph", "sim/engine"}},
    {"autotune", {"sim/base", "sim/spec", "sim/graph", "sim/engine", "profiles"}},
    {"kernels", {}},
    {"backend", {"sim/base", "sim/spec", "sim/graph", "kernels"}},
    {"cli",
     {"sim/base", "sim/spec", "sim/graph", "sim/engine", "profiles", "autotune", "kernels",
      "backend"}},
};

// A library's headers, and the sources (as the beginning of a path) that alone may include them.
struct Library {
  std::regex header;
  std::vector<std::string> users;
};
const std::vector<Library> kLibraries = {
    {std::regex("nlohmann/.*"), {"profiles/", "cli/"}},
    {std::regex("sqlite3\\.h"), {"profiles/store_sqlite.cpp"}},
    {std::regex("Eigen/.*"), {"autotune/calibrate/", "backend/host/gemm/"}},
    {std::regex("CLI/.*"), {"cli/"}},
    {std::regex("hwloc\\.h"), {"kernels/threads.cpp"}},
    {std::regex("(cuda|cublas|nccl).*"), {"kernels/cuda/", "backend/cuda/"}},
    {std::regex("(immintrin|arm_sve|arm_neon|arm_bf16)\\.h"),
     {"kernels/avx2/", "kernels/avx512/", "kernels/sve/"}},
};

// "sim/graph" of "sim/graph/core/link.cpp", "kernels" of "kernels/avx2/avx2.cpp".
std::string folder_of(const std::string& path) {
  const size_t first = path.find('/');
  if (first == std::string::npos) return "";
  if (path.substr(0, first) != "sim") return path.substr(0, first);
  return path.substr(0, path.find('/', first + 1));
}

struct Include {
  std::string source;  // relative to the root
  std::string header;
};

std::vector<Include> includes_of_the_sources() {
  const fs::path root = BALLAST_SOURCE_DIR;
  const std::regex line_form("^\\s*#\\s*include\\s*[<\"]([^>\"]+)[>\"].*");
  std::vector<Include> includes;
  for (const std::string folder : {"sim", "profiles", "autotune", "kernels", "backend", "cli"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".h" && extension != ".cpp" && extension != ".cu") continue;
      std::ifstream file(entry.path());
      std::smatch match;
      for (std::string line; std::getline(file, line);) {
        if (!std::regex_match(line, match, line_form)) continue;
        includes.push_back({entry.path().lexically_relative(root).string(), match[1]});
      }
    }
  }
  return includes;
}

TEST(Layering, no_folder_includes_one_that_the_design_keeps_from_it) {
  int of_ours = 0;
  for (const Include& include : includes_of_the_sources()) {
    const std::string target = folder_of(include.header);
    if (!kMayInclude.contains(target)) continue;
    ++of_ours;
    const std::string from = folder_of(include.source);
    ASSERT_TRUE(kMayInclude.contains(from)) << include.source;
    EXPECT_TRUE(from == target || kMayInclude.at(from).contains(target))
        << include.source << " includes " << include.header;
  }
  EXPECT_GT(of_ours, 100);  // else the search itself is broken
}

TEST(Layering, libraries_are_used_where_the_design_says_and_nowhere_else) {
  std::set<std::string> needed;
  for (const Include& include : includes_of_the_sources()) {
    for (const Library& library : kLibraries) {
      if (!std::regex_match(include.header, library.header)) continue;
      bool allowed = false;
      for (const std::string& user : library.users) {
        if (!include.source.starts_with(user)) continue;
        allowed = true;
        needed.insert(user);
      }
      EXPECT_TRUE(allowed) << include.source << " includes " << include.header;
    }
  }
  // What is allowed and no longer done is a line to take out, or a folder that has moved.
  for (const Library& library : kLibraries) {
    for (const std::string& user : library.users) EXPECT_TRUE(needed.contains(user)) << user;
  }
}

}  // namespace
