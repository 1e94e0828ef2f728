// Faults of files and disks around a training run: what cannot be written ends it before its first
// step, what breaks on the way costs neither a checkpoint nor what was there.
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/flags/weights_folder.h"
#include "profiles/load.h"
#include "tests/backend/temporary_folder.h"
#include "tests/cli/support.h"

namespace ballast {
namespace {

class Faults : public testing::Test {
 protected:
  Faults() {
    bench.write_tiny_model();
    bench.write_store();
    std::string text;
    for (int i = 0; i < 400; ++i) text += "the quick brown fox " + std::to_string(i * i) + "\n";
    bench.write("text.txt", text);
  }

  static std::string line(const std::string& flags) {
    return "train --model tiny.json --store here.db --sequence-length 16 --global-batch 2 "
           "--data text.txt " +
           flags;
  }
  Outcome train(const std::string& flags) const { return bench.run(line(flags)); }
  void expect_refusal(const std::string& flags, const std::vector<std::string>& parts) const {
    const Outcome outcome = train(flags);
    EXPECT_EQ(outcome.code, 2) << flags << '\n' << outcome.output;
    EXPECT_EQ(outcome.lines(), 1) << flags << '\n' << outcome.output;
    for (const std::string& part : parts) EXPECT_TRUE(outcome.says(part)) << outcome.output;
  }
  void flip_last_byte(const std::string& name) const {
    std::string content = bench.read(name);
    content[content.size() - 1] = static_cast<char>(content.back() ^ 0x40);
    bench.write(name, content);
  }
  // The "step" of each line of metrics.
  std::vector<int> steps_of(const std::string& name) const {
    std::istringstream lines(bench.read(name));
    std::vector<int> steps;
    for (std::string text; std::getline(lines, text);) {
      steps.push_back(nlohmann::json::parse(text)["step"].get<int>());
    }
    return steps;
  }

  Workbench bench;
};

std::vector<int> first(int count) {
  std::vector<int> steps(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) steps[static_cast<size_t>(i)] = i;
  return steps;
}

TEST_F(Faults, a_damaged_checkpoint_gives_way_to_the_one_before_in_one_line) {
  ASSERT_EQ(train("--steps 8 --checkpoint kept --checkpoint-period 4").code, 0);
  flip_last_byte("kept/step-00000008.safetensors");
  const Outcome resumed = train("--steps 8 --checkpoint kept --resume");
  EXPECT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_TRUE(resumed.says("note: training goes on from kept/step-00000004.safetensors"))
      << resumed.output;
  EXPECT_TRUE(resumed.says("steps 4 to 8")) << resumed.output;
  EXPECT_TRUE(bench.exists("kept/step-00000008.safetensors.damaged"));
  EXPECT_EQ(train("--steps 8 --checkpoint kept --resume").output.find("note:"), std::string::npos);
}

TEST_F(Faults, without_a_whole_checkpoint_a_run_is_refused_and_nothing_removed) {
  ASSERT_EQ(train("--steps 8 --checkpoint kept --checkpoint-period 4").code, 0);
  for (const char* name : {"kept/step-00000004.safetensors", "kept/step-00000008.safetensors"}) {
    flip_last_byte(name);
  }
  expect_refusal("--steps 9 --checkpoint kept --resume",
                 {"no checkpoint in kept is whole", "step-00000008.safetensors:", "checksum",
                  "nothing was removed"});
  EXPECT_TRUE(bench.exists("kept/step-00000004.safetensors"));
  EXPECT_TRUE(bench.exists("kept/step-00000008.safetensors"));
}

TEST_F(Faults, exported_weights_that_changed_are_not_imported) {
  ASSERT_EQ(train("--steps 1 --export w.safetensors").code, 0);
  flip_last_byte("w.safetensors");
  expect_refusal("--steps 1 --import w.safetensors", {"w.safetensors:", "checksum"});
}

TEST_F(Faults, what_cannot_be_written_ends_a_run_before_its_first_step) {
  const std::string many = "--steps 1000000000 ";  // never ends but by the refusal
  bench.write("file", "");
  expect_refusal(many + "--checkpoint file", {"--checkpoint file", "Not a directory"});
  expect_refusal(many + "--checkpoint /dev/null", {"--checkpoint /dev/null"});
  expect_refusal(many + "--metrics /dev/full", {"/dev/full", "No space left on device"});
  expect_refusal(many + "--export /dev/full", {"/dev/full", "No space left on device"});
  expect_refusal(many + "--export file/weights", {"file/weights"});
  expect_refusal(many + "--metrics ''", {"--metrics", "names no file"});
  // A search would have left its plan's record in the store.
  const Outcome tune =
      bench.run("tune --model gpt2 --machine gh200-96gb-480gb --store s.db --out /dev/full");
  EXPECT_EQ(tune.code, 2) << tune.output;
  EXPECT_TRUE(tune.says("/dev/full: cannot be written: No space left on device")) << tune.output;
  EXPECT_FALSE(bench.exists("s.db"));
}

TEST_F(Faults, an_unwritable_standard_error_costs_no_step_and_no_checkpoint) {
  for (const char* const where : {"2> /dev/full", "2>&-"}) {
    const Outcome outcome = bench.shell(
        "$BALLAST " + line("--steps 30 --checkpoint kept --export w.safetensors ") + where);
    EXPECT_EQ(outcome.code, 0) << where << outcome.output;
    EXPECT_TRUE(bench.exists("kept/step-00000030.safetensors")) << where;
    EXPECT_TRUE(bench.exists("w.safetensors")) << where;
    EXPECT_EQ(train("--steps 31 --checkpoint kept --resume").code, 0) << where;
    EXPECT_EQ(bench.shell(std::string("rm -r kept; $BALLAST predict --model nope ") + where).code,
              2);
  }
}

TEST_F(Faults, a_reader_that_goes_away_costs_no_step_and_no_checkpoint) {
  bench.shell("{ $BALLAST " + line("--steps 30 --checkpoint kept") +
              " 2>&1; echo $? > code; } | head -n 1");
  EXPECT_TRUE(bench.exists("kept/step-00000030.safetensors"));
  EXPECT_EQ(bench.read("code"), "2\n");  // the result was not told
}

// No disk of this test has room for 100 TB.
TEST_F(Faults, weights_that_the_disk_has_no_room_for_are_refused_before_they_are_there) {
  Model model = load_model("gpt-1t");
  model.layers = 4'096;
  const std::string message =
      error_of([&] { export_target(bench.path("w.safetensors"), "gpt-1t", model, {}); });
  EXPECT_TRUE(mentions(message, "No space left on device: the weights take ")) << message;
}

// A limit of four KiB on file sizes: a store takes more, and the journal of a page of it.
TEST_F(Faults, a_store_that_cannot_grow_ends_what_takes_long_before_it_begins) {
  for (const char* verb :
       {"tune --model gpt2 --machine gh200-96gb-480gb", "verify --model tiny.json", "profile"}) {
    const Outcome outcome =
        bench.shell(std::string("ulimit -f 8; $BALLAST ") + verb + " --store new.db --json");
    EXPECT_EQ(outcome.code, 2) << verb << outcome.output;
    EXPECT_TRUE(outcome.says("new.db: the disk failed")) << verb << outcome.output;
    EXPECT_FALSE(outcome.says("\"schema\"")) << verb << ": there is an answer";
    const Outcome there =
        bench.shell(std::string("ulimit -f 8; $BALLAST ") + verb + " --store here.db --json");
    EXPECT_EQ(there.code, 2) << verb << there.output;
    EXPECT_TRUE(there.says("here.db: the disk failed")) << verb << there.output;
    EXPECT_FALSE(there.says("\"schema\"")) << verb << ": there is an answer";
  }
}

// A limit on file sizes fails writes as a full disk does. In dash and bash's sh it counts blocks of
// 512 bytes: 1,024 of them are less than the metrics grow to, and more than a checkpoint takes.
TEST_F(Faults, metrics_that_cannot_be_written_cost_no_checkpoint) {
  ASSERT_EQ(train("--steps 2 --checkpoint kept --metrics m.jsonl").code, 0);
  const std::string filler(1024 * 512 - 6000, 'x');
  const std::string full = "{\"step\": 0, \"x\": \"" + filler + "\"}\n{\"step\": 1}\n";
  bench.write("m.jsonl", full);
  const Outcome outcome = bench.shell(
      "ulimit -f 1024; $BALLAST " +
      line("--steps 60 --checkpoint kept --resume --metrics m.jsonl --export w.safetensors"));
  EXPECT_EQ(outcome.code, 2) << outcome.output;
  EXPECT_TRUE(outcome.says("note: --metrics m.jsonl cannot be written from step "))
      << outcome.output;
  EXPECT_TRUE(outcome.says("File too large; training goes on")) << outcome.output;
  EXPECT_TRUE(outcome.says("steps 2 to 60")) << outcome.output;
  EXPECT_TRUE(outcome.says("on are missing")) << outcome.output;
  EXPECT_TRUE(bench.exists("kept/step-00000060.safetensors"));
  EXPECT_TRUE(bench.exists("w.safetensors"));
  const std::vector<int> steps = steps_of("m.jsonl");  // only whole lines
  EXPECT_EQ(steps, first(static_cast<int>(steps.size())));
  EXPECT_LT(steps.size(), 60u);
}

TEST_F(Faults, a_reader_of_metrics_that_goes_away_costs_no_checkpoint) {
  const std::string run = line("--steps 3000 --checkpoint kept --metrics pipe");
  const Outcome outcome =
      bench.shell("mkfifo pipe; timeout 60 head -n 1 pipe > /dev/null & $BALLAST " + run);
  EXPECT_TRUE(outcome.says("steps 0 to 3000")) << outcome.output;
  EXPECT_TRUE(outcome.says("Broken pipe")) << outcome.output;
  EXPECT_TRUE(bench.exists("kept/step-00003000.safetensors"));
}

TEST_F(Faults, metrics_of_a_resumed_run_have_every_step_once) {
  ASSERT_EQ(train("--steps 6 --checkpoint kept --metrics m.jsonl").code, 0);
  EXPECT_EQ(steps_of("m.jsonl"), first(6));
  // As a kill leaves them: steps that no checkpoint has, and a half line.
  bench.write("m.jsonl", bench.read("m.jsonl") + "{\"step\": 6}\n{\"step\": 7}\n{\"st");
  ASSERT_EQ(train("--steps 9 --checkpoint kept --resume --metrics m.jsonl").code, 0);
  EXPECT_EQ(steps_of("m.jsonl"), first(9));
  bench.write("diary.txt", "Monday\n");
  expect_refusal("--steps 9 --checkpoint kept --resume --metrics diary.txt",
                 {"--metrics diary.txt, line 1", "no line of metrics"});
  EXPECT_EQ(bench.read("diary.txt"), "Monday\n");
}

TEST_F(Faults, files_that_are_something_else_are_not_written_over) {
  bench.write("diary.txt", "Monday\n");
  expect_refusal("--steps 1 --metrics diary.txt", {"--metrics diary.txt", "something else"});
  expect_refusal("--steps 1 --export diary.txt", {"--export diary.txt", "FILE.safetensors"});
  EXPECT_EQ(bench.read("diary.txt"), "Monday\n");
  const std::string replaces = "note: --metrics m.jsonl replaces the metrics of an earlier run";
  EXPECT_FALSE(train("--steps 3 --metrics m.jsonl").says(replaces));
  for (const char* const flags : {"", "--checkpoint kept --resume "}) {
    const Outcome again = train(std::string(flags) + "--steps 1 --metrics m.jsonl");
    EXPECT_EQ(again.code, 0) << again.output;
    EXPECT_TRUE(again.says(replaces)) << flags << again.output;
    EXPECT_EQ(std::ranges::count(bench.read("m.jsonl"), '\n'), 1) << flags;
  }
}

TEST_F(Faults, unfinished_copies_of_dead_processes_are_swept) {
  bench.shell("mkdir kept");
  const std::vector<std::string> ours = {"kept/step-00000007.safetensors.part-77-0",
                                         "w.safetensors.part-77-0", "p.json.part-1-3"};
  const std::vector<std::string> others = {"kept/notes.part-77-0", "x.safetensors.part-77-0"};
  for (const std::string& name : ours) bench.write(name, "half");
  for (const std::string& name : others) bench.write(name, "half");
  ASSERT_EQ(train("--steps 1 --checkpoint kept --export w.safetensors").code, 0);
  ASSERT_EQ(bench.run("predict --model gpt2 --machine gh200-96gb-480gb --out p.json").code, 0);
  for (const std::string& name : ours) EXPECT_FALSE(bench.exists(name)) << name;
  for (const std::string& name : others) EXPECT_TRUE(bench.exists(name)) << name;
}

// Each fault at each kind of call, at its first and a later time, for good from there on: one line
// with its own name where it ends the run, and what was kept before is resumed.
TEST_F(Faults, are_told_by_their_own_names_and_cost_no_checkpoint) {
  const std::string shim = BALLAST_BINARY_DIR "/libfault_shim.so";
  ASSERT_TRUE(std::filesystem::exists(shim)) << "every build that runs this makes it";
  const std::vector<std::pair<int, const char*>> faults = {{EIO, "Input/output error"},
                                                           {EROFS, "Read-only file system"},
                                                           {EDQUOT, "Disk quota exceeded"},
                                                           {ENOSPC, "No space left on device"}};
  ASSERT_EQ(train("--steps 4 --checkpoint first --checkpoint-period 2").code, 0);
  int ended = 0;
  for (const auto& [code, name] : faults) {
    for (const std::string call : {"open", "write", "sync", "rename"}) {
      for (const int at : {1, 3}) {
        SCOPED_TRACE(call + " " + std::to_string(at) + ": " + name);
        const Outcome outcome = bench.shell(
            "rm -rf kept; cp -r first kept; (LD_PRELOAD=" + shim +
            " BALLAST_FAULT_IN=/kept/step BALLAST_FAULT_CALL=" + call +
            " BALLAST_FAULT_STAYS=1 BALLAST_FAULT_AT=" + std::to_string(at) +
            " BALLAST_FAULT_WHAT=" + std::to_string(code) + " $BALLAST " +
            line("--steps 12 --checkpoint kept --checkpoint-period 2 --resume") + ") 2>&1 >out");
        if (outcome.code == 0) continue;  // so many calls there are none
        ++ended;
        EXPECT_EQ(outcome.code, 2) << outcome.output;
        EXPECT_TRUE(outcome.says(name)) << outcome.output;
        EXPECT_TRUE(outcome.says("--checkpoint kept") || outcome.says("kept/step-"))
            << outcome.output;
        const Outcome resumed = train("--steps 12 --checkpoint kept --resume --json 2>/dev/null");
        ASSERT_EQ(resumed.code, 0) << resumed.output;
        EXPECT_GE(nlohmann::json::parse(resumed.output)["first_step"], 4);
      }
    }
  }
  EXPECT_GE(ended, 28);
}

}  // namespace
}  // namespace ballast
