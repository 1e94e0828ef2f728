// Checkpoints: a training that is stopped, killed or continued under another plan ends with the
// same bits as one that never stopped.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <random>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "backend/checkpoint.h"
#include "tests/backend/temporary_folder.h"
#include "tests/backend/tiny_training.h"

namespace ballast {
namespace {

constexpr int64_t kSteps = 24;
constexpr int64_t kPeriod = 5;

Plan plan_with(SyncMode sync) {
  Plan plan = tiny::wait_plan();
  plan.optimizer.sync = sync;
  plan.optimizer.gpu_buckets = 1;
  plan.optimizer.bucket_bytes = {2 * kSegment * 4};
  return plan;
}

TrainerOptions options_in(const std::string& folder) {
  TrainerOptions options = tiny::options_for(kSteps);
  options.optimizer.clip_norm = 2;
  options.checkpoint_folder = folder;
  options.checkpoint_period_steps = kPeriod;
  options.resume = true;
  return options;
}

std::vector<float> train_to_the_end(const Plan& plan, const std::string& folder) {
  Trainer trainer(tiny::gpt2_model(), plan, options_in(folder));
  trainer.train(kSteps, nullptr);
  return trainer.parameters();
}

TEST(resume, a_killed_training_continues_to_the_same_bits) {
  std::mt19937 random(11);
  for (const SyncMode sync : {SyncMode::kWait, SyncMode::kSpeculate, SyncMode::kDelay}) {
    const TemporaryFolder whole;
    const TemporaryFolder killed;
    const Plan plan = plan_with(sync);
    const std::vector<float> expected = train_to_the_end(plan, whole.path());
    int kills = 0;
    for (int attempt = 0; attempt < 200; ++attempt) {
      const pid_t child = fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        train_to_the_end(plan, killed.path());
        _exit(0);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 150));
      kill(child, SIGKILL);
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      if (WIFEXITED(status)) {
        ASSERT_EQ(WEXITSTATUS(status), 0);
        break;
      }
      ++kills;
    }
    EXPECT_GT(kills, 0);
    EXPECT_TRUE(tiny::same_bits(train_to_the_end(plan, killed.path()), expected))
        << to_string(sync) << " after " << kills << " kills";
  }
}

TEST(resume, another_plan_of_the_same_model_reads_the_checkpoint) {
  const TemporaryFolder whole;
  const TemporaryFolder changed;
  const std::vector<float> expected =
      train_to_the_end(plan_with(SyncMode::kWait), whole.path());
  {
    Trainer trainer(tiny::gpt2_model(), plan_with(SyncMode::kWait),
                    options_in(changed.path()));
    trainer.train(10, nullptr);
  }
  Plan other = plan_with(SyncMode::kSpeculate);
  other.optimizer.bucket_bytes = {1};
  other.optimizer.undo = UndoKind::kExact;
  other.weights.flow_share = 1;
  EXPECT_TRUE(tiny::same_bits(train_to_the_end(other, changed.path()), expected));
}

TEST(resume, only_the_last_two_checkpoints_are_kept) {
  const TemporaryFolder folder;
  train_to_the_end(plan_with(SyncMode::kWait), folder.path());
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    files += entry.is_regular_file();
  }
  EXPECT_EQ(files, 2);
  EXPECT_EQ(newest_checkpoint(folder.path()),
            checkpoint_path(folder.path(), kSteps));
}

TEST(resume, a_request_to_stop_ends_at_a_step_that_can_be_resumed) {
  const TemporaryFolder folder;
  const TemporaryFolder whole;
  const Plan plan = plan_with(SyncMode::kSpeculate);
  const std::vector<float> expected = train_to_the_end(plan, whole.path());
  Trainer trainer(tiny::gpt2_model(), plan, options_in(folder.path()));
  int seen = 0;
  const TrainResult result = trainer.train(kSteps, [&](const StepRecord&) {
    if (++seen == 3) trainer.request_stop();
  });
  EXPECT_TRUE(result.stopped || result.next_step == kSteps);
  EXPECT_EQ(load_checkpoint_header(*newest_checkpoint(folder.path())).next_step,
            result.next_step);
  EXPECT_TRUE(tiny::same_bits(train_to_the_end(plan, folder.path()), expected));
}

TEST(resume, a_damaged_checkpoint_is_one_clear_error) {
  const TemporaryFolder folder;
  train_to_the_end(plan_with(SyncMode::kWait), folder.path());
  const std::string newest = *newest_checkpoint(folder.path());
  std::filesystem::resize_file(newest, std::filesystem::file_size(newest) / 2);
  const std::string message = error_of([&] {
    Trainer trainer(tiny::gpt2_model(), plan_with(SyncMode::kWait),
                    options_in(folder.path()));
  });
  EXPECT_TRUE(mentions(message, newest)) << message;
}

TEST(weights, exported_and_imported_are_the_same_training) {
  const TemporaryFolder folder;
  const std::string path = folder / "weights.safetensors";
  TrainerOptions options = tiny::options_for(kSteps);
  Trainer first(tiny::llama_model(), tiny::wait_plan(), options);
  first.train(3, nullptr);
  first.export_weights(path);
  options.initial_weights = path;
  Trainer second(tiny::llama_model(), plan_with(SyncMode::kSpeculate), options);
  EXPECT_TRUE(tiny::same_bits(first.parameters(), second.parameters()));
  EXPECT_EQ(first.validation_loss(2), second.validation_loss(2));
}

}  // namespace
}  // namespace ballast
