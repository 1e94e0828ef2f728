// `ballast profile` on the command line: what it refuses, before anything is measured or written.
#include <gtest/gtest.h>

#include "cli/flags/inputs.h"
#include "tests/cli/support.h"

namespace ballast {
namespace {

// Exit code 2 and one line with each of the words; no store is made.
void expect_refusal(const std::string& arguments, const std::vector<std::string>& words) {
  const Workbench bench;
  const Outcome outcome = bench.run("profile --store new.db --out machine.json " + arguments);
  EXPECT_EQ(outcome.code, 2) << outcome.output;
  EXPECT_EQ(outcome.lines(), 1) << outcome.output;
  EXPECT_TRUE(outcome.output.starts_with("ballast: ")) << outcome.output;
  for (const std::string& word : words) EXPECT_TRUE(outcome.says(word)) << outcome.output;
  EXPECT_FALSE(bench.exists("new.db"));
  EXPECT_FALSE(bench.exists("machine.json"));
}

TEST(ProfileVerb, gpu_that_is_not_there_is_named_in_one_line) {
  expect_refusal("--device cuda:63", {"no CUDA device: ", "--device host"});  // none has so many
}

TEST(ProfileVerb, device_that_is_none_is_refused) {
  expect_refusal("--device gpu", {"--device gpu", "cuda:0"});
  expect_refusal("--device cuda:x", {"--device cuda:x"});
}

TEST(ProfileVerb, memory_of_a_gpu_is_not_shared_out) {
  expect_refusal("--device cuda:63 --gpu-memory-share 0.5", {"--gpu-memory-share", "leave it out"});
}

TEST(ProfileVerb, compute_threads_are_at_least_one_and_at_most_the_cores) {
  expect_refusal("--quick --compute-threads 0", {"--compute-threads"});
  expect_refusal("--quick --compute-threads -1", {"--compute-threads"});
  expect_refusal("--quick --compute-threads 100000",
                 {"--compute-threads", "100000 threads on", "usable cores"});
  expect_refusal("--device cuda:63 --compute-threads 2", {"--compute-threads", "leave it out"});
}

TEST(ProfileVerb, ranks_are_at_least_two_and_of_the_host) {
  expect_refusal("--quick --ranks 1", {"--ranks", "one rank exchanges nothing"});
  expect_refusal("--quick --ranks 2 --device cuda:63", {"--ranks", "host"});
}

// What threads exchange is kept for the machine, and a plan of as many ranks is predicted from it.
TEST(ProfileVerb, what_ranks_exchange_is_timed_and_kept) {
  const Workbench bench;
  bench.write_store();
  const Outcome outcome = bench.run("profile --ranks 2 --quick --store here.db");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  for (const char* word : {"all-reduce", "reduce-scatter", "all-gather", "2 threads", "262144"}) {
    EXPECT_TRUE(outcome.says(word)) << word << '\n' << outcome.output;
  }
  const Store store(bench.path("here.db"), {"test", ""});
  int kept = 0;
  for (const auto& [key, time] :
       store.measurements(host_of(load_machine_or_here(kHere, {.path = bench.path("here.db")})))) {
    kept += key.find("ranks=2") != std::string::npos ? 1 : 0;
    EXPECT_GT(time.median.ps, 0) << key;
  }
  EXPECT_GE(kept, 12);
}

}  // namespace
}  // namespace ballast
