// Every #include of the sources against the tables "Folders, and who may include whom" of the
// design: who may use which folder of ours, which of the folders in it, and which libraries are
// used where alone.
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

// Folders whose folders are held apart too, by the second table of the design.
const std::set<std::string> kCutIntoFolders = {"sim/graph", "autotune", "backend", "cli"};

// A library's headers, and the sources (as the beginning of a path) that alone may include them.
struct Library {
  std::regex header;
  std::vector<std::string> users;
};
const std::vector<Library> kLibraries = {
    {std::regex("nlohmann/.*"), {"profiles/", "cli/"}},
    {std::regex("sqlite3\\.h"), {"profiles/store_sqlite.cpp"}},
    {std::regex("Eigen/.*"), {"autotune/calibrate", "backend/host/gemm/"}},
    {std::regex("CLI/.*"), {"cli/"}},
    {std::regex("hwloc\\.h"), {"kernels/threads.cpp"}},
    {std::regex("mpi\\.h"), {"backend/comm/mpi_ranks.cpp"}},
    {std::regex("liburing\\.h"), {"backend/disk/uring_queue.cpp"}},
    {std::regex("(cuda|cublas).*"), {"kernels/cuda/", "backend/cuda/"}},
    {std::regex("(immintrin|arm_sve|arm_neon|arm_bf16)\\.h"),
     {"kernels/avx2/", "kernels/avx512/", "kernels/sve/", "backend/host/gemm/"}},
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

// "sim/graph/core" of "sim/graph/core/link.cpp".
std::string subfolder_of(const std::string& path) {
  const size_t last = path.rfind('/');
  return last == std::string::npos ? "" : path.substr(0, last);
}

// The words in backquotes of a cell of a table.
std::vector<std::string> quoted(const std::string& cell) {
  std::vector<std::string> words;
  const std::regex word("`([^`]+)`");
  for (std::sregex_iterator at(cell.begin(), cell.end(), word), end; at != end; ++at) {
    words.push_back((*at)[1]);
  }
  return words;
}

// The rows of the tables of that section of the design that begin with a folder of ours: its name
// and the text behind it.
std::map<std::string, std::string> rows_of_the_design() {
  std::ifstream file(fs::path(BALLAST_SOURCE_DIR) / "docs/design.md");
  std::map<std::string, std::string> rows;
  const std::regex row("\\| `([^`]+)` \\|(.*)");
  bool inside = false;
  std::smatch match;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) inside = line == "## Folders, and who may include whom";
    if (inside && std::regex_match(line, match, row)) rows[match[1]] = match[2];
  }
  return rows;
}

TEST(Layering, table_of_the_design_names_the_folders_that_are_held_apart) {
  std::set<std::string> named;
  for (const auto& [folder, text] : rows_of_the_design()) named.insert(folder);
  std::set<std::string> expected;
  for (const auto& [folder, others] : kMayInclude) expected.insert(folder);
  // Of the folders that have folders, each of these.
  for (const Include& include : includes_of_the_sources()) {
    const std::string folder = subfolder_of(include.source);
    const std::string whole = folder_of(include.source);
    if (folder != whole && kCutIntoFolders.contains(whole)) expected.insert(folder);
  }
  EXPECT_EQ(named, expected);
}

TEST(Layering, folders_of_a_folder_include_those_that_the_design_names) {
  const std::map<std::string, std::string> rows = rows_of_the_design();
  std::map<std::string, std::set<std::string>> included;
  for (const Include& include : includes_of_the_sources()) {
    const std::string whole = folder_of(include.source);
    const std::string target = subfolder_of(include.header);
    const std::string from = subfolder_of(include.source);
    if (!kCutIntoFolders.contains(whole) || folder_of(include.header) != whole) continue;
    if (from == target || from == whole || target == whole) continue;
    included[from].insert(target.substr(whole.size() + 1));
  }
  int edges = 0;
  for (const auto& [from, targets] : included) {
    const auto row = rows.find(from);
    ASSERT_NE(row, rows.end()) << from << " has no row";
    const std::vector<std::string> words = quoted(row->second);
    const std::set<std::string> allowed(words.begin(), words.end());
    for (const std::string& target : targets) {
      EXPECT_TRUE(allowed.contains(target)) << from << " includes " << target;
      ++edges;
    }
    for (const std::string& one : allowed) {
      EXPECT_TRUE(targets.contains(one)) << from << " does not include " << one << ": stale";
    }
  }
  EXPECT_GT(edges, 20);  // else the search itself is broken
}

TEST(Layering, libraries_are_used_where_the_design_says_and_nowhere_else) {
  const std::vector<Include> includes = includes_of_the_sources();
  for (const Library& library : kLibraries) {
    std::set<std::string> used_by;
    for (const Include& include : includes) {
      if (!std::regex_match(include.header, library.header)) continue;
      bool allowed = false;
      for (const std::string& user : library.users) {
        if (!include.source.starts_with(user)) continue;
        allowed = true;
        used_by.insert(user);
      }
      EXPECT_TRUE(allowed) << include.source << " includes " << include.header;
    }
    for (const std::string& user : library.users) {
      EXPECT_TRUE(used_by.contains(user)) << user << " no longer needs its library: stale";
    }
  }
}

}  // namespace
