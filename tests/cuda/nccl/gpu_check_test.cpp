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

void write_script(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream file(path);
  file << "#!/bin/sh\n" << text;
  file.close();
  fs::permissions(path, fs::perms::owner_all);
}

// A program that prints these lines, and fails where it is to.
void write_program(const fs::path& path, const std::vector<std::string>& lines, int exit_code) {
  std::string text;
  for (const std::string& line : lines) text += "echo '" + line + "'\n";
  write_script(path, text + "exit " + std::to_string(exit_code) + "\n");
}

// How the step ends, and what it said, beside this many GPUs and a test_cuda that ends so.
struct Said {
  int exit_code = 0;
  std::string text;
};
Said run_step(int gpus, int test_exit_code, const std::string& mpirun = "") {
  const TemporaryFolder folder;
  const fs::path root = fs::path(folder / "x").parent_path();
  std::vector<std::string> listed;
  for (int i = 0; i < gpus; ++i) listed.push_back("GPU " + std::to_string(i) + ": pretended");
  write_program(root / "bin/nvidia-smi", listed, 0);
  write_program(root / "build/ballast", {}, 0);
  if (!mpirun.empty()) write_script(root / "bin/mpirun", mpirun);
  write_script(root / "build/test_cuda",
               "for word in \"$@\"; do case $word in --gtest_output=xml:*) echo '<testsuites "
               "tests=\"1\" failures=\"0\">' > \"${word#--gtest_output=xml:}\" ;; esac; done\n"
               "echo 'tests of NCCL ran'\nexit " +
                   std::to_string(test_exit_code) + "\n");
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

// What stands in for mpirun exports the words that decide the weights: how ranks split products,
// and, where it is told to err, where their optimizer's state is.
std::string mpirun_that_exports(const std::string& words) {
  return "kept=\nfor word in \"$@\"; do\n  case $word in " + words +
         ") kept=\"$kept $word\" ;; esac\n  last=$word\ndone\necho \"$kept\" > \"$last\"\n";
}

TEST(gpu_check, holds_the_weights_of_data_and_of_tensor_ranks_against_each_other) {
  const Said done = run_step(2, 0, mpirun_that_exports("plan.tensor*"));
  expect_has(done, "--set plan.data=2 --set plan.zero_stage=3");
  expect_has(done, "--set plan.tensor=2 --set plan.tensor_sequence=true");
  expect_has(done, "1 done, 0 failed, 0 skipped\n");
  EXPECT_EQ(done.exit_code, 0);
  const Said apart = run_step(2, 0, mpirun_that_exports("plan.tensor*|*placement=cpu"));
  expect_has(apart, "tensor ranks (norms by token: false) with state on the cpu differ");
  expect_has(apart, "FAILED: ranks\n");
  EXPECT_EQ(apart.exit_code, 1);
}

}  // namespace
}  // namespace ballast
