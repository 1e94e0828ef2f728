// What scripts/gpu-check.sh says of GPUs that are not there: the step `ranks` by itself, beside an
// nvidia-smi that lists as many as the test wants.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>
#include <string>
#include <vector>

#include "tests/backend/temporary_folder.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;

// A program that prints these lines, and fails where it is to.
void write_program(const fs::path& path, const std::vector<std::string>& lines, int exit_code) {
  fs::create_directories(path.parent_path());
  std::ofstream file(path);
  file << "#!/bin/sh\n";
  for (const std::string& line : lines) file << "echo '" << line << "'\n";
  file << "exit " << exit_code << "\n";
  file.close();
  fs::permissions(path, fs::perms::owner_all);
}

// How the step ends, and what it said, beside this many GPUs and a test_cuda that ends so.
struct Said {
  int exit_code = 0;
  std::string text;
};
Said run_step(int gpus, int test_exit_code) {
  const TemporaryFolder folder;
  const fs::path root = fs::path(folder / "x").parent_path();
  std::vector<std::string> listed;
  for (int i = 0; i < gpus; ++i) listed.push_back("GPU " + std::to_string(i) + ": pretended");
  write_program(root / "bin/nvidia-smi", listed, 0);
  write_program(root / "build/ballast", {}, 0);
  write_program(root / "build/test_cuda", {"tests of NCCL ran"}, test_exit_code);
  const std::string command = "PATH=" + (root / "bin").string() +
                              ":\"$PATH\" BALLAST_GPU_BUILD=" + (root / "build").string() +
                              " bash " BALLAST_SOURCE_DIR "/scripts/gpu-check.sh " +
                              (root / "out").string() + " --only ranks > " +
                              (root / "said").string() + " 2>&1";
  const int status = std::system(command.c_str());
  std::stringstream text;
  text << std::ifstream(root / "said").rdbuf();
  return {WEXITSTATUS(status), text.str()};
}

void expect_has(const Said& said, const std::string& part) {
  EXPECT_NE(said.text.find(part), std::string::npos) << said.text;
}

TEST(gpu_check, names_why_ranks_are_skipped) {
  const Said none = run_step(0, 0), one = run_step(1, 0);
  expect_has(none, "skipped: there is no GPU (nvidia-smi lists none)\n");
  expect_has(one, "skipped: fewer than two GPUs (nvidia-smi lists 1)\n");
  for (const Said* said : {&none, &one}) {
    EXPECT_EQ(said->exit_code, 0);
    expect_has(*said, "0 done, 0 failed, 1 skipped\n");
    EXPECT_EQ(said->text.find("tests of NCCL ran"), std::string::npos) << said->text;
  }
}

TEST(gpu_check, runs_ranks_on_two_gpus_and_fails_with_them) {
  const Said failed = run_step(2, 1);
  expect_has(failed, "--gtest_filter=several_gpus.*");
  expect_has(failed, "tests of NCCL ran");
  expect_has(failed, "FAILED: ranks\n");
  EXPECT_EQ(failed.exit_code, 1);
}

}  // namespace
}  // namespace ballast
